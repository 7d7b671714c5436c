"""SlotTable: which prefixes of texts are worth a slot of one engine. Pure.

A slot keeps a prefix from being evicted in the engine. A snapshot is taken in two phases: a slot is reserved, and
only when the engine has confirmed the snapshot is the slot's old occupant given up; one that fails or is cancelled
leaves all as it was. Bytes are counted before anything is asked for. The slots of one engine are one table: a new
engine, a new table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luce.supervisor.prefix_cache.page_names import TOKEN_BYTES
from luce.supervisor.prefix_cache.prefix_index import Match, PrefixIndex

_QUADRATIC_TOKENS = 16384
"""From here on attention makes a token cost twice as much to rebuild as at a text's start: a guess of the order of
magnitude, for models of some billion parameters."""
_SUPERSEDED = 0.25
"""What a prefix is worth once one conversation, and only one, has gone on from it in a slot of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotBudget:
    """What the engine has to give, and what things cost in it."""

    n_slots: int
    n_bytes: int
    page_tokens: int
    page_bytes: int
    tail_bytes: int
    half_life_s: float = 600.0  # of an entry's worth while nobody uses it


@dataclass(slots=True)
class _Entry:
    slot: int
    key: bytes
    used_s: float
    is_there: bool = False  # confirmed; until then it only counts
    claimed: bool = False  # a reservation is about to take its slot


@dataclass(frozen=True, slots=True)
class Reservation:
    """A slot that a snapshot is on its way to."""

    slot: int
    n_tokens: int
    freed: tuple[int, ...]
    """Slots whose entries were given up for their bytes: the engine is to be told before the snapshot is asked for."""
    key: bytes = field(repr=False)


