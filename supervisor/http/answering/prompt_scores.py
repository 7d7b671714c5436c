"""PromptScores: the log-probabilities of a prompt's own tokens, collected from the engine until they are whole.

Knows ids and what they spell; neither dialects nor how answers are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from luce.supervisor.http.answering.answer_events import Logprob, PromptLogprobs, TokenLogprob
from luce.supervisor.http.answering.choice_decoder import LogprobReader
from luce.supervisor.requests import PromptTokenEvent
from luce.supervisor.text import TextModel


class PromptScores:
    def __init__(self, model: TextModel, ids: Sequence[int], n_likeliest: int) -> None:
        self._reader = LogprobReader(model, n_likeliest)
        self._n_tokens = len(ids)
        self._tokens = [TokenLogprob(Logprob(ids[0], model.piece(ids[0], special=True), math.nan))]

    @property
    def is_whole(self) -> bool:
        return len(self._tokens) == self._n_tokens

    def add(self, event: PromptTokenEvent) -> None:
        """The next token's."""
        self._tokens.append(self._reader.read(event.logprobs))

    def told(self) -> PromptLogprobs:
        """REQUIRES: it is whole."""
        return PromptLogprobs(tuple(self._tokens))
