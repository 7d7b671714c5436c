"""Supervisor: puts the parts together: monitors, a multiplexer over their engines, the service. The embedder's door.

Owns everything that runs; leaving it leaves nothing behind. Knows no policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from luce.protocol import Compress, ErrorCode, LocalProtocolError, PinSpan, ReadingArgs
from luce.supervisor.cache_store.cache_store import CacheStore
from luce.supervisor.cache_store.shared_folders import adopt_what_has_come
from luce.supervisor.config import EngineConfig, SupervisorConfig
from luce.supervisor.embedding.model import EmbeddingModel, Input, Relevance, TextVector
from luce.supervisor.engine.generation import Compressed, EngineDied, EngineError
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.engine.locate import find_luced
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.engine.process import StartError
from luce.supervisor.engine_checks import check_engines
from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.prefix_cache.page_names import page_names
from luce.supervisor.prefix_cache.prefix_index import pack, unpack
from luce.supervisor.requests import EngineFailedError, GenerateRequest, RequestEvent, RequestRefusedError
from luce.supervisor.scheduling.compressing import Compressing
from luce.supervisor.scheduling.engine_handle import EngineHandle, LastText
from luce.supervisor.scheduling.idle_sleep import IdleSleep
from luce.supervisor.scheduling.image_ids import ImageIds
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.multiplexer import Multiplexer
from luce.supervisor.scheduling.presence import Presence, PresenceState
from luce.supervisor.scheduling.prices import EnginePrices
from luce.supervisor.scheduling.reading_policy import ReadingPolicy
from luce.supervisor.scheduling.remembered_texts import TextListing
from luce.supervisor.scheduling.text_files import SavedText
from luce.supervisor.service import Service, Submission
from luce.supervisor.supervisor_status import EngineStatus, LaneStatus, SupervisorStatus
from luce.supervisor.text_side import TextSide

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel

_Answer = TypeVar("_Answer")


class Supervisor:
    """One model behind one or more engines, for any asyncio program. Use as a context manager.

    Entering it waits until an engine is ready; raises StartError when none can be started, or a draft does not fit its
    model, NotInstalledError when there is no luced, ConfigError when its engines have different models. `on_log` gets
    each line of the engines' logs. With `starts` false it is entered without an engine: requests wait until
    `presence.come()`.
    """

    def __init__(
        self, config: SupervisorConfig, *, on_log: Callable[[str], None] | None = None, starts: bool = True
    ) -> None:
        self.config = config
        self._starts = starts
        self.model = config.daemon_config(config.engine_configs()[0]).model  # of the first engine, and so of all
        self._text = TextSide(self.model)
        self._on_log = on_log
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._monitors: list[EngineMonitor] = []
        self._embedding: EmbeddingModel | None = None
        self._reranker: EmbeddingModel | None = None
        self._multiplexer = Multiplexer(config, [])
        self._service = Service(self._multiplexer, self._text)
        self._projector = config.daemon_config(config.engine_configs()[0]).mmproj
        self._reading = ReadingPolicy.of(config.daemon_config(config.engine_configs()[0]))
        self._images = ImageIds()
        self._compressing = Compressing(self._multiplexer, config)
        self._presence: Presence | None = None
        self._cache_store: CacheStore | None = None

    @property
    def presence(self) -> Presence:
        """Whether the engines are there, and how they leave and come back. REQUIRES: it has been entered."""
        assert self._presence is not None
        return self._presence

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise RuntimeError("a Supervisor is entered once")
        engines = await asyncio.to_thread(self._engines_with_drafts, asyncio.get_running_loop())
        self._monitors = [
            EngineMonitor(f"engine {number}", engine.binary or self._binary(), self.config, engine, on_log=self._on_log)
            for number, engine in enumerate(engines)
        ]
        self._multiplexer = Multiplexer(self.config, self._monitors)
        self._service = Service(self._multiplexer, self._text)
        self._compressing = Compressing(self._multiplexer, self.config)
        self._cache_store = await asyncio.to_thread(CacheStore.of, self.config, self._multiplexer)
        self._presence = Presence(self._multiplexer, self._monitors, is_here=self._starts)
        self._embedding = self._open_embedding("embedding", self.config.embedding_config())
        self._reranker = self._open_embedding("rerank", self.config.rerank_config())
        if not self._starts:
            for monitor in self._monitors:
                monitor.forbid()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        try:
            self._tasks = [
                self._group.create_task(monitor.run(self._multiplexer), name=monitor.name) for monitor in self._monitors
            ]
            for model in self._embedding_models:
                task = model.monitor.run(model.queue)
                self._tasks.append(self._group.create_task(task, name=model.monitor.name))
            if self.config.sleep_idle_s is not None:
                sleep = IdleSleep(self._multiplexer.handles, self.config.sleep_idle_s)
                self._tasks.append(self._group.create_task(sleep.run(), name="who sleeps"))
            if self._cache_store is not None:
                self._service.on_submit = self._cache_store.note
                self._tasks.append(self._group.create_task(self._cache_store.run(), name="the cache store"))
            await self._wait_until_ready()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        assert self._group is not None
        self._multiplexer.close()
        self.presence.close()
        for model in self._embedding_models:
            model.queue.close()
        for task in self._tasks:
            task.cancel()
        try:
            # The group waits; what was raised in the caller's own block is not its business.
            await self._group.__aexit__(None, None, None)
            if self._cache_store is not None:
                await self._cache_store.write_rest()
        finally:
            self._text.close()
            for model in self._embedding_models:
                model.close()

    def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestEvent, None]:
        """The events of one request: TokenEvents (and PrefillEvents before), FinishedEvent last.

        The request is cancelled when the iterator is left early (with `contextlib.aclosing`, or when it is dropped) or
        its task is cancelled. The death of an engine is not seen but as a pause. Raises RequestError.
        """
        return self._service.generate(request)

    async def submit(self, request: GenerateRequest) -> Submission:
        """The same in two steps: when this returns the request has its place in the queue, or RequestError was raised.
        The submission has to be closed."""
        return await self._service.submit(request)

    async def compress(
        self,
        tokens: Sequence[int],
        share: float,
        *,
        keep: Sequence[tuple[int, int]] = (),
        blocks: Sequence[tuple[int, int]] = (),
    ) -> Compressed:
        """The parts of a text that matter most to its end, so that about so large a share of it is left (above 0, at
        most 1): its beginning, its end and what `keep` names in any case, each of `blocks` whole or not at all. Both
        name positions, from the first up to before the second. It is chosen by the engine's small model
        (`prefill_scorer`); nothing is generated. An engine that dies meanwhile is not seen but as a pause, once.
        Cancelling the task that waits ends it. Raises RequestError."""
        command = Compress(share, tuple(tokens), keep=_spans(keep), blocks=_spans(blocks))
        async with self.presence.errand():
            return await self._compressing.compress(command)

    async def embed(self, inputs: Sequence[Input]) -> list[TextVector]:
        """The vector of each text (or list of ids), in their order, by the embedding model. Raises RequestError,
        TextError."""
        return await self.embedding_model().embed(inputs)

    async def rerank(self, query: str, documents: Sequence[str]) -> list[Relevance]:
        """How well each document fits the query, in their order. Raises RequestError, TextError."""
        return await self.reranker().rerank(query, documents)

    def embedding_model(self) -> EmbeddingModel:
        """Raises RequestRefusedError: `unsupported` without one."""
        if self._embedding is None:
            raise RequestRefusedError(ErrorCode.UNSUPPORTED, "there is no embedding model: give one (embedding_model)")
        return self._embedding

    def reranker(self) -> EmbeddingModel:
        """Raises RequestRefusedError: `unsupported` without one."""
        if self._reranker is None:
            raise RequestRefusedError(ErrorCode.UNSUPPORTED, "there is no reranker: give one (rerank_model)")
        return self._reranker

    async def park(self) -> None:
        """Every engine gives the device's memory back, weights included, until `unpark` or the next request; texts
        stay in host memory. Raises RequestRefusedError: `busy` while requests run, `unsupported`
        while the model is away."""
        self._require_here()
        for handle in self._multiplexer.handles:
            with suppress(EngineDied):  # then it has none
                await _told(handle.park())

    async def unpark(self) -> None:
        """Take it again. A request does so by itself. Raises RequestRefusedError: `out_of_memory`,
        `unsupported`."""
        self._require_here()
        for handle in self._multiplexer.handles:
            with suppress(EngineDied):
                if (answered := handle.unpark()) is not None:
                    await _told(answered)

    def _require_here(self) -> None:
        if self.presence.state is not PresenceState.HERE:
            text = (
                f"the model is {self.presence.state.value}: models take turns, and a request brings it when it is due"
            )
            raise RequestRefusedError(ErrorCode.UNSUPPORTED, text)

    async def texts(self) -> list[TextListing | None]:
        """What each engine remembers, in the order of `status().engines`; None for one that is not there. Raises
        RequestRefusedError."""
        return [await self._texts_of(handle) for handle in self._multiplexer.handles]

    async def _texts_of(self, handle: EngineHandle) -> TextListing | None:
        try:
            return await _told(handle.texts())
        except EngineDied:
            return None

    async def hold_text(self, engine: int, page: str, *, on: bool) -> None:
        """Keep the text that ends with this page of an engine (`texts`) from leaving memory, or no longer. Raises
        RequestRefusedError, EngineFailedError."""
        await self._of_text(engine, lambda handle: handle.hold_text(page, on=on))

    async def forget_text(self, engine: int, page: str) -> None:
        """Drop what the run that ends with this page holds, and all behind it, from the disk too. Raises
        RequestRefusedError (`busy`: something is in use and stays), EngineFailedError."""
        await self._of_text(engine, lambda handle: handle.forget_text(page))

    def watch_pages(self) -> HeldPages:
        """Which pages the engines hold, and where: they report it from now on, those that are started later too."""
        for handle in self._multiplexer.handles:
            handle.watch_pages()
        return self._multiplexer.held_pages

    @property
    def prices(self) -> EnginePrices:
        """What reading and answering have cost lately, on all engines together."""
        return EnginePrices.merged(handle.prices for handle in self._multiplexer.handles)

    async def _of_text(self, engine: int, act: Callable[[EngineHandle], Awaitable[None]]) -> None:
        handles = self._multiplexer.handles
        if not 0 <= engine < len(handles):
            raise RequestRefusedError(ErrorCode.BAD_ARGS, f"there is no engine {engine}")
        try:
            await _told(act(handles[engine]))
        except EngineDied as error:
            raise EngineFailedError(str(error)) from error

    def parts_from(self, reading: ReadingArgs) -> int | None:
        """From so many tokens on a prompt of such a request may be read in parts; None: each is read whole."""
        return self._reading.parts_from(reading, self.n_ctx)

    @property
    def has_scorer(self) -> bool:
        """Whether there is a small model that says what of a prompt matters (`prefill_scorer`)."""
        return self.config.daemon_config(self.config.engine_configs()[0]).prefill_scorer is not None

    @property
    def has_images(self) -> bool:
        """Whether prompts may hold images (`mmproj`)."""
        return self._projector is not None

    async def image_ids(self, file: ImageFile, salt: int | None = None) -> tuple[int, ...]:
        """What stands in a prompt for an image; `salt`: of that prompt. Raises RequestRefusedError (`bad_image`,
        `unsupported`, …), EngineFailedError."""
        async with self.presence.errand():
            return await self._images.ids(file, salt, self._multiplexer.handles)

    async def save(self, tokens: Sequence[int], path: Path) -> SavedText:
        """Write what an engine has computed of a text into a file, which appears whole or not at all; what it does not
        know of it is computed first. Raises RequestRefusedError, EngineFailedError."""
        async with self.presence.errand():
            return await self._save(tokens, path)

    async def _save(self, tokens: Sequence[int], path: Path) -> SavedText:
        key, held = pack(tokens), self._multiplexer.held_pages

        def n_pages(handle: EngineHandle) -> int:
            names = () if handle.info is None else page_names(key, handle.info.identity)
            return held.n_first(handle.monitor.name, names)

        handles = [handle for handle in self._multiplexer.handles if handle.is_open]
        if not handles:
            raise EngineFailedError("there is no engine now")
        try:
            return await _told(max(handles, key=n_pages).save_text(tokens, _absolute(path)))
        except EngineDied as error:
            raise EngineFailedError(str(error)) from error

    async def load(self, path: Path) -> int:
        """Read such a file into every engine: a prompt that begins with its text goes on from there, until its memory
        is needed for others. Returns the length of the text. Raises RequestRefusedError, EngineFailedError."""
        lengths = []
        async with self.presence.errand():
            for handle in self._multiplexer.handles:
                with suppress(EngineDied):
                    lengths.append(await _told(handle.load_text(_absolute(path))))
        if not lengths:
            raise EngineFailedError("there is no engine now")
        return lengths[0]

    def lane_text(self, lane: int) -> Sequence[int]:
        """The tokens that a lane computed last, counted through all engines; none if nobody waited for them. The last
        token of an answer is sampled, and not computed."""
        last = self._last_texts(lane)
        return () if last is None else (*unpack(last[0].prompt), *last[0].answer[:-1])

    def forget_lane(self, lane: int) -> int:
        """Its text is no lane's any more, and keeps its memory only until that is needed. Returns the text's length."""
        n_tokens = len(self.lane_text(lane))
        if (last := self._last_texts(lane)) is not None:
            del last[1][last[2]]
        return n_tokens

    def _last_texts(self, lane: int) -> tuple[LastText, dict[int, LastText], int] | None:
        for handle in self._multiplexer.handles:
            if lane < handle.n_lanes:
                last = handle.last_texts.get(lane)
                return None if last is None else (last, handle.last_texts, lane)
            lane -= handle.n_lanes
        return None

    @property
    def n_ctx(self) -> int | None:
        """Tokens that a text may have, its prompt included: the roomiest engine's. None: no engine has said it."""
        limits = [self._multiplexer.handle(monitor).n_ctx for monitor in self._monitors]
        return max((limit for limit in limits if limit is not None), default=None)

    def engine_pids(self) -> list[int]:
        """Of the engines that run now."""
        return [monitor.pid for monitor in self._monitors if monitor.pid is not None]

    async def look_for_files(self) -> None:
        """Those that other servers have put into the same disk cache since the engines began, or into the same cache
        store of late, are found by the next prompt."""
        await adopt_what_has_come(self._multiplexer.handles)
        if self._cache_store is not None:
            await self._cache_store.list_now()

    async def text(self) -> TextModel:
        """The model's vocabulary and chat template, opened on first use, which may be before an engine is there. It is
        the supervisor's: do not close it. Raises TextError."""
        return await self._text.get()

    def status(self) -> SupervisorStatus:
        """How things stand; costs nothing."""
        totals = self._multiplexer.totals
        return SupervisorStatus(
            engines=tuple(self._engine_status(monitor) for monitor in self._monitors),
            n_waiting=self._multiplexer.n_waiting,
            n_requests=totals.n_requests,
            n_finished=totals.n_finished,
            n_failed=totals.n_failed,
            n_cancelled=totals.n_cancelled,
            n_resumes=totals.n_resumes,
            n_tokens=totals.n_tokens,
            n_moves=totals.n_moves,
            n_failed_moves=totals.n_failed_moves,
            n_moved_tokens=totals.n_moved_tokens,
            n_moved_bytes=totals.n_moved_bytes,
            embeddings=tuple(model.status() for model in self._embedding_models),
            cache_stores=() if self._cache_store is None else (self._cache_store.status(),),
        )

    def _engine_status(self, monitor: EngineMonitor) -> EngineStatus:
        handle = self._multiplexer.handle(monitor)
        slots = handle.slots
        return EngineStatus(
            name=monitor.name,
            state=monitor.state,
            pid=monitor.pid,
            n_deaths=monitor.n_deaths,
            lanes=handle.n_lanes,
            n_running=len(handle.attempts),
            running=tuple(
                _lane_status(attempt, attempt.in_flight)
                for attempt in sorted(handle.attempts, key=lambda attempt: attempt.id)
                if attempt.in_flight is not None
            ),
            slots=0 if handle.info is None else handle.info.slots,
            n_slots_used=0 if slots is None else slots.n_used,
            slot_bytes_used=0 if slots is None else slots.bytes_used,
            slowest_step_s=monitor.slowest_step_s,
            last_failure=None if monitor.last_failure is None else str(monitor.last_failure),
            load_percent=monitor.load_percent,
            log_tail=tuple(monitor.log_tail()[-20:]),
            info=handle.info,
            is_parked=handle.is_parked,
        )

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]:
        """Each engine's own figures, as PROTOCOL.md names them, in the order of `status().engines`; an empty dict for
        one that is not there, or does not answer within `timeout_s`."""
        return await asyncio.gather(*(monitor.engine_status(timeout_s) for monitor in self._monitors))

    async def _wait_until_ready(self) -> None:
        """Returns when the first engine is ready and every other one has been tried once."""
        if not self._starts:
            return
        errors = await asyncio.gather(*(monitor.next_start for monitor in self._monitors))
        failures = [error for error in errors if error is not None]
        if len(failures) == len(errors):
            raise failures[0]
        for model in self._embedding_models:
            error = await model.monitor.next_start
            if error is not None:
                raise StartError(f"{model.name}_model: {error}", error.exit_code)

    @property
    def _embedding_models(self) -> list[EmbeddingModel]:
        return [model for model in (self._embedding, self._reranker) if model is not None]

    def _open_embedding(self, name: str, config: SupervisorConfig | None) -> EmbeddingModel | None:
        if config is None:
            return None
        monitor = EngineMonitor(name, self._binary(), config, EngineConfig(), on_log=self._on_log)
        return EmbeddingModel(name, config, monitor)

    def _engines_with_drafts(self, loop: asyncio.AbstractEventLoop) -> list[EngineConfig]:
        """Each with the file of its draft, which may have to be converted first. In a thread; raises StartError,
        ConfigError."""
        check_engines(self.config)

        def on_convert(text: str) -> None:
            if self._on_log is not None:
                loop.call_soon_threadsafe(self._on_log, text)

        engines = []
        found: dict[tuple[Path, Path], Path] = {}
        for engine in self.config.engine_configs():
            config = self.config.daemon_config(engine)
            if config.draft is None:
                engines.append(engine)
                continue
            pair = (config.draft, config.model)
            if pair not in found:
                found[pair] = _draft_file(*pair, on_convert)
            options = {**engine.options, "draft": found[pair]}
            engines.append(EngineConfig(environment=engine.environment, binary=engine.binary, **options))
        return engines

    def _binary(self) -> Path:
        return find_luced() if self.config.binary is None else self.config.binary


async def _told(answer: Awaitable[_Answer]) -> _Answer:
    """What an engine refuses, as embedders hear of it."""
    try:
        return await answer
    except EngineError as error:
        raise RequestRefusedError(error.code, error.text) from error
    except LocalProtocolError as error:
        raise RequestRefusedError(ErrorCode.BAD_ARGS, str(error)) from error


def _spans(named: Sequence[tuple[int, int]]) -> tuple[PinSpan, ...]:
    return tuple(PinSpan(begin, end) for begin, end in named)


def _absolute(path: Path) -> str:
    return str(path.absolute())


def _lane_status(attempt: Attempt, in_flight: InFlightRequest) -> LaneStatus:
    n_prompt = in_flight.n_prompt
    n_read = min(attempt.n_read, n_prompt) if attempt.is_reading else n_prompt
    return LaneStatus(n_prompt=n_prompt, n_read=n_read, n_generated=len(in_flight.tokens))


def _draft_file(draft: Path, model: Path, on_convert: Callable[[str], None]) -> Path:
    from luce.supervisor.models.drafts import DraftError, resolve_draft

    try:
        return resolve_draft(draft, model, on_convert=on_convert)
    except DraftError as error:
        raise StartError(f"draft: {error}") from error
