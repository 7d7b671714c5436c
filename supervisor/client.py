"""EngineClient: puts requests to one engine process and gives each its own stream of events.

Correlates three things by request id: the command that was sent, the replies on stdout and the records on the token
fd. It must not know which request should run, when to retry, or what text the tokens are.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from luce.protocol import (
    MAX_LINE_BYTES,
    Command,
    End,
    Err,
    ErrorCode,
    Generate,
    GenerateOk,
    LocalProtocolError,
    Logprobs,
    Ping,
    Pong,
    PrefillProgress,
    ProtocolError,
    Reply,
    Status,
    StatusLine,
    format_command,
)
from luce.supervisor.generation import EngineDied, EngineError, Generation
from luce.supervisor.pipes import PipeClosedError
from luce.supervisor.process import EngineProcess, describe_exit
from luce.supervisor.prompt_file import PromptFile

MAX_INLINE_IDS = 1 << 17  # of a prompt that goes on the line itself: 1 MiB or so of it

_MAX_REQUEST_ID = 2**31 - 1
_WRITE_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 1.0


class EngineClient:
    """Speaks to a process that is ready. Use as a context manager around all use; the process stays its owner's."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._generations: dict[int, Generation] = {}
        self._prompt_files: dict[int, PromptFile] = {}  # of generations that have not ended
        self._pings: dict[str, asyncio.Future[None]] = {}
        self._statuses: deque[asyncio.Future[StatusLine]] = deque()  # answered in the order they were asked
        self._counter = itertools.count(1)
        self._readers: list[asyncio.Task[None]] = []
        self._n_ended_channels = 0
        self._all_ended = asyncio.Event()
        self._last_words: str | None = None
        self._death: str | None = None

    async def __aenter__(self) -> Self:
        self._readers = [
            asyncio.create_task(self._read_replies(), name=f"replies of luced {self._process.pid}"),
            asyncio.create_task(self._read_tokens(), name=f"tokens of luced {self._process.pid}"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._die("its client was closed")

    async def generate(self, command: Generate) -> Generation:
        """Start a request; its id is given here. A long prompt goes by a temporary file, which is there until the
        request has ended. Raises EngineDied, LocalProtocolError, or OSError where that file cannot be written."""
        request_id = self._free_id()
        if len(command.prompt) > MAX_INLINE_IDS:
            self._prompt_files[request_id] = file = PromptFile.write(command.prompt)
            command = replace(command, prompt=(), prompt_path=file.path)
        generation = Generation(request_id, self.send)
        self._generations[request_id] = generation
        try:
            await self.send(replace(command, id=request_id))
        except BaseException:
            # It may have arrived all the same: what still comes for this id is dropped.
            self._forget(request_id)
            raise
        return generation

    async def ping(self, timeout_s: float) -> None:
        """Returns when the engine has answered. Raises TimeoutError or EngineDied."""
        word = f"p{next(self._counter)}"
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pings[word] = answered
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(Ping(word))
                await answered
        finally:
            self._pings.pop(word, None)

    async def status(self, timeout_s: float) -> StatusLine:
        """The engine's own figures. Raises TimeoutError or EngineDied."""
        answered: asyncio.Future[StatusLine] = asyncio.get_running_loop().create_future()
        self._statuses.append(answered)  # left in its place when given up: the answer still comes, in order
        async with asyncio.timeout(timeout_s):
            await self.send(Status())
            return await answered

    async def send(self, command: Command) -> None:
        """Send one command. Raises EngineDied, or LocalProtocolError for one that the protocol cannot express."""
        if self._death is not None:
            raise EngineDied(self._death)
        line = format_command(command)
        if len(line) - 1 > MAX_LINE_BYTES:  # the daemon would refuse it without a word of whose it is
            raise LocalProtocolError(
                f"the command has {len(line) - 1:,} bytes, but a line of the protocol {MAX_LINE_BYTES:,} at most:"
                " name a file for its prompt or its grammar"
            )
        try:
            await self._process.write(line, _WRITE_TIMEOUT_S)
        except PipeClosedError:
            raise EngineDied(await self._end_of_process("it has closed its standard input")) from None
        except TimeoutError:
            raise EngineDied(self._die(f"it has not read its commands for {_WRITE_TIMEOUT_S:g} s")) from None

    def _free_id(self) -> int:
        while True:
            request_id = next(self._counter) % _MAX_REQUEST_ID
            if request_id != 0 and request_id not in self._generations:  # 0 is the positional commands' id
                return request_id

    async def _read_replies(self) -> None:
        try:
            while replies := await self._process.next_replies():
                for reply in replies:
                    self._dispatch(reply)
        except ProtocolError as error:
            self._die(f"it broke the protocol: {error}")
            return
        await self._end_of_channel("it has closed its standard output")

    async def _end_of_channel(self, seen: str) -> None:
        # The other channel may still hold the rest of an answer: it is read to its end first.
        self._n_ended_channels += 1
        if self._n_ended_channels == 2:
            self._all_ended.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._all_ended.wait()
        await self._end_of_process(seen)

    async def _end_of_process(self, seen: str) -> str:
        with suppress(TimeoutError):
            await self._process.wait(_END_TIMEOUT_S)
        code = self._process.exit_code
        return self._die(seen if code is None else describe_exit(code))

    async def _read_tokens(self) -> None:
        try:
            while records := await self._process.next_tokens():
                for record in records:
                    generation = self._generations.get(record.id)
                    if generation is None:
                        continue
                    if isinstance(record, End):
                        generation.take_end()
                        self._forget_if_done(generation)
                    else:
                        generation.take_token(record.value)
        except ProtocolError as error:
            self._die(f"it broke the protocol: {error}")
            return
        await self._end_of_channel("it has closed its token descriptor")

    def _dispatch(self, reply: Reply) -> None:
        match reply:
            case PrefillProgress() | Logprobs() | GenerateOk():
                generation = self._generations.get(reply.id) if reply.id is not None else None
                if generation is not None:
                    generation.take_reply(reply)
                    self._forget_if_done(generation)
            case Err():
                self._dispatch_error(reply)
            case Pong():
                answered = self._pings.get(reply.word)
                if answered is not None and not answered.done():
                    answered.set_result(None)
            case StatusLine():
                if self._statuses:
                    waiting = self._statuses.popleft()
                    if not waiting.done():
                        waiting.set_result(reply)
            case _:
                pass  # `[cancel]` and the like: the request's own last event says how it ended

    def _dispatch_error(self, reply: Err) -> None:
        if reply.id is None:
            self._last_words = f"{reply.code}: {reply.text}"  # of the whole engine: it is about to end
            return
        if reply.code is ErrorCode.UNKNOWN_ID:
            return  # the answer to a cancel that came too late
        # The request's last tokens are not waited for: whether a sentinel follows depends on where it was refused.
        generation = self._forget(reply.id)
        if generation is not None:
            generation.fail(EngineError(reply.code, reply.text))

    def _forget_if_done(self, generation: Generation) -> None:
        if generation.done:
            self._forget(generation.id)

    def _forget(self, request_id: int) -> Generation | None:
        file = self._prompt_files.pop(request_id, None)
        if file is not None:
            file.remove()
        return self._generations.pop(request_id, None)

    def _die(self, why: str) -> str:
        """End everything that waits, once; returns why it ended."""
        if self._death is None:
            words = [] if self._last_words is None else [self._last_words]
            tail = self._process.log_tail()[-3:]
            self._death = "\n".join([f"luced (pid {self._process.pid}) is gone: {why}", *words, *tail])
            for request_id in list(self._generations):
                generation = self._forget(request_id)
                assert generation is not None
                generation.fail(EngineDied(self._death))
            waiters: list[asyncio.Future[None] | asyncio.Future[StatusLine]] = [
                *self._pings.values(),
                *self._statuses,
            ]
            for waiting in waiters:
                if not waiting.done():
                    waiting.set_exception(EngineDied(self._death))
                    waiting.exception()  # whoever gave up waiting leaves nothing to complain about
            self._statuses.clear()
        return self._death
