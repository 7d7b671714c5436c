"""CrashAttribution: which request brings the engine down? Pure.

Requests that were running when an engine died are suspects, not guilty: any of them may have done it, or none. After a
second death in a row each is tried: it runs alone, and is cleared when it goes on for some tokens. One that was alone
at three deaths is blamed, unless the engine dies of others' trials as well: then chance is the better explanation,
and it takes as many more deaths as make chance unlikely. So nobody is failed for a neighbour's sake, nor for what
somebody outside does to engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

N_DEATHS_BEFORE_TRIAL = 2
N_DEATHS_TO_CONVICT = 3
N_DEATHS_AT_MOST = 8  # of one request alone, whatever happens to others

_CHANCE = 0.001  # of a conviction without guilt
_BACKGROUND = 0.1
"""How often a trial ends in death without guilt, for all we know before there was any. Its cube is _CHANCE."""
_N_TRIALS_REMEMBERED = 64


@dataclass(slots=True)
class _Record:
    n_deaths: int = 0  # in a row
    n_alone: int = 0  # of these, those with nobody else running
    crashed: bool = False  # the last one was a crash of the engine's own making


class CrashAttribution(Generic[K]):
    def __init__(self) -> None:
        self._records: dict[K, _Record] = {}
        self._trials: deque[tuple[K, bool]] = deque(
            maxlen=_N_TRIALS_REMEMBERED
        )  # who ran alone, and did the engine die

    def note_death(self, running: Collection[K], *, crashed: bool) -> list[K]:
        """`running` were in the engine when it died, by a fault of its own (`crashed`) or in another way. Returns those
        that are blamed."""
        alone = len(running) == 1
        blamed = []
        for key in running:
            record = self._records.setdefault(key, _Record())
            record.n_deaths += 1
            record.n_alone += alone
            record.crashed = crashed
            if alone:
                self._trials.append((key, True))
            if self._is_guilty(key, record):
                blamed.append(key)
        return blamed

    def note_failure(self, key: K, *, alone: bool) -> bool:
        """The engine could not carry this request and lives on. Returns whether it is to be given up; until then it is
        to run alone."""
        record = self._records.setdefault(key, _Record())
        record.n_deaths = max(record.n_deaths + 1, N_DEATHS_BEFORE_TRIAL)
        record.n_alone += alone
        return record.n_alone >= N_DEATHS_TO_CONVICT

    def clear(self, key: K) -> None:
        """It went on: what killed the engine lies behind it, or was not its doing."""
        if self.must_run_alone(key):
            self._trials.append((key, False))
        self._records.pop(key, None)
        self._forget_old_trials()

    def forget(self, key: K) -> None:
        """It has ended, and with it what its trials prove of others."""
        if self._records.pop(key, None) is not None:
            kept = [trial for trial in self._trials if trial[0] != key]
            self._trials = deque(kept, maxlen=_N_TRIALS_REMEMBERED)
        self._forget_old_trials()

    def is_on_trial(self, key: K) -> bool:
        """Whether its progress is to be reported with `clear`."""
        return key in self._records

    def must_run_alone(self, key: K) -> bool:
        record = self._records.get(key)
        return record is not None and record.n_deaths >= N_DEATHS_BEFORE_TRIAL

    def n_alone(self, key: K) -> int:
        """How often the engine has died while nothing else ran: those with the fewest are tried first."""
        record = self._records.get(key)
        return 0 if record is None else record.n_alone

    def is_of_a_crash(self, key: K) -> bool:
        """Whether the engine's last death beside it was a crash: then it takes more to be cleared."""
        record = self._records.get(key)
        return record is not None and record.crashed

    def _is_guilty(self, key: K, record: _Record) -> bool:
        if not N_DEATHS_TO_CONVICT <= record.n_alone < N_DEATHS_AT_MOST:
            return record.n_alone >= N_DEATHS_AT_MOST
        others = [died for other, died in self._trials if other != key]
        rate = (sum(others) + _BACKGROUND) / (len(others) + 1)
        return bool(rate**record.n_alone <= _CHANCE * 1.0001)

    def _forget_old_trials(self) -> None:
        if not self._records:
            self._trials.clear()
