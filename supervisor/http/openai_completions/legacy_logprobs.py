"""The `logprobs` of legacy completions: lists with an entry a token, of the answer and of a prompt that is echoed.

The tokens join to the text: one that ends within a character has none of it, the one that ends the character has all.
Pure.
"""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from luce.supervisor.http.answering.answer_events import PromptLogprobs, TokenLogprob
from luce.supervisor.http.openai_shared.shapes import finite, token_text


class LegacyLogprobs:
    """Of one choice, as it grows."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._n_characters = 0

    def told(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The tokens that follow those before. `text_offset` counts characters of the choice's whole text."""
        tokens = [self._decode(logprob.chosen.bytes) for logprob in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._n_characters)
            self._n_characters += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [finite(logprob.chosen.logprob) for logprob in logprobs],
            "top_logprobs": [_top(logprob, token) for logprob, token in zip(logprobs, tokens, strict=True)],
            "text_offset": offsets,
        }


def _top(logprob: TokenLogprob, token: str) -> dict[str, float | None] | None:
    """The likeliest by their texts, of two with the same the better one, and the token itself in any case."""
    chosen = logprob.chosen
    if math.isnan(chosen.logprob):
        return None
    others = [other for other in reversed(logprob.likeliest) if other.token != chosen.token]
    return {token_text(other): finite(other.logprob) for other in others} | {token: finite(chosen.logprob)}


def cut(scored: PromptLogprobs, n_likeliest: int) -> Sequence[TokenLogprob]:
    """With no more of the likeliest than that."""
    return [replace(token, likeliest=token.likeliest[:n_likeliest]) for token in scored.tokens]


def echoed(scored: PromptLogprobs, text: str, n_likeliest: int) -> Sequence[TokenLogprob]:
    """The prompt's tokens, spelling what is echoed: what the server has put before a text is no part of that."""
    tokens = cut(scored, n_likeliest)
    spelled = b"".join(token.chosen.bytes for token in tokens)
    n_before = len(spelled) - len(text.encode("utf-8", "replace"))
    if n_before <= 0 or not spelled.endswith(text.encode("utf-8", "replace")):
        return tokens
    shown = []
    for token in tokens:
        n_here = min(n_before, len(token.chosen.bytes))
        shown.append(replace(token, chosen=replace(token.chosen, bytes=token.chosen.bytes[n_here:])))
        n_before -= n_here
    return shown