class SlotTable:
    def __init__(self, budget: SlotBudget) -> None:
        self._budget = budget
        self._free = list(range(budget.n_slots - 1, -1, -1))  # the lowest number is taken first
        self._entries: dict[int, _Entry] = {}
        self._index: PrefixIndex[_Entry] = PrefixIndex()
        self._reserved: dict[int, Reservation] = {}

    @property
    def n_used(self) -> int:
        return len(self._entries)

    @property
    def bytes_used(self) -> int:
        """By what is in slots and what is on its way to them."""
        return self._bytes_with(0) + (len(self._entries) + len(self._reserved)) * self._budget.tail_bytes

    def longest(self, key: bytes, now_s: float) -> Match[int] | None:
        """The slot with the longest prefix of `key`; it has been used now."""
        for n_tokens, entry in self._index.matches(key):
            if entry.is_there:
                entry.used_s = now_s
                return Match(n_tokens, entry.slot)
        return None

    def reserve(self, key: bytes, now_s: float) -> Reservation | None:
        """A slot for the prefix `key`; nothing if it has one, or if all that is there is worth more."""
        budget = self._budget
        if budget.n_slots == 0 or key == b"" or self._index.get(key) is not None:
            return None
        n_new = len(key) // TOKEN_BYTES - self._index.n_common(key)
        n_bytes = self._bytes_with(n_new) - self._bytes_with(0) + budget.tail_bytes
        if n_bytes > budget.n_bytes:
            return None
        worth = self._worth(len(key) // TOKEN_BYTES, self._n_before(key), n_bytes)
        victims = self._victims_for_bytes(self.bytes_used + n_bytes - budget.n_bytes, worth, now_s)
        if victims is None:
            return None
        slot = self._slot_for(victims, worth, now_s)
        if slot is None:
            return None
        for victim in victims:
            self._give_up(victim)
        if slot in self._free:
            self._free.remove(slot)
        else:
            self._entries[slot].claimed = True
        freed = tuple(victim.slot for victim in victims)
        reservation = Reservation(slot, len(key) // TOKEN_BYTES, freed, key)
        self._reserved[slot] = reservation
        self._index.insert(key, _Entry(slot, key, now_s))
        return reservation

    def confirm(self, reservation: Reservation, now_s: float) -> None:
        """The engine has taken the snapshot: the old occupant is gone."""
        if self._reserved.get(reservation.slot) is not reservation:
            return  # aborted before
        del self._reserved[reservation.slot]
        occupant = self._entries.pop(reservation.slot, None)
        if occupant is not None:
            self._index.remove(occupant.key)
        entry = self._index.get(reservation.key)
        assert entry is not None
        entry.is_there = True
        entry.used_s = now_s
        self._entries[entry.slot] = entry

    def abort(self, reservation: Reservation) -> None:
        """There will be no snapshot. Safe to call after `confirm`."""
        if self._reserved.get(reservation.slot) is not reservation:
            return
        del self._reserved[reservation.slot]
        self._index.remove(reservation.key)
        occupant = self._entries.get(reservation.slot)
        if occupant is not None:
            occupant.claimed = False
        else:
            self._release(reservation.slot)

    def give_up_all(self) -> list[int]:
        """What is in slots is no longer kept; what is on its way to one stays. Returns the slots that are free now."""
        given_up = [entry for entry in self._entries.values() if not entry.claimed]
        for entry in given_up:
            self._give_up(entry)
        return [entry.slot for entry in given_up]

    def check_integrity(self) -> None:
        """Asserts what only a bug of ours can break."""
        budget = self._budget
        self._index.check_integrity()
        used = set(self._entries) | set(self._reserved)
        assert used.isdisjoint(self._free)
        assert used | set(self._free) == set(range(budget.n_slots))
        assert len(self._free) == len(set(self._free))
        assert len(self._index) == len(self._entries) + len(self._reserved)
        assert all(self._index.get(entry.key) is entry and entry.is_there for entry in self._entries.values())
        assert all(entry.slot == slot for slot, entry in self._entries.items())
        assert {slot for slot, entry in self._entries.items() if entry.claimed} == set(self._entries) & set(
            self._reserved
        )
        assert self.bytes_used <= budget.n_bytes

    # What things cost

    def _bytes_with(self, n_new_tokens: int) -> int:
        """Of all pages, with so many more tokens."""
        return -(-(self._index.n_tokens + n_new_tokens) // self._budget.page_tokens) * self._budget.page_bytes

    def _bytes_of(self, n_tokens: int) -> int:
        return -(-n_tokens // self._budget.page_tokens) * self._budget.page_bytes + self._budget.tail_bytes

    def _n_before(self, key: bytes) -> int:
        """Where a rebuild of `key` would begin: the end of the longest other entry that it contains."""
        for n_tokens, entry in self._index.matches(key):
            if entry.is_there and len(entry.key) < len(key):
                return n_tokens
        return 0

    def _worth(self, n_tokens: int, n_before: int, n_bytes: int) -> float:
        """What a rebuild would cost, for the share that it takes of what is scarcer, slots or bytes."""
        cost = (n_tokens - n_before) + (n_tokens**2 - n_before**2) / (2 * _QUADRATIC_TOKENS)
        return cost / max(1 / self._budget.n_slots, n_bytes / max(self._budget.n_bytes, 1))

    def _worth_now(self, entry: _Entry, now_s: float) -> float:
        n_tokens = len(entry.key) // TOKEN_BYTES
        n_bytes = self._bytes_of(self._index.n_exclusive(entry.key))
        worth = self._worth(n_tokens, self._n_before(entry.key), n_bytes)
        if self._index.n_branches(entry.key) == 1:
            worth *= _SUPERSEDED
        idle_s = max(now_s - entry.used_s, 0.0)
        return float(worth * 0.5 ** (idle_s / self._budget.half_life_s))

    # What has to go

    def _cheaper_than(self, worth: float, now_s: float) -> list[_Entry]:
        """The entries that are worth less, the cheapest first."""
        candidates = [(self._worth_now(entry, now_s), entry) for entry in self._entries.values() if not entry.claimed]
        candidates.sort(key=lambda pair: (pair[0], pair[1].used_s))
        return [entry for entry_worth, entry in candidates if entry_worth < worth]

    def _victims_for_bytes(self, n_missing: int, worth: float, now_s: float) -> list[_Entry] | None:
        victims: list[_Entry] = []
        if n_missing <= 0:
            return victims
        for entry in self._cheaper_than(worth, now_s):
            victims.append(entry)
            # Whole pages only: what is left of one page belongs to the neighbour.
            n_pages = self._index.n_exclusive(entry.key) // self._budget.page_tokens
            n_missing -= n_pages * self._budget.page_bytes + self._budget.tail_bytes
            if n_missing <= 0:
                return victims
        return None

    def _slot_for(self, victims: list[_Entry], worth: float, now_s: float) -> int | None:
        if victims:
            return victims[0].slot
        if self._free:
            return self._free[-1]
        occupants = self._cheaper_than(worth, now_s)
        return occupants[0].slot if occupants else None

    def _give_up(self, entry: _Entry) -> None:
        del self._entries[entry.slot]
        self._index.remove(entry.key)
        self._release(entry.slot)

    def _release(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)
