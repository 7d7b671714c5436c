"""A real server over a real engine, in a thread with an event loop of its own: clients may be of any kind.

Knows nothing of what is asked of it."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from luce.supervisor import GenerateRequest, Supervisor, SupervisorConfig
from luce.supervisor.http.app import create_app
from luce.supervisor.http.server import listening
from luce.supervisor.http.settings import ServeSettings

START_S = 120.0
CALL_S = 120.0

# For a server whose pool is small, and whose texts may outgrow it.
BOUNDED: dict[str, Any] = {"pool": None, "kvflash": 640, "lanes": 1, "ubatch": 64, "host_cache": 256 << 20}

_Result = TypeVar("_Result")
_SETTINGS = frozenset(entry.name for entry in dataclasses.fields(ServeSettings))


class Server:
    """`url` has no slash at its end. `supervisor`, `app` and `loop` belong to the server's thread: look at them from
    elsewhere (`supervisor.status()`), but act on them with `call`."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        self.settings = ServeSettings(
            **{"port": 0, **{name: value for name, value in options.items() if name in _SETTINGS}}
        )
        engine: dict[str, Any] = {
            "ctx": 4096,
            "pool": 16384,
            "lanes": 4,
            "threads": 1,
            "no_warmup": True,
            "log_level": "warn",
            "restart_delay_s": 0.01,
            "seed": 1,  # requests that bring none say the same each time
        }
        engine |= {name: value for name, value in options.items() if name not in _SETTINGS}
        self.config = SupervisorConfig(**{"model": model, **engine})
        self.url = ""
        self.supervisor: Supervisor
        self.app: web.Application
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> Server:
        self._thread.start()
        self._started.result(START_S)
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        assert not self._thread.is_alive(), "the server does not end"

    def call(self, act: Callable[[], Awaitable[_Result]]) -> _Result:
        """What `act()` gives, awaited in the server's loop."""

        async def run() -> _Result:
            return await act()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(CALL_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Supervisor(self.config) as self.supervisor:
            self.app = await create_app(self.supervisor, self.settings)
            async with listening(self.app, self.settings) as (_, self.url):
                self._started.set_result(None)
                await self._stop.wait()


@contextmanager
def generating(server: Server, n_requests: int, n_prompt: int = 300) -> Iterator[None]:
    """So many long answers under way on the server, until the block is left."""
    tasks: list[asyncio.Task[None]] = []

    async def read(number: int) -> None:
        request = GenerateRequest(
            prompt_ids=[2 + (number * 7 + i) % 8000 for i in range(n_prompt)], max_tokens=3000, ignore_eos=True
        )
        while True:
            async with aclosing(server.supervisor.generate(request)) as events:
                async for _ in events:
                    pass

    async def begin() -> None:
        tasks.extend(asyncio.create_task(read(number)) for number in range(n_requests))

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server.call(begin)
    try:
        yield
    finally:
        server.call(end)
