"""ReplicaBook: what an ingress knows of each replica: what it told of itself, and what it was sent since.

A Question is what a router is asked with: a prompt's names and the book. All of it is touched in the ingress' event
loop alone. It must not know how requests travel.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from luce.ray.prefix_digest import PrefixDigest
from luce.supervisor.scheduling.router import Candidate, by_price, by_two_choices

Choice = Literal["price", "two_choices"]
_MAX_SENT_NAMES = 1 << 16
_MAX_SESSIONS = 1 << 14


class Offered(Protocol):
    """A replica as Ray's router has it."""

    @property
    def replica_id(self) -> Any: ...

    @property
    def routing_stats(self) -> dict[str, Any]: ...

    @property
    def replica_metadata(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=Offered)


@dataclass(slots=True)
class OpenRequest:
    names: Sequence[bytes]
    n_unread: int


@dataclass(slots=True)
class _Page:
    """Of the book: one replica."""

    stats: Mapping[str, Any] = field(default_factory=dict)
    digest: PrefixDigest | None = None
    sent: OrderedDict[bytes, int] = field(default_factory=OrderedDict)
    """Names of what it was sent, and which digest is the last that cannot have them."""
    n_digest: int = 0
    requests: dict[int, OpenRequest] = field(default_factory=dict)

    def knows(self, name: bytes) -> bool:
        return name in self.sent or (self.digest is not None and name in self.digest)


class ReplicaBook:
    def __init__(self, *, own_name: str = "", stride: int) -> None:
        """`own_name`: under which replicas tell of this ingress' own requests."""
        self._own_name = own_name
        self._stride = stride
        self._pages: dict[str, _Page] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self.offered: Mapping[str, Mapping[str, Any]] = {}
        """Of the replicas that Ray has now, by their ids: where they listen."""

    def note_offered(self, replicas: Iterable[Offered]) -> None:
        """What Ray knows of them now."""
        seen = {}
        for replica in replicas:
            key = replica.replica_id.unique_id
            seen[key] = replica.replica_metadata
            self._note_stats(self._pages.setdefault(key, _Page()), replica.routing_stats)
        self.offered = seen
        for key in [key for key, page in self._pages.items() if key not in seen and not page.requests]:
            del self._pages[key]

    def _note_stats(self, page: _Page, stats: Mapping[str, Any]) -> None:
        number = stats.get("number", 0)
        if number == page.stats.get("number", 0):
            return
        page.stats = stats
        page.digest = PrefixDigest.from_text(stats["digest"])
        # What was sent before the last digest but one was made is in this one, if it is still held.
        for name in [name for name, since in page.sent.items() if since < page.n_digest]:
            del page.sent[name]
        page.n_digest += 1

    def begin(self, key: str, request: int, names: Sequence[bytes], n_prompt: int, session: str) -> None:
        """The replica is sent a request."""
        page = self._pages.setdefault(key, _Page())
        page.requests[request] = OpenRequest(names, max(n_prompt - self._n_held(page, names), 0))
        self._note_sent(page, names)
        if session:
            self._sessions[session] = key
            self._sessions.move_to_end(session)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)

    def has_read(self, key: str, request: int) -> None:
        """Its first token has come."""
        if (page := self._pages.get(key)) is not None and request in page.requests:
            page.requests[request].n_unread = 0

    def end(self, key: str, request: int, names: Sequence[bytes] = ()) -> None:
        """`names`: of the whole text, its answer too."""
        if (page := self._pages.get(key)) is not None:
            page.requests.pop(request, None)
            self._note_sent(page, names)

    def forget(self, key: str) -> None:
        """It is gone, and all that it knew."""
        self._pages.pop(key, None)

    def _note_sent(self, page: _Page, names: Sequence[bytes]) -> None:
        for name in names:
            page.sent[name] = page.n_digest
            page.sent.move_to_end(name)
        while len(page.sent) > _MAX_SENT_NAMES:
            page.sent.popitem(last=False)

    def _n_held(self, page: _Page, names: Sequence[bytes]) -> int:
        for number, name in enumerate(names):
            if not page.knows(name):
                return number * self._stride
        return len(names) * self._stride

    def candidate(self, replica: R, question: Question[R]) -> Candidate[R]:
        key = replica.replica_id.unique_id
        page = self._pages.setdefault(key, _Page())
        others: Mapping[str, Sequence[int]] = page.stats.get("open", {})
        foreign = [counts for name, counts in others.items() if name != self._own_name]
        return Candidate(
            taker=replica,
            n_held=self._n_held(page, question.names(replica.replica_metadata.get("identity", ""))),
            n_open=len(page.requests) + sum(n_open for n_open, _ in foreign),
            n_lanes=max(replica.replica_metadata.get("lanes", 1), 1),
            n_unread=sum(request.n_unread for request in page.requests.values()) + sum(n for _, n in foreign),
            read_s=page.stats.get("read_s"),
            answer_s=page.stats.get("answer_s", 1.0),
            is_home=question.session != "" and self._sessions.get(question.session) == key,
        )


@dataclass(frozen=True, slots=True)
class Question(Generic[R]):
    """Which replica is to read this prompt?"""

    book: ReplicaBook
    names: Callable[[str], Sequence[bytes]] = lambda _: ()
    """Of the prompt's beginnings of a stride, two strides and so on, in the memory of engines of an identity."""
    n_prompt: int = 0
    session: str = ""
    excluded: frozenset[str] = frozenset()
    """Replicas that are gone, or are not to be asked again."""

    def ranked(self, replicas: Sequence[R], choice: Choice, draw: random.Random) -> list[R]:
        self.book.note_offered(replicas)
        candidates = [
            self.book.candidate(replica, self)
            for replica in replicas
            if replica.replica_id.unique_id not in self.excluded
        ]
        return by_two_choices(candidates, draw) if choice == "two_choices" else by_price(candidates, self.n_prompt)
