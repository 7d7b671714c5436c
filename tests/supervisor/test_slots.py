"""SlotTable: random histories against its invariants, and what must never be pushed out by what."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.prefix_cache.slots import Reservation, SlotBudget, SlotTable

BUDGET = SlotBudget(n_slots=3, n_bytes=2000, page_tokens=4, page_bytes=100, tail_bytes=150)


class Histories(RuleBasedStateMachine):
    """What the engine was told, beside what the table believes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(BUDGET)
        self.pending: list[Reservation] = []
        self.engine: dict[int, bytes] = {}  # slot -> what the engine has in it
        self.now_s = 0.0

    @rule(text=st.lists(st.integers(0, 2), min_size=1, max_size=60), pause_s=st.floats(0, 1000))
    def reserve(self, text: list[int], pause_s: float) -> None:
        self.now_s += pause_s
        key = pack(text)
        reservation = self.table.reserve(key, self.now_s)
        if reservation is not None:
            assert reservation.n_tokens == len(text)
            for slot in reservation.freed:
                del self.engine[slot]
            self.pending.append(reservation)

    @precondition(lambda self: bool(self.pending))
    @rule(number=st.integers(0, 100))
    def confirm(self, number: int) -> None:
        reservation = self.pending.pop(number % len(self.pending))
        self.engine[reservation.slot] = reservation.key
        self.table.confirm(reservation, self.now_s)
        self.table.abort(reservation)  # late, as when its request ends: without effect

    @precondition(lambda self: bool(self.pending))
    @rule(number=st.integers(0, 100))
    def abort(self, number: int) -> None:
        reservation = self.pending.pop(number % len(self.pending))
        self.table.abort(reservation)
        self.table.confirm(reservation, self.now_s)  # too late: without effect

    @rule(text=st.lists(st.integers(0, 2), max_size=60))
    def look_up(self, text: list[int]) -> None:
        key = pack(text)
        expected = max((len(held) // 4 for held in self.engine.values() if key.startswith(held)), default=0)
        match = self.table.longest(key, self.now_s)
        assert (0 if match is None else match.n_tokens) == expected
        assert match is None or self.engine[match.value] == key[: 4 * match.n_tokens]

    @invariant()
    def holds(self) -> None:
        self.table.check_integrity()
        assert self.table.n_used == len(self.engine)
        assert self.table.bytes_used <= BUDGET.n_bytes


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def table(*, n_slots: int = 4, n_bytes: int = 10**9, tail_bytes: int = 0) -> SlotTable:
    return SlotTable(
        SlotBudget(n_slots=n_slots, n_bytes=n_bytes, page_tokens=64, page_bytes=64_000, tail_bytes=tail_bytes)
    )


def text(start: int, n_tokens: int) -> bytes:
    return pack(range(start, start + n_tokens))


def keep(slots: SlotTable, key: bytes, now_s: float) -> Reservation | None:
    reservation = slots.reserve(key, now_s)
    if reservation is not None:
        slots.confirm(reservation, now_s)
    return reservation


@pytest.mark.parametrize("n_bytes", [10**9, 32_000 * 1000 + 10**6], ids=["slots are scarce", "bytes are scarce"])
def test_side_requests_do_not_push_out_a_long_conversation(n_bytes: int) -> None:
    slots = table(n_slots=4, n_bytes=n_bytes)
    conversation = text(0, 32_000)
    assert keep(slots, conversation, 0.0) is not None
    for number in range(1000):
        keep(slots, text(10**6 + number * 1000, 300), 1.0 + number)
    match = slots.longest(conversation, 1002.0)
    assert match is not None
    assert match.n_tokens == 32_000


def test_what_nobody_uses_goes_in_the_end() -> None:
    slots = table(n_slots=1)
    keep(slots, text(0, 32_000), 0.0)
    assert keep(slots, text(10**6, 400), 60.0) is None
    assert keep(slots, text(10**6, 400), 6 * 3600.0) is not None


def test_the_old_occupant_stays_until_the_snapshot_is_there() -> None:
    slots = table(n_slots=1)
    old, new = text(0, 300), text(10**6, 3000)
    keep(slots, old, 0.0)
    reservation = slots.reserve(new, 1.0)
    assert reservation is not None
    assert reservation.freed == ()
    assert slots.longest(old, 1.0) == (300, reservation.slot)
    assert slots.longest(new, 1.0) is None
    slots.abort(reservation)
    assert slots.longest(old, 1.0) == (300, reservation.slot)
    keep(slots, new, 2.0)
    assert slots.longest(old, 2.0) is None
    assert slots.longest(new, 2.0) == (3000, reservation.slot)


def test_bytes_are_free_before_they_are_used() -> None:
    slots = table(n_slots=8, n_bytes=100 * 64_000)
    for number in range(10):
        keep(slots, text(number * 10_000, 640), float(number))  # 10 pages each: 8 of them fit by slots
    assert slots.n_used == 8
    reservation = slots.reserve(text(10**6, 64 * 60), 20.0)
    assert reservation is not None
    assert len(reservation.freed) == 4
    slots.check_integrity()
    assert slots.reserve(text(10**7, 64 * 101), 21.0) is None  # more than there is


def test_shared_pages_count_once() -> None:
    slots = table(n_slots=100, n_bytes=1000 * 64_000, tail_bytes=1000)
    for turn in range(1, 51):
        assert keep(slots, text(0, turn * 640), float(turn)) is not None
    assert slots.bytes_used == 500 * 64_000 + 50 * 1000


def test_an_engine_without_slots_gets_none() -> None:
    assert table(n_slots=0).reserve(text(0, 1000), 0.0) is None
