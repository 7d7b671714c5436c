"""ReplicaDoor: a replica's Supervisor for the ingresses that connect to it: requests in, their items out.

Tokens go out in the loop's callback that brings them, those of all requests of a step in one frame. It must not know
Ray.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from luce.ray.link import SECRET_BYTES, GuardedLink, Message
from luce.supervisor.engine.generation import Compressed
from luce.supervisor.requests import GenerateRequest, PrefillEvent, PromptTokenEvent, RequestError
from luce.supervisor.service import Submission
from luce.supervisor.supervisor import Supervisor

STATUS_S = 1.0
_LOOK_S = 1.0
_LOG = logging.getLogger("luce.ray.replica")


class ReplicaDoor:
    """Use `open`, then `close`."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.visits: set[Visit] = set()
        self.is_draining = False
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._telling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looks_until_s = 0.0

    async def open(self, host: str) -> int:
        """Returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Visit(self).link, host, 0)
        self._telling = asyncio.create_task(self._tell(), name="status of a replica")
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def drain(self, drain_s: float) -> None:
        """Ingresses send nothing new; what runs may end for so long, then they have others go on with it."""
        self.is_draining = True
        for visit in self.visits:
            visit.link.send("draining")
        try:
            async with asyncio.timeout(drain_s):
                while any(visit.requests for visit in self.visits):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            n_left = sum(len(visit.requests) for visit in self.visits)
            _LOG.info("%d answers did not end within %g s: other replicas continue them", n_left, drain_s)
        for visit in self.visits:
            visit.hand_over()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in (self._telling, self._looking):
            if task is not None:
                task.cancel()
        for visit in tuple(self.visits):
            visit.link.close()

    def look(self) -> None:
        """A replica is gone: what it remembered may lie on the disk that both have, or in the cache store."""
        self._looks_until_s = time.monotonic() + _LOOK_S
        self._looking = asyncio.create_task(self.supervisor.look_for_files(), name="looking for files")

    async def looked(self) -> None:
        """What goes on here is to find its beginning. A slow disk or store is not waited for."""
        left_s = self._looks_until_s - time.monotonic()
        if left_s > 0 and self._looking is not None and not self._looking.done():
            await asyncio.wait([self._looking], timeout=left_s)

    def note_change(self) -> None:
        self._changed.set()

    async def _tell(self) -> None:
        while True:
            for visit in self.visits:
                visit.link.send("status", self.status())
            await asyncio.sleep(STATUS_S)

    def status(self) -> dict[str, Any]:
        """Without the engines' logs, which are long, and say nothing to clients."""
        status = self.supervisor.status()
        engines = tuple(replace(engine, log_tail=()) for engine in status.engines)
        return {"status": replace(status, engines=engines), "n_ctx": self.supervisor.n_ctx}


class Visit:
    """An ingress that is connected."""

    def __init__(self, door: ReplicaDoor) -> None:
        self._door = door
        self.link = GuardedLink(self._receive, self._lose, secret=door.secret)
        self.name = ""
        self.requests: dict[int, _Served] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hand_over(self) -> None:
        """What runs goes on elsewhere."""
        for number, served in tuple(self.requests.items()):
            served.cancel()
            self.link.send("moved", number)

    def _receive(self, message: Message) -> None:
        match message:
            case ("hello", name):
                self.name = name
                self._door.visits.add(self)
                self.link.send("status", self._door.status())
                if self._door.is_draining:
                    self.link.send("draining")
                else:
                    self._door.look()  # replicas may have gone of which this one has not heard
            case ("submit", number, request, prompt):
                served = self.requests[number] = _Served(self, number)
                self._run(served.run(self._door, replace(request, prompt_ids=prompt)))
            case ("end", number):
                if (known := self.requests.get(number)) is not None:
                    known.end()
            case ("cancel", number):
                if (known := self.requests.get(number)) is not None:
                    known.cancel()
            case ("look",):
                self._door.look()
            case ("ask", number, what, arguments):
                self._run(self._answer(number, what, arguments))
            case _:
                _LOG.error("unknown message from an ingress: %.80r", message[:1])

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, what: str, arguments: dict[str, Any]) -> None:
        try:
            self.link.send("answer", number, await self._ask(what, arguments))
        except RequestError as error:
            self.link.send("refused", number, *failure_parts(error))

    async def _ask(self, what: str, arguments: dict[str, Any]) -> Compressed | list[dict[str, str]]:
        if what == "compress":
            return await self._door.supervisor.compress(**arguments)
        assert what == "engine_status", what
        return await self._door.supervisor.engine_status(**arguments)

    def _lose(self) -> None:
        """Nobody reads what it asked for."""
        self._door.visits.discard(self)
        for task in tuple(self._tasks):
            task.cancel()

    def forget(self, number: int) -> None:
        self.requests.pop(number, None)
        self._door.note_change()


class _Served:
    """One request of an ingress."""

    def __init__(self, visit: Visit, number: int) -> None:
        self._visit = visit
        self._number = number
        self._submission: Submission | None = None
        self._is_enough = False
        self.has_read = False

    def end(self) -> None:
        self._is_enough = True
        if self._submission is not None:
            self._submission.end()

    def cancel(self) -> None:
        self._visit.forget(self._number)
        if self._submission is not None:
            self._submission.close()

    @property
    def n_unread(self) -> int:
        return 0 if self.has_read or self._submission is None else self._submission.n_prompt

    async def run(self, door: ReplicaDoor, request: GenerateRequest) -> None:
        send, number = self._visit.link.send, self._number
        try:
            await door.looked()
            self._submission = submission = await door.supervisor.submit(request)
            try:
                if number not in self._visit.requests:  # cancelled meanwhile
                    return
                if self._is_enough:
                    submission.end()
                send("accepted", number)
                while items := await submission.take(self._show):
                    self.has_read = self.has_read or not isinstance(items[-1], PrefillEvent | PromptTokenEvent)
                    send("items", number, items)
            finally:
                submission.close()
        except RequestError as error:
            if number in self._visit.requests:
                send("failed", number, *failure_parts(error))
        finally:
            self._visit.forget(number)

    def _show(self, tokens: Sequence[int]) -> bool:
        self.has_read = True
        self._visit.link.send("tokens", self._number, tokens)
        return True


def failure_parts(error: RequestError) -> tuple[type[RequestError], tuple[object, ...], dict[str, object]]:
    """As it can travel: its class may be made of other arguments than its text."""
    return type(error), error.args, dict(vars(error))


def failure_of(kind: type[RequestError], arguments: tuple[object, ...], attributes: dict[str, object]) -> RequestError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    vars(error).update(attributes)
    return error
