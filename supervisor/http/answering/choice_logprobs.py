"""Logprobs of token ids as those of bytes. Knows the vocabulary only."""

from __future__ import annotations

from collections.abc import Sequence

from luce.supervisor.http.answering.answer_events import Logprob, TokenLogprob
from luce.supervisor.text import TextModel


class LogprobReader:
    def __init__(self, model: TextModel, n_likeliest: int) -> None:
        self._model = model
        self._n_likeliest = n_likeliest

    def read(self, entries: Sequence[tuple[int, float]]) -> TokenLogprob:
        """`entries` as the engine has them: the chosen token first, then the likeliest."""
        chosen, *others = [
            Logprob(token, self._model.piece(token, special=True), logprob)
            for token, logprob in entries[: self._n_likeliest + 1]
        ]
        return TokenLogprob(chosen, others)
