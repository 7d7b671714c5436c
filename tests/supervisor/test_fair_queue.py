"""FairQueue: random histories, then what fairness and priorities mean."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from luce.supervisor.scheduling.fair_queue import MAX_IDLE_CLIENTS, FairQueue, FullError, Ticket

N_MAX = 6


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.admission: FairQueue[int] = FairQueue(N_MAX)
        self.waiting: dict[int, Ticket] = {}
        self.running: list[Ticket] = []
        self.n_offered = 0

    @rule(
        client=st.sampled_from("abc"),
        priority=st.integers(-1, 1),
        cost=st.floats(0, 100),
        deadline_s=st.none() | st.floats(0, 10),
        n_free=st.integers(0, 2),
    )
    def offer(self, client: str, priority: int, cost: float, deadline_s: float | None, n_free: int) -> None:
        ticket = Ticket(client, priority, cost, deadline_s)
        self.n_offered += 1
        if len(self.waiting) >= N_MAX + n_free:
            with pytest.raises(FullError):
                self.admission.offer(self.n_offered, ticket, n_free)
        else:
            self.admission.offer(self.n_offered, ticket, n_free)
            self.waiting[self.n_offered] = ticket

    @rule(refused=st.sets(st.integers(0, 30)))
    def take(self, refused: set[int]) -> None:
        allowed = {item for item in self.waiting if item not in refused}
        item = self.admission.next(lambda item: item not in refused)
        assert (item is None) == (not allowed)
        if item is not None:
            ticket = self.waiting.pop(item)
            self.running.append(ticket)
            same = [other for other in allowed - {item} if self.waiting[other].priority >= ticket.priority]
            assert all(self.waiting[other].priority == ticket.priority for other in same)
            assert all(other > item for other in same if self.waiting[other].client == ticket.client)

    @rule(item=st.integers(1, 40))
    def remove(self, item: int) -> None:
        assert self.admission.remove(item) == (self.waiting.pop(item, None) is not None)

    @rule(now_s=st.floats(0, 10))
    def expire(self, now_s: float) -> None:
        late = {item for item, t in self.waiting.items() if t.deadline_s is not None and t.deadline_s <= now_s}
        assert set(self.admission.expire(now_s)) == late
        for item in late:
            del self.waiting[item]

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 30), cost=st.floats(0, 100))
    def settle(self, number: int, cost: float) -> None:
        self.admission.settle(self.running.pop(number % len(self.running)), cost)

    @invariant()
    def holds(self) -> None:
        self.admission.check_integrity()
        assert len(self.admission) == len(self.waiting)


Histories.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase


def order(admission: FairQueue[str]) -> list[str]:
    taken = []
    while (item := admission.next(lambda _: True)) is not None:
        taken.append(item)
    return taken


def test_one_client_with_many_requests_does_not_starve_another() -> None:
    admission: FairQueue[str] = FairQueue(100)
    for number in range(20):
        admission.offer(f"many{number}", Ticket("many", cost=10))
    admission.offer("one0", Ticket("one", cost=10))
    admission.offer("one1", Ticket("one", cost=10))
    assert {"one0", "one1"} <= set(order(admission)[:4])


def test_long_requests_weigh_more_than_short_ones() -> None:
    admission: FairQueue[str] = FairQueue(100)
    for number in range(4):
        admission.offer(f"long{number}", Ticket("long", cost=100))
    for number in range(8):
        admission.offer(f"short{number}", Ticket("short", cost=10))
    taken = order(admission)
    assert taken.index("short7") < taken.index("long1")


def test_one_that_comes_late_has_saved_nothing_up() -> None:
    admission: FairQueue[str] = FairQueue(100)
    for number in range(50):
        admission.offer(f"early{number}", Ticket("early", cost=10))
    for _ in range(40):
        assert admission.next(lambda _: True) is not None
    for number in range(10):
        admission.offer(f"late{number}", Ticket("late", cost=10))
    assert sum(item.startswith("early") for item in order(admission)[:10]) >= 4


def test_what_a_running_client_has_had_outlives_an_empty_queue() -> None:
    admission: FairQueue[str] = FairQueue(100)
    heavy = Ticket("heavy", cost=10)
    admission.offer("heavy0", heavy)
    assert order(admission) == ["heavy0"]
    admission.offer("other0", Ticket("other", cost=10))
    assert order(admission) == ["other0"], "it keeps running"
    admission.settle(heavy, 1000.0)
    for number in range(2):
        admission.offer(f"again{number}", Ticket("heavy", cost=10))
    admission.offer("other1", Ticket("other", cost=10))
    assert order(admission)[0] == "other1"


def test_clients_of_the_past_are_bounded() -> None:
    """Embedders name clients freely, and the queue may never be empty."""
    admission: FairQueue[str] = FairQueue(100)
    admission.offer("waits", Ticket("waits", priority=-1))
    for number in range(3 * MAX_IDLE_CLIENTS):
        ticket = Ticket(f"client {number}", cost=10)
        admission.offer("item", ticket)
        assert admission.next(lambda _: True) == "item"
        admission.settle(ticket, 10)
        assert len(admission._had) <= MAX_IDLE_CLIENTS + 2
    admission.check_integrity()


def test_higher_priorities_come_first() -> None:
    admission: FairQueue[str] = FairQueue(3)
    admission.offer("low", Ticket("a", priority=-1))
    admission.offer("normal", Ticket("b"))
    admission.offer("high", Ticket("a", priority=5))
    assert order(admission) == ["high", "normal", "low"]


def test_zero_is_a_deadline_and_a_limit() -> None:
    admission: FairQueue[str] = FairQueue(0)
    with pytest.raises(FullError):
        admission.offer("a", Ticket())
    admission.offer("b", Ticket(deadline_s=0.0), n_free=1)
    assert admission.expire(0.0) == ["b"]
