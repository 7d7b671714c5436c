"""Background: an event loop in a thread of its own, so that the terminal can be read in the main one, where Ctrl-C
arrives, while a server or an engine goes on. Knows nothing of what runs in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_END_S = 10.0  # for what was cancelled


class Background(Generic[T]):
    """Use as a context manager: `open_context` is entered in the loop, and left when this is."""

    def __init__(self, open_context: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open = open_context
        self._opened: Future[T] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="chat")

    def __enter__(self) -> Self:
        """Raises what opening raises."""
        self._thread.start()
        try:
            self.value = self._opened.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, act: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """What `act()` gives. An exception in this thread, such as Ctrl-C's, ends it first."""
        ended = threading.Event()

        async def run() -> R:
            try:
                return await act()
            finally:
                ended.set()

        assert self._loop is not None
        running = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return running.result()
        except BaseException:
            if running.cancel():
                ended.wait(_END_S)
            raise

    def _run(self) -> None:
        try:
            asyncio.run(self._host())
        except BaseException as error:  # noqa: BLE001  whoever waits for the opening is told
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _host(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        if self._is_over:
            return
        async with self._open() as value:
            self._opened.set_result(value)
            await asyncio.Event().wait()  # until it is cancelled

    def _end(self) -> None:
        self._is_over = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
