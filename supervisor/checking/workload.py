"""How much each check does: engines that it starts, tokens that they read and write. With the pace of a machine that is
how long it takes. Knows the checks' volume; starts nothing, and must not know the clock.

The numbers are those of the checks' own code, without what is read again of a page: a test counts what they really do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from luce.supervisor.checking.subject import Volume
from luce.supervisor.checking.texts import N_ENDINGS

N_PROBE = 256  # tokens that are read to learn the pace
N_PROBE_ANSWER = 16
_N_BESIDE = 3  # further texts of the shortest length, for lanes
_N_SAMPLED_TOKENS = 8
_N_CANDIDATES, _N_CANDIDATE = 8, 150  # texts that sampling chooses from, and their tokens
_N_TURN = 48
_CONVERSATION = 26_000 // 4  # tokens that a conversation comes to, a token having four characters
_N_TOGETHER = 88  # of an answer that is set aside
_LEAST_POOL = 512  # tokens: shorter texts do not leave it


@dataclass(frozen=True, slots=True)
class Work:
    n_starts: int = 0
    n_read: float = 0
    n_written: float = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.n_starts + other.n_starts, self.n_read + other.n_read, self.n_written + other.n_written)


@dataclass(frozen=True, slots=True)
class Pace:
    """Of this machine with this model, in seconds."""

    start_s: float
    read_s: float
    """For a token of a prompt."""
    write_s: float

    def seconds(self, work: Work) -> float:
        return work.n_starts * self.start_s + work.n_read * self.read_s + work.n_written * self.write_s


@dataclass(frozen=True, slots=True)
class Scope:
    """What the checks are to go through."""

    volume: Volume
    lengths: Sequence[int]
    ctx: int
    has_drafter: bool
    has_drafts: bool

    @property
    def n_all(self) -> int:
        return sum(self.lengths)

    @property
    def n_answers(self) -> int:
        """To all endings of each length."""
        return len(self.lengths) * N_ENDINGS * self.volume.n_answer

    @property
    def references(self) -> Work:
        return Work(1, self.n_all, self.n_answers)

    @property
    def in_lanes(self) -> Work:
        n_texts = len(self.lengths) + _N_BESIDE
        return Work(0, self.n_all + _N_BESIDE * self.lengths[0], n_texts * self.volume.n_answer)


def _paging(scope: Scope) -> Work:
    beyond = [length for length in scope.lengths if length > _LEAST_POOL]
    fit = Work(len(scope.lengths), 2 * scope.n_all, scope.n_answers + len(scope.lengths) * scope.volume.n_answer)
    return fit + Work(len(beyond), 2 * sum(beyond), 2 * len(beyond) * scope.volume.n_answer)


def _suspend(scope: Scope) -> Work:
    n = len(scope.lengths)
    return Work(n, 2 * sum(min(length, scope.ctx // 2) for length in scope.lengths), 4 * n * _N_TOGETHER)


def _drafted(scope: Scope) -> Work:
    alone = Work(1, scope.n_all, len(scope.lengths) * scope.volume.n_answer)
    return alone + scope.in_lanes


def _sampling(scope: Scope) -> Work:
    volume = scope.volume
    n_asked = 3 * volume.n_seeds * volume.n_sampled
    n_read = (_N_CANDIDATES + 3 * volume.n_sampled) * _N_CANDIDATE + n_asked  # each reads a prompt's last token anew
    return Work(2, n_read, n_asked * _N_SAMPLED_TOKENS)


def _conversation(scope: Scope) -> Work:
    """Each turn is read once cold and once behind the turn before; turns grow by equal factors."""
    n_last = min(_CONVERSATION, scope.ctx * 3 // 4)
    return Work(1, 3 * n_last, 3 * scope.volume.n_turns * _N_TURN)


def _kv_type(scope: Scope) -> Work:
    n_positions = len(scope.lengths) * scope.volume.n_positions
    return Work(2, 2 * scope.n_all, 2 * n_positions)


_WORK: dict[str, Callable[[Scope], Work]] = {
    "reuse": lambda scope: Work(1, scope.n_all, scope.n_answers),
    "restore": lambda scope: Work(1, scope.n_all * 5 / 4, scope.n_answers),
    "park": lambda scope: Work(1, scope.n_all, scope.n_answers),
    "disk": lambda scope: Work(2, scope.n_all, scope.n_answers),
    "suspend": _suspend,
    "paging": _paging,
    "lanes": lambda scope: (
        Work(1, _N_BESIDE * scope.lengths[0], _N_BESIDE * scope.volume.n_answer) + Work(1) + scope.in_lanes
    ),
    "ngrams": lambda scope: _drafted(scope) if scope.has_drafts else Work(),
    "drafter": lambda scope: _drafted(scope) if scope.has_drafter else Work(),
    "sampling": lambda scope: _sampling(scope) if scope.has_drafts else Work(),
    "conversation": _conversation,
    "kv-type": _kv_type,
}
_COMPARES_ALL = frozenset({"reuse", "restore", "park", "disk", "paging"})


def works_of(names: Sequence[str], scope: Scope) -> list[Work]:
    """Of the checks of these names. The first one that needs the plain engine's answers to all texts has them made."""
    works = []
    has_references = False
    for name in names:
        work = _WORK[name](scope)
        if name in _COMPARES_ALL and not has_references:
            work += scope.references
            has_references = True
        works.append(work)
    return works
