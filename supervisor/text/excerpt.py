"""Excerpt: what is kept of a text, as text again; ExcerptTask: what an engine is asked for it.

A question is read behind the text, so that what matters to it is kept; it is no part of what comes back. Knows ids and
their bytes; no engine, and not how parts are chosen.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

SEPARATOR = " […] "
QUESTION_BEGINS = "\n\n"

Spans = tuple[tuple[int, int], ...]

_MAX_CUT_BYTES = 3  # of a character that began in what was left out


class Pieces(Protocol):
    """What of a TextModel is needed."""

    def piece(self, token: int, *, special: bool = False) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ExcerptTask:
    prompt: tuple[int, ...]
    """The text's ids, and the question's behind them."""
    n_text: int
    share: float
    """To keep of the prompt; the question is kept in any case, and counts."""
    keep: Spans

    @classmethod
    def of(cls, text: Sequence[int], question: Sequence[int], n_wanted: int, keep: Sequence[tuple[int, int]]) -> Self:
        """`n_wanted`: tokens to keep of the text, at least one. `keep`: where the text is kept in any case."""
        prompt = (*text, *question)
        n_text = len(text)
        # So that the number that the engine makes of it by rounding up is the one that is meant.
        share = 1.0 if n_wanted >= n_text else (n_wanted + len(question) - 0.5) / len(prompt)
        of_question = ((n_text, len(prompt)),) if question else ()
        return cls(prompt, n_text, share, (*keep, *of_question))


@dataclass(frozen=True, slots=True)
class Excerpt:
    content: str
    tokens: tuple[int, ...]
    parts: Spans
    """Where the tokens stand in the text: from the first up to before the second."""
    n_text: int

    @classmethod
    def of(cls, task: ExcerptTask, chosen: Spans, text: Pieces, *, separator: str, given: str | None) -> Self:
        """`chosen`: the parts of the task's prompt. `given`: the text, unless it came as ids: some vocabularies put a
        blank before it. A character that is cut at the edge of a part is left out."""
        n_text = task.n_text
        parts = tuple((begin, min(end, n_text)) for begin, end in chosen if begin < n_text)
        tokens = tuple(token for begin, end in parts for token in task.prompt[begin:end])
        pieces: list[str] = []
        at = 0
        for begin, end in parts:
            part = _text_of(text, task.prompt[begin:end], starts=begin == 0, ends=end == n_text)
            if begin > at:
                pieces.append(separator if pieces else separator.lstrip())
            elif given is not None and not given.startswith(" "):
                part = part.removeprefix(" ")
            pieces.append(part)
            at = end
        if at < n_text:
            pieces.append(separator.rstrip())
        return cls("".join(pieces), tokens, parts, n_text)


def _text_of(text: Pieces, tokens: Sequence[int], *, starts: bool, ends: bool) -> str:
    """`starts`, `ends`: with the text itself, so that nothing of a character is missing there."""
    data = b"".join(text.piece(token, special=True) for token in tokens)
    n_cut = 0
    while not starts and n_cut < min(_MAX_CUT_BYTES, len(data)) and data[n_cut] & 0xC0 == 0x80:
        n_cut += 1
    decoded, _ = codecs.utf_8_decode(data[n_cut:], "replace", ends)
    return decoded
