"""LoopGuard: whether an answer repeats one token, or one phrase, for hundreds of tokens. Pure."""

from __future__ import annotations

from collections import deque

LOOP_TOKENS = 384
"""Of the same, at least."""
LOOP_ROUNDS = 8
"""And so often, where the phrase is long."""
MAX_PHRASE_TOKENS = 64


class LoopGuard:
    """Of one answer. A token costs a look at each of the last ones."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=MAX_PHRASE_TOKENS)  # the newest first
        self._runs = [0] * MAX_PHRASE_TOKENS  # how many in a row were the same as so many (and one) before
        self.has_looped = False

    def feed(self, token: int) -> bool:
        """Whether it is a loop by now."""
        runs = self._runs
        for number, earlier in enumerate(self._last):
            if earlier != token:
                runs[number] = 0
                continue
            runs[number] += 1
            n_phrase = number + 1
            if runs[number] + n_phrase >= max(LOOP_TOKENS, LOOP_ROUNDS * n_phrase):
                self.has_looped = True
        self._last.appendleft(token)
        return self.has_looped
