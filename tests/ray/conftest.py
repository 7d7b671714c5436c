"""Replicas of the packaged model in this process, and an ingress' dispatcher over them: all of luce.ray but Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from luce.ray.dispatcher import Dispatcher
from luce.ray.prefix_digest import PrefixDigest
from luce.ray.replica_book import Question, ReplicaBook
from luce.ray.replica_door import ReplicaDoor
from luce.supervisor import Supervisor, SupervisorConfig
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS

STRIDE = PAGE_TOKENS


@dataclass
class Replica:
    """As Ray's router has one."""

    replica_id: SimpleNamespace
    replica_metadata: dict[str, Any]
    routing_stats: dict[str, Any]
    door: ReplicaDoor

    @property
    def name(self) -> str:
        name: str = self.replica_id.unique_id
        return name

    @property
    def names(self) -> list[bytes]:
        return self.door.supervisor.watch_pages().names(every=STRIDE // PAGE_TOKENS)

    def tell(self) -> None:
        """What Ray asks for each ten seconds."""
        number = self.routing_stats.get("number", 0) + 1
        self.routing_stats = {"number": number, "digest": PrefixDigest.of(self.names).to_text(), "open": {}}

    def die(self) -> None:
        """Its machine is gone, as far as an ingress can see it."""
        for visit in tuple(self.door.visits):
            visit.link.abort()
        self.door.close()


@dataclass
class Site:
    """Replicas by their names, and who sends requests to them."""

    config: SupervisorConfig
    replicas: dict[str, Replica] = field(default_factory=dict)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.book = ReplicaBook(own_name="ingress", stride=STRIDE)
        self.dispatcher = Dispatcher(self.config, self.book, self.choose, name="ingress", stride=STRIDE)

    async def retire(self, name: str) -> None:
        """As a replica that Serve drains ends."""
        replica = self.replicas.pop(name)
        await replica.door.drain(drain_s=0)
        await replica.door.supervisor.presence.leave(ends=True, drain_s=0)
        replica.door.close()

    async def add(self, name: str) -> Replica:
        supervisor = await self.stack.enter_async_context(Supervisor(self.config))
        supervisor.watch_pages()
        door = ReplicaDoor(supervisor)
        port = await door.open("127.0.0.1")
        info = supervisor.status().engines[0].info
        assert info is not None
        metadata = {
            "host": "127.0.0.1",
            "port": port,
            "secret": door.secret.hex(),
            "identity": info.identity,
            "lanes": info.lanes,
        }
        made = self.replicas[name] = Replica(SimpleNamespace(unique_id=name), metadata, {}, door)
        return made

    def close(self) -> None:
        self.dispatcher.close()
        for replica in self.replicas.values():
            replica.door.close()

    async def choose(self, question: Question[Any]) -> tuple[str, Mapping[str, Any]]:
        """As Serve does with what PrefixRouter ranks; without a replica it waits."""
        import random

        while True:
            ranked = question.ranked(list(self.replicas.values()), "price", random.Random(1))
            if ranked:
                return ranked[0].name, ranked[0].replica_metadata
            await asyncio.sleep(0.02)


@pytest.fixture
def config(tiny_model: Path) -> SupervisorConfig:
    return SupervisorConfig(
        model=tiny_model, ctx=4096, pool=8192, lanes=4, threads=1, draft_max=0, log_level="warn", restart_delay_s=0.01
    )


@pytest.fixture
async def site(config: SupervisorConfig) -> AsyncIterator[Site]:
    """Two replicas, `a` and `b`."""
    made = Site(config)
    async with made.stack:
        for name in ("a", "b"):
            await made.add(name)
        try:
            yield made
        finally:
            made.close()
