"""FairQueue: who waits, who is next, who has waited too long. Pure.

A bounded queue. Higher priorities first; among equals the client that has had least, so that one with a hundred
requests does not starve one with a single one; within a client, first come, first served. It must not know engines.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ticket:
    """What admission has to know of one request."""

    client: str = ""
    priority: int = 0
    cost: float = 1.0  # in tokens: what its client is charged for it
    deadline_s: float | None = None  # of its waiting, on the caller's clock


MAX_IDLE_CLIENTS = 4096
"""Of which it is remembered what they have had, though nothing of theirs waits or runs."""


class FullError(Exception):
    """No more may wait."""


class FairQueue(Generic[T]):
    """REQUIRES: an item waits once at a time, and what `next` has given is settled once."""

    def __init__(self, n_max: int) -> None:
        self._n_max = n_max
        self._tickets: dict[T, Ticket] = {}
        # priority -> client -> its items, oldest first
        self._queues: dict[int, dict[str, OrderedDict[T, None]]] = {}
        self._n_running: Counter[str] = Counter()  # of each client: given by `next`, not settled
        # What each client has had, in tokens, never less than what the last one served had: idleness saves nothing up.
        self._had: dict[str, float] = {}
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._tickets)

    def offer(self, item: T, ticket: Ticket, n_free: int = 0) -> None:
        """`n_free` of those that wait are about to leave. Raises FullError."""
        if len(self._tickets) >= self._n_max + n_free:
            raise FullError
        self._tickets[item] = ticket
        clients = self._queues.setdefault(ticket.priority, {})
        clients.setdefault(ticket.client, OrderedDict())[item] = None
        self._had[ticket.client] = max(self._had.get(ticket.client, 0.0), self._level)

    def next(self, accept: Callable[[T], bool]) -> T | None:
        """Take out the first item in order that `accept` takes, and charge its client."""
        for item in self._in_order():
            if accept(item):
                ticket = self._tickets[item]
                self._level = max(self._level, self._had[ticket.client])
                self._had[ticket.client] += ticket.cost
                self._n_running[ticket.client] += 1
                self._remove(item)
                return item
        return None

    def settle(self, ticket: Ticket, cost: float) -> None:
        """An item that `next` gave has ended: what it cost, in place of what its ticket said."""
        client = ticket.client
        self._had[client] = max(self._had[client] + cost - ticket.cost, self._level)
        self._n_running[client] -= 1
        if self._n_running[client] == 0:
            del self._n_running[client]
        self._forget_clients()

    def remove(self, item: T) -> bool:
        """Its caller is gone. Returns whether it was waiting."""
        if item not in self._tickets:
            return False
        self._remove(item)
        return True

    def expire(self, now_s: float) -> list[T]:
        """Take out those whose time to wait is over."""
        late = [
            item
            for item, ticket in self._tickets.items()
            if ticket.deadline_s is not None and ticket.deadline_s <= now_s
        ]
        for item in late:
            self._remove(item)
        return late

    def clear(self) -> list[T]:
        """Take out all, in order."""
        items = list(self._in_order())
        for item in items:
            self._remove(item)
        return items

    def check_integrity(self) -> None:
        """Asserts what only a bug of ours can break."""
        queued = [item for clients in self._queues.values() for queue in clients.values() for item in queue]
        assert len(queued) == len(set(queued)) == len(self._tickets)
        assert set(queued) == set(self._tickets)
        assert all(queue for clients in self._queues.values() for queue in clients.values())
        assert self._active() <= set(self._had)
        assert len(self._had) <= MAX_IDLE_CLIENTS + len(self._tickets) + len(self._n_running)

    def _in_order(self) -> Iterator[T]:
        for priority in sorted(self._queues, reverse=True):
            clients = self._queues[priority]
            for client in sorted(clients, key=self._had.__getitem__):
                yield from clients[client]

    def _remove(self, item: T) -> Ticket:
        ticket = self._tickets.pop(item)
        clients = self._queues[ticket.priority]
        queue = clients[ticket.client]
        del queue[item]
        if not queue:
            del clients[ticket.client]
        if not clients:
            del self._queues[ticket.priority]
        self._forget_clients()
        return ticket

    def _active(self) -> set[str]:
        return {ticket.client for ticket in self._tickets.values()} | set(self._n_running)

    def _forget_clients(self) -> None:
        if not self._tickets and not self._n_running:
            # Nobody waits or runs: what was had in the past is no longer held against anyone.
            self._had.clear()
            self._level = 0.0
        elif len(self._had) > MAX_IDLE_CLIENTS + len(self._tickets) + len(self._n_running):
            active = self._active()
            idle = sorted(self._had.keys() - active, key=self._had.__getitem__, reverse=True)
            kept = (*active, *idle[: MAX_IDLE_CLIENTS // 2])  # who has had least loses least by it
            self._had = {client: self._had[client] for client in kept}
