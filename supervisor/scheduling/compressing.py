"""Compressing: has an engine say what of a prompt matters, and another one where the first dies of it or meanwhile.

It takes no lane. An engine's small model reads one text at a time, so an engine is handed one at a time; prompts of
requests that are to be read in parts go before it. Knows no texts.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from luce.protocol import Compress, ErrorCode, LocalProtocolError
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.generation import Compressed, EngineDied, EngineEndedError, EngineError
from luce.supervisor.requests import (
    DeadlineError,
    EngineFailedError,
    PromptTooLongError,
    QueueFullError,
    RequestRefusedError,
)
from luce.supervisor.scheduling.engine_handle import EngineHandle
from luce.supervisor.scheduling.multiplexer import Multiplexer

_MAX_DEATHS = 2  # of engines while they worked on one text
_RETRY_AFTER_S = 10.0


class Compressing:
    """One for each supervisor."""

    def __init__(self, multiplexer: Multiplexer, config: SupervisorConfig) -> None:
        self._multiplexer = multiplexer
        self._config = config
        # All engines have one, or none has.
        self._has_scorer = config.daemon_config(config.engine_configs()[0]).prefill_scorer is not None
        self._n_begun: Counter[EngineHandle] = Counter()

    async def compress(self, command: Compress) -> Compressed:
        """Raises RequestError."""
        if len(command.prompt) == 0:
            raise RequestRefusedError(ErrorCode.EMPTY_PROMPT, "a text needs at least one token")
        if not self._has_scorer:
            text = "what matters in a text is chosen by a small model: start with one (prefill_scorer)"
            raise RequestRefusedError(ErrorCode.UNSUPPORTED, text)
        n_waiting = self._n_begun.total()
        if n_waiting > self._config.max_queue:  # one of them is at work
            raise QueueFullError(n_waiting, _RETRY_AFTER_S)
        try:
            return await self._compress(command)
        except EngineError as error:
            if error.code == ErrorCode.PROMPT_TOO_LONG:
                raise PromptTooLongError(len(command.prompt), None, error.text) from error
            raise RequestRefusedError(error.code, error.text) from error
        except (LocalProtocolError, ValueError, TypeError) as error:
            raise RequestRefusedError(ErrorCode.BAD_ARGS, str(error)) from error
        except OSError as error:
            text = f"its prompt could not be handed on: {error}"
            raise RequestRefusedError(ErrorCode.IO_ERROR, text) from error

    async def _compress(self, command: Compress) -> Compressed:
        n_deaths = 0
        while True:
            handle = await self._turn()
            try:
                return await handle.compress(command)
            except EngineDied as error:
                n_deaths += not isinstance(error, EngineEndedError)
                if n_deaths == _MAX_DEATHS:
                    raise EngineFailedError(str(error)) from error
            finally:
                handle.compressing.release()
                self._n_begun[handle] -= 1

    async def _turn(self) -> EngineHandle:
        """An engine that is there, its `compressing` held."""
        try:
            async with asyncio.timeout(self._config.queue_timeout_s):
                while True:
                    handle = await self._multiplexer.engine(lambda handle: self._n_begun[handle])
                    if await self._hold(handle):
                        return handle
        except TimeoutError:
            text = f"the request has waited {self._config.queue_timeout_s:g} s for its turn"
            raise DeadlineError(text) from None

    async def _hold(self, handle: EngineHandle) -> bool:
        """False: it has died while others had their turn."""
        self._n_begun[handle] += 1
        try:
            await handle.compressing.acquire()
        except asyncio.CancelledError:
            self._n_begun[handle] -= 1
            raise
        if not handle.is_open:
            handle.compressing.release()
            self._n_begun[handle] -= 1
        return handle.is_open
