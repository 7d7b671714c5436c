"""ReplicaLinks: an ingress' connections, one to each replica that Ray has, and what replicas say of themselves.

Connects as replicas come and notices when they go: a connection that is closed, or over which nothing comes for long.
It must not know what requests are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from luce.ray.link import Link, Message
from luce.supervisor.supervisor_status import SupervisorStatus

_CONNECT_S = 5.0
_SILENT_S = 15.0
_RETRY_S = 10.0
_LOG = logging.getLogger("luce.ray.ingress")


class LinkListener(Protocol):
    def replica_said(self, replica: ReplicaLink, message: Message) -> None: ...

    def replica_lost(self, replica: ReplicaLink) -> None:
        """Nothing more comes from it."""


class ReplicaLink:
    """One replica, connected."""

    def __init__(self, key: str, metadata: Mapping[str, Any], listener: LinkListener, lose: Callable[[], None]) -> None:
        self.key = key
        self.metadata = metadata
        self.status: SupervisorStatus | None = None
        self.n_ctx: int | None = None
        self.is_draining = False
        self._listener = listener
        self._lose = lose
        self.link = Link(self._receive, self._note_loss, shown=bytes.fromhex(metadata["secret"]))

    @property
    def identity(self) -> str:
        identity: str = self.metadata["identity"]
        return identity

    def _receive(self, message: Message) -> None:
        match message:
            case ("status", said):
                self.status, self.n_ctx = said["status"], said["n_ctx"]
            case ("draining",):
                self.is_draining = True
            case _:
                self._listener.replica_said(self, message)

    def _note_loss(self) -> None:
        self._lose()
        self._listener.replica_lost(self)


class ReplicaLinks:
    """Cancel the task that runs `watch` and call `close` at the end."""

    def __init__(self, name: str, listener: LinkListener) -> None:
        self._name = name
        self._listener = listener
        self._links: dict[str, ReplicaLink] = {}
        self._connecting: dict[str, asyncio.Task[ReplicaLink]] = {}
        self._lost: dict[str, float] = {}
        """Replicas that are gone, and when, as long as Ray has them: one that was only stopped may answer again."""

    def __iter__(self) -> Any:
        return iter(tuple(self._links.values()))

    @property
    def unwanted(self) -> frozenset[str]:
        """Those that are to get nothing new."""
        return frozenset(self._lost.keys() | {link.key for link in self if link.is_draining})

    async def get(self, key: str, metadata: Mapping[str, Any]) -> ReplicaLink:
        """Raises OSError where it does not answer; it is lost then."""
        if (known := self._links.get(key)) is not None:
            return known
        if key in self._lost:
            raise ConnectionRefusedError(f"replica {key} is gone")
        if key not in self._connecting:
            task = asyncio.create_task(self._connect(key, metadata))
            self._connecting[key] = task
            task.add_done_callback(lambda _: self._connecting.pop(key, None))
        return await asyncio.shield(self._connecting[key])

    async def keep(self, offered: Mapping[str, Mapping[str, Any]]) -> None:
        """Connects to those that Ray has, and gives up those that say nothing any more."""
        now_s = asyncio.get_running_loop().time()
        for link in self:
            if now_s - link.link.heard_s > _SILENT_S:
                _LOG.warning("replica %s was silent for %g s and counts as lost", link.key, _SILENT_S)
                link.link.abort()
        for key, since_s in tuple(self._lost.items()):
            if key not in offered or now_s - since_s > _RETRY_S:
                del self._lost[key]
        missing = [key for key in offered if key not in self._links and key not in self._lost]
        await asyncio.gather(*(self.get(key, offered[key]) for key in missing), return_exceptions=True)

    def close(self) -> None:
        for link in self:
            link.link.close()

    async def _connect(self, key: str, metadata: Mapping[str, Any]) -> ReplicaLink:
        made = ReplicaLink(key, metadata, self._listener, lambda: self._note_loss(key))
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: made.link, metadata["host"], metadata["port"]
                )
            if not made.link.is_open:
                raise ConnectionResetError("it has closed the connection")
        except OSError as error:
            self._note_loss(key)
            _LOG.warning("replica %s at %s:%s: %s", key, metadata["host"], metadata["port"], str(error) or "no answer")
            raise
        made.link.send("hello", self._name)
        self._links[key] = made
        return made

    def _note_loss(self, key: str) -> None:
        self._links.pop(key, None)
        self._lost[key] = asyncio.get_running_loop().time()
