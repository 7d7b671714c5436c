"""EngineClient: puts requests to one engine process and gives each its own stream of events.

Correlates three things by request id: the command that was sent, the replies on stdout and the records on the token
fd. It must not know which request should run, when to retry, or what text the tokens are.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from luce.protocol import (
    MAX_LINE_BYTES,
    SENTINEL,
    Adopted,
    Cancel,
    Command,
    Compress,
    CompressOk,
    DescribeImage,
    Embed,
    Embedding,
    Err,
    ErrorCode,
    FilesLine,
    FreeSlot,
    Generate,
    GenerateOk,
    ImageDescribed,
    InlineSnapshot,
    InlineSnapshotFailed,
    LocalProtocolError,
    Logprobs,
    MemoryCommand,
    OutOfMemory,
    PagesLine,
    Parked,
    Ping,
    PlainOk,
    Pong,
    PoolSize,
    PrefillProgress,
    Probed,
    PromptLogprobs,
    ProtocolError,
    RemoteProtocolError,
    Reply,
    SlotFreed,
    SlotSaved,
    SnapshotTaken,
    Status,
    StatusLine,
    TextCommand,
    TextsLine,
    UnknownLine,
    Unparked,
    format_command,
)
from luce.supervisor.engine.generation import (
    Compressed,
    Compression,
    DeathCause,
    EngineDied,
    EngineError,
    Generation,
    Receiver,
    cause_of_exit,
)
from luce.supervisor.engine.pipes import PipeClosedError
from luce.supervisor.engine.process import EngineProcess, describe_exit
from luce.supervisor.engine.prompt_file import PromptFile

_Generating = TypeVar("_Generating", Generate, Compress)
MemoryReply = (
    Parked | Unparked | SnapshotTaken | SlotSaved | SlotFreed | PlainOk | ImageDescribed | TextsLine | FilesLine
    | Adopted | Probed
)  # fmt: skip

MAX_INLINE_IDS = 1 << 12  # of a prompt that goes on the line itself: numbers of more take longer to write than a file

_MAX_REQUEST_ID = 2**31 - 1
_WRITE_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 1.0

# What a newer daemon may say: everything that is not a final reply begins with its name in brackets.
_NEW_LINE = re.compile(r"\[[a-z_]+\]( |\Z)")


class EngineClient:
    """Speaks to a process that is ready. Use as a context manager around all use; the process stays its owner's."""

    def __init__(
        self,
        process: EngineProcess,
        *,
        n_vocab: int | None = None,
        on_death: Callable[[EngineDied], None] | None = None,
    ) -> None:
        """`n_vocab`: a token beyond it breaks the protocol. `on_death` is called once, when the engine is found gone,
        before its requests hear of it."""
        self._process = process
        self._n_vocab = _MAX_REQUEST_ID if n_vocab is None else n_vocab
        self._on_death = on_death
        self._receivers: dict[int, Receiver] = {}
        self._prompt_files: dict[int, PromptFile] = {}  # of generations that have not ended
        self._pings: dict[str, asyncio.Future[None]] = {}
        self._statuses: deque[asyncio.Future[StatusLine]] = deque()  # answered in the order they were asked
        self._calls: dict[int, asyncio.Future[MemoryReply]] = {}
        self._embeddings: dict[int, asyncio.Future[Embedding]] = {}
        self._counter = itertools.count(1)
        self._readers: list[asyncio.Task[None]] = []
        self._n_ended_channels = 0
        self._all_ended = asyncio.Event()
        self._last_words: str | None = None
        self._last_id = 0
        self.death: EngineDied | None = None
        self.n_pool: int | None = None
        self.shortage: str | None = None  # why it ends, if memory has run out
        """Tokens of the engine's pool, once it has become smaller than the ready line says."""
        self.on_pages: Callable[[PagesLine], None] = lambda _: None
        self.n_heard = 0
        """How often anything has come from the engine."""
        self.n_moved = 0
        """How often a request has."""

    async def __aenter__(self) -> Self:
        self._readers = [asyncio.create_task(self._read_replies(), name=f"replies of luced {self._process.pid}")]
        self._process.listen_to_tokens(self._take_tokens)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.declare_dead("its client was closed", DeathCause.CLOSED)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def generate(self, command: Generate) -> Generation:
        """Start a request; its id is given here. A long prompt goes by a temporary file, which is there until the
        request has ended. Raises EngineDied, LocalProtocolError, or OSError where that file cannot be written."""
        request_id = self._free_id()
        generation = Generation(request_id, self.send)
        command = self._register(command, request_id, generation)
        try:
            await self.send(command)
        except BaseException:
            # It may have arrived all the same: what still comes for this id is dropped.
            self._forget(request_id)
            raise
        return generation

    async def compress(self, command: Compress) -> Compressed:
        """What would be read of a prompt; its id is given here. The engine is told when nobody waits any more. Raises
        EngineError, EngineDied, LocalProtocolError, or OSError where the file of a long prompt cannot be written."""
        compression = Compression()
        compression.result.add_done_callback(_note_failure)
        request_id = self.start(command, compression)
        try:
            return await compression.result
        except asyncio.CancelledError:
            with suppress(EngineDied):
                self.post(Cancel(id=request_id))
            raise

    def start(self, command: _Generating, receiver: Receiver) -> int:
        """`generate` for a receiver of the caller's own, without waiting until the engine reads. Returns the id."""
        request_id = self._free_id()
        command = self._register(command, request_id, receiver)
        try:
            self.post(command)
        except BaseException:
            self._forget(request_id)
            raise
        return request_id

    def _register(self, command: _Generating, request_id: int, receiver: Receiver) -> _Generating:
        if len(command.prompt) > MAX_INLINE_IDS:
            self._prompt_files[request_id] = file = PromptFile.write(command.prompt)
            command = replace(command, prompt=(), prompt_path=file.path)
        self._receivers[request_id] = receiver
        return replace(command, id=request_id)

    async def ping(self, timeout_s: float) -> None:
        """Returns when the engine has answered. Raises TimeoutError or EngineDied."""
        word, answered = self._new_ping()
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(Ping(word))
                await answered
        finally:
            self._pings.pop(word, None)

    def post_ping(self) -> asyncio.Future[None]:
        """A ping without waiting, done when it is answered. Raises EngineDied."""
        word, answered = self._new_ping()
        self.post(Ping(word))
        return answered

    def _new_ping(self) -> tuple[str, asyncio.Future[None]]:
        word = f"p{next(self._counter)}"
        self._pings[word] = asyncio.get_running_loop().create_future()
        return word, self._pings[word]

    async def status(self, timeout_s: float) -> StatusLine:
        """The engine's own figures. Raises TimeoutError or EngineDied."""
        answered: asyncio.Future[StatusLine] = asyncio.get_running_loop().create_future()
        self._statuses.append(answered)  # left in its place when given up: the answer still comes, in order
        async with asyncio.timeout(timeout_s):
            await self.send(Status())
            return await answered

    def post_embed(self, command: Embed) -> tuple[int, asyncio.Future[Embedding]]:
        """Send a text without waiting; its id is given here. Done with its vector, or with EngineError or EngineDied.
        Raises as `send` does, or OSError where the file of a long text cannot be written."""
        request_id = self._free_id()
        answered: asyncio.Future[Embedding] = asyncio.get_running_loop().create_future()
        if len(command.prompt) > MAX_INLINE_IDS:
            file = PromptFile.write(command.prompt)
            answered.add_done_callback(lambda _: file.remove())
            command = replace(command, prompt=(), prompt_path=file.path)
        self._embeddings[request_id] = answered
        answered.add_done_callback(_note_failure)
        try:
            self.post(replace(command, id=request_id))
        except BaseException:
            self._embeddings.pop(request_id, None)  # its death has told all of them
            answered.cancel()
            raise
        return request_id, answered

    def post_call(self, command: MemoryCommand | TextCommand | DescribeImage) -> asyncio.Future[MemoryReply]:
        """Send a command about slots, weights, caches or images without waiting; its id is given here. Done with the
        reply, or with EngineError or EngineDied. Raises as `send` does."""
        request_id = self._free_id()
        line = replace(command, id=request_id)
        answered: asyncio.Future[MemoryReply] = asyncio.get_running_loop().create_future()
        self._calls[request_id] = answered
        answered.add_done_callback(_note_failure)
        try:
            self.post(line)
        except BaseException:
            self._calls.pop(request_id, None)
            raise
        return answered

    async def send(self, command: Command) -> None:
        """Send one command. Raises EngineDied, or LocalProtocolError for one that the protocol cannot express."""
        line = self._line_of(command)
        try:
            await self._process.write(line, _WRITE_TIMEOUT_S)
        except PipeClosedError:
            raise await self._end_of_process("it has closed its standard input") from None
        except TimeoutError:
            why = f"it has not read its commands for {_WRITE_TIMEOUT_S:g} s"
            raise self.declare_dead(why, DeathCause.HUNG) from None

    def post(self, command: Command) -> None:
        """Send one command without waiting until the engine reads; whether it still does is for its watchdog to judge.
        Raises as `send` does."""
        line = self._line_of(command)
        try:
            self._process.post(line)
        except PipeClosedError:
            raise self.declare_dead("it has closed its standard input", DeathCause.ENDED) from None

    def _line_of(self, command: Command) -> bytes:
        if self.death is not None:
            raise EngineDied(str(self.death), self.death.cause)
        line = format_command(command)
        if len(line) - 1 > MAX_LINE_BYTES:  # the daemon would refuse it without a word of whose it is
            raise LocalProtocolError(
                f"the command has {len(line) - 1:,} bytes, but a line of the protocol {MAX_LINE_BYTES:,} at most:"
                " name a file for its prompt or its grammar"
            )
        return line

    def post_free(self, slot: int) -> None:
        """Give a slot back, without waiting. Raises EngineDied."""
        self.post(FreeSlot(slot, id=self._free_id()))

    def _free_id(self) -> int:
        while True:
            request_id = next(self._counter) % _MAX_REQUEST_ID
            # 0 is the positional commands' id.
            taken = (self._receivers, self._calls, self._embeddings)
            if request_id != 0 and not any(request_id in ids for ids in taken):
                self._last_id = max(self._last_id, request_id)
                return request_id

    async def _read_replies(self) -> None:
        try:
            while replies := await self._process.next_replies():
                self.n_heard += 1
                for reply in replies:
                    self._dispatch(reply)
        except ProtocolError as error:
            self.declare_dead(f"it broke the protocol: {error}", DeathCause.BROKE_PROTOCOL)
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

    async def _end_of_process(self, seen: str) -> EngineDied:
        with suppress(TimeoutError):
            await self._process.wait(_END_TIMEOUT_S)
        code = self._process.exit_code
        return self.declare_dead(seen if code is None else describe_exit(code), cause_of_exit(code))

    def _take_tokens(self, records: Iterator[tuple[int, int]] | None) -> None:
        """Called by the loop itself: whoever waits for tokens is the next that runs, or runs at once."""
        if self.death is not None:
            return  # the rest is for nobody
        if records is None:
            end = self._end_of_channel("it has closed its token descriptor")
            self._readers.append(asyncio.create_task(end, name=f"end of the tokens of luced {self._process.pid}"))
            return
        self.n_heard += 1
        self.n_moved += 1
        try:
            self._hand_out(records)
        except ProtocolError as error:
            self.declare_dead(f"it broke the protocol: {error}", DeathCause.BROKE_PROTOCOL)

    def _hand_out(self, records: Iterator[tuple[int, int]]) -> None:
        n_vocab = self._n_vocab
        runs: dict[int, list[int]] = {}
        for request_id, value in records:
            if 0 <= value < n_vocab:
                run = runs.get(request_id)
                if run is None:
                    runs[request_id] = [value]
                else:
                    run.append(value)
            elif value == SENTINEL:
                self._hand_run(request_id, runs.pop(request_id, ()))
                receiver = self._receivers.get(request_id)
                if receiver is not None:
                    receiver.take_end()
                    self._forget_if_done(request_id, receiver)
            else:
                raise RemoteProtocolError(f"token record with id {request_id} and value {value}")
        for request_id, run in runs.items():
            self._hand_run(request_id, run)

    def _hand_run(self, request_id: int, tokens: Sequence[int]) -> None:
        receiver = self._receivers.get(request_id)
        if receiver is None:
            if not 0 <= request_id <= self._last_id:
                raise RemoteProtocolError(f"token record with id {request_id}, which was never given")
        elif tokens:
            receiver.take_tokens(tokens)

    def _dispatch(self, reply: Reply) -> None:
        match reply:
            case (
                PrefillProgress()
                | Logprobs()
                | PromptLogprobs()
                | InlineSnapshot()
                | InlineSnapshotFailed()
                | GenerateOk()
            ):
                self.n_moved += 1
                receiver = self._receivers.get(reply.id) if reply.id is not None else None
                if receiver is not None and reply.id is not None:
                    receiver.take_reply(reply)
                    self._forget_if_done(reply.id, receiver)
            case CompressOk():
                self._end_compression(reply)
            case Err():
                self._dispatch_error(reply)
            case Pong():
                self._end_ping(reply)
            case _ if isinstance(reply, MemoryReply):
                self._end_call(reply)
            case Embedding():
                self._end_embedding(reply)
            case PoolSize() | OutOfMemory() | PagesLine():
                self._note_memory(reply)
            case StatusLine():
                self._note_status(reply)
            case UnknownLine():
                if _NEW_LINE.match(reply.text) is None:
                    raise RemoteProtocolError(f"reply line {reply.text[:80]!r}")
            case _:
                pass  # `[cancel]` and the like: the request's own last event says how it ended

    def _end_ping(self, reply: Pong) -> None:
        answered = self._pings.pop(reply.word, None)
        if answered is not None and not answered.done():
            answered.set_result(None)

    def _end_compression(self, reply: CompressOk) -> None:
        self.n_moved += 1
        receiver = self._receivers.get(reply.id) if reply.id is not None else None
        if receiver is None or reply.id is None:
            return
        if not isinstance(receiver, Compression):
            raise RemoteProtocolError(f"request {reply.id} did not ask to compress")
        receiver.take_parts(reply)
        self._forget_if_done(reply.id, receiver)

    def _end_call(self, reply: MemoryReply) -> None:
        called = self._calls.pop(reply.id, None) if reply.id is not None else None
        if called is not None and not called.done():
            called.set_result(reply)

    def _end_embedding(self, reply: Embedding) -> None:
        self.n_moved += 1
        answered = self._embeddings.pop(reply.id, None)
        if answered is not None and not answered.done():
            answered.set_result(reply)

    def _note_status(self, reply: StatusLine) -> None:
        if self._statuses:
            waiting = self._statuses.popleft()
            if not waiting.done():
                waiting.set_result(reply)

    def _note_memory(self, reply: PoolSize | OutOfMemory | PagesLine) -> None:
        if isinstance(reply, PoolSize):
            self.n_pool = reply.n_tokens
        elif isinstance(reply, PagesLine):
            self.on_pages(reply)
        else:
            self.shortage = reply.reason

    def _dispatch_error(self, reply: Err) -> None:
        if reply.id is None:
            self._last_words = f"{reply.code}: {reply.text}"  # of the whole engine: it is about to end
            return
        if reply.code is ErrorCode.UNKNOWN_ID:
            return  # the answer to a cancel that came too late
        # The request's last tokens are not waited for: whether a sentinel follows depends on where it was refused.
        called = self._calls.pop(reply.id, None) or self._embeddings.pop(reply.id, None)
        if called is not None and not called.done():
            called.set_exception(EngineError(reply.code, reply.text))
        receiver = self._forget(reply.id)
        if receiver is not None:
            self.n_moved += 1
            receiver.fail(EngineError(reply.code, reply.text))

    def _forget_if_done(self, request_id: int, receiver: Receiver) -> None:
        if receiver.done:
            self._forget(request_id)

    def _forget(self, request_id: int) -> Receiver | None:
        file = self._prompt_files.pop(request_id, None)
        if file is not None:
            file.remove()
        return self._receivers.pop(request_id, None)

    def declare_dead(self, why: str, cause: DeathCause) -> EngineDied:
        """End everything that waits, once; returns how it ended. The process is its owner's to end."""
        if self.death is None:
            words = [] if self._last_words is None else [self._last_words]
            tail = self._process.log_tail()[-3:]
            text = "\n".join([f"luced (pid {self._process.pid}) is gone: {why}", *words, *tail])
            self.death = EngineDied(text, cause)
            if self._on_death is not None:
                self._on_death(self.death)
            for request_id in list(self._receivers):
                receiver = self._forget(request_id)
                assert receiver is not None
                receiver.fail(EngineDied(text, cause))
            waiters: list[asyncio.Future[Any]] = [*self._pings.values(), *self._statuses, *self._calls.values()]
            waiters += self._embeddings.values()
            for waiting in waiters:
                if not waiting.done():
                    waiting.set_exception(EngineDied(text, cause))
                    _note_failure(waiting)
            self._statuses.clear()
            self._pings.clear()
            self._calls.clear()
            self._embeddings.clear()
        return self.death


def _note_failure(waiting: asyncio.Future[Any]) -> None:
    """Retrieves the exception of a future that nobody awaits, so that asyncio does not warn."""
    if not waiting.cancelled():
        waiting.exception()
