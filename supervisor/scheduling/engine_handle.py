"""EngineHandle: one engine's place in the multiplexer: what runs on it, what it holds, what it can take.

Open while there is an engine; what an engine knew is gone with it. It decides what is asked of the engine's memory
(marks, snapshots) and keeps account of its slots; which request runs is not its business.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from luce.protocol import (
    MAX_MARKS,
    Command,
    Compress,
    DescribeImage,
    ErrorCode,
    ForgetText,
    HoldText,
    ImageDescribed,
    ListTexts,
    MemoryArgs,
    PagesLine,
    Park,
    PinSpan,
    SnapshotPoint,
    TextsLine,
    Unpark,
    WatchPages,
)
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.engine.client import EngineClient, MemoryReply
from luce.supervisor.engine.disk_files import DiskFiles
from luce.supervisor.engine.generation import Compressed, EngineDied, EngineError
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.engine.info import EngineInfo
from luce.supervisor.engine.monitor import EngineMonitor
from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.prefix_cache.page_changes import parse_change
from luce.supervisor.prefix_cache.page_names import TOKEN_BYTES
from luce.supervisor.prefix_cache.prefix_index import common_tokens, pack
from luce.supervisor.prefix_cache.slots import Reservation, SlotBudget, SlotTable
from luce.supervisor.requests import GenerateRequest
from luce.supervisor.scheduling.engine_texts import EngineTexts, KnownText
from luce.supervisor.scheduling.in_flight_request import Attempt, InFlightRequest
from luce.supervisor.scheduling.prices import EnginePrices
from luce.supervisor.scheduling.reading_policy import ReadingPolicy
from luce.supervisor.scheduling.remembered_texts import MAX_TEXTS, TextListing, TextRun, parse_listing
from luce.supervisor.scheduling.text_files import SavedText, load_text, save_ended, save_slot, save_text

_LOG = logging.getLogger("luce.scheduling")


@dataclass(frozen=True, slots=True)
class LastText:
    prompt: bytes
    """Four bytes a token."""
    answer: tuple[int, ...]


class EngineHandle:
    def __init__(self, monitor: EngineMonitor, config: SupervisorConfig, held: HeldPages, *, several: bool) -> None:
        """`held`: hears of this engine's pages. `several`: there are other engines."""
        self.monitor = monitor
        self._config = config
        self._reading = ReadingPolicy.of(monitor.daemon_config)
        self._held = held
        self._reports_pages = several
        self._texts = EngineTexts(monitor.name, held) if several else None
        self.prices = EnginePrices()
        self._client: EngineClient | None = None
        self.info: EngineInfo | None = None
        """Of the last engine, also while there is none."""
        self.attempts: set[Attempt] = set()
        self.slots: SlotTable | None = None
        self._reservations: dict[int, dict[int, Reservation]] = {}  # request id -> slot -> what is on its way
        self.is_reserved = False
        """It is to become empty: nothing new starts."""
        self.is_held = False
        """It leaves the device, or has left it: nothing starts until it is back."""
        self.is_parked = False
        """It has given its memory back; the next request takes it again."""
        self.idle_since_s = time.monotonic()
        self._file_slot: int | None = None
        self._file_lock = asyncio.Lock()
        self.compressing = asyncio.Lock()
        """Held by whoever has it compress a text."""
        self._lanes: dict[Attempt, int] = {}
        self.last_texts: dict[int, LastText] = {}
        """By lane: what ran there last. Of requests that nobody waited for to their end there is nothing."""
        self.disk_files: DiskFiles | None = None
        """Of its disk cache; None: there is no engine now, or no disk cache."""

    @property
    def is_open(self) -> bool:
        return self._client is not None

    @property
    def is_here(self) -> bool:
        return self.is_open and not self.is_held

    @property
    def n_lanes(self) -> int:
        return 0 if self.info is None else self.info.lanes

    @property
    def n_ctx(self) -> int | None:
        return None if self.info is None else self.info.ctx

    @property
    def hosts_alone(self) -> bool:
        return any(attempt.is_alone for attempt in self.attempts)

    @property
    def n_free(self) -> int:
        """Requests that could start now."""
        if not self.is_here or self.is_reserved or self.hosts_alone:
            return 0
        return max(self.n_lanes - len(self.attempts), 0)

    def open(self, client: EngineClient, info: EngineInfo) -> None:
        self._client = client
        self.info = info
        self.disk_files = DiskFiles(client) if info.disk_bytes > 0 else None
        self.slots = None
        self.note_use()
        self._ask_for_pages()
        self._file_slot = info.slots - 1 if info.slots > 1 else None  # texts go to files and come back through it
        if info.slots > 0 and info.page_bytes is not None:
            limit = self._config.slot_budget
            self.slots = SlotTable(
                SlotBudget(
                    n_slots=info.slots if self._file_slot is None else self._file_slot,
                    n_bytes=info.slot_bytes if limit is None else min(limit, info.slot_bytes),
                    page_tokens=info.page_tokens,
                    page_bytes=info.page_bytes,
                    tail_bytes=info.tail_bytes,
                    half_life_s=self._config.pin_half_life_s,
                )
            )

    def close(self) -> list[Attempt]:
        """The engine is gone; returns what ran on it."""
        attempts = list(self.attempts)
        self.attempts.clear()
        self._lanes.clear()
        self._reservations.clear()
        self._client = self.disk_files = None
        self.is_parked = False
        self.slots = None
        self.is_reserved = False
        if self._texts is not None:
            self._texts.clear()
        self._held.lose(self.monitor.name)
        if self._texts is not None:
            self._texts.clear()
        return attempts

    def start(self, attempt: Attempt, in_flight: InFlightRequest) -> None:
        """Raises EngineDied, LocalProtocolError or OSError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        self.unpark()
        in_parts = self.may_read_parts(in_flight.request, in_flight.n_prompt)
        memory, reservations = self._memory_args(in_flight, in_parts=in_parts)
        try:
            reading = self._reading.told(in_flight.request, in_parts=in_parts)
            attempt.id = self._client.start(in_flight.command(memory, reading), attempt)
        except BaseException:
            self._abort(reservations)
            raise
        self.attempts.add(attempt)
        taken = set(self._lanes.values())
        self._lanes[attempt] = next(lane for lane in itertools.count() if lane not in taken)
        if reservations:
            self._reservations[attempt.id] = reservations
        self.monitor.wake()

    def remove(self, attempt: Attempt) -> None:
        """The engine has ended it."""
        if attempt in self.attempts:
            self.attempts.remove(attempt)
            self.note_use()
            lane = self._lanes.pop(attempt)
            if attempt.in_flight is not None:
                self.last_texts[lane] = LastText(attempt.in_flight.prompt, tuple(attempt.in_flight.tokens))
                if not attempt.is_reading:
                    self._note_ended(attempt.id, attempt.in_flight)
            self._abort(self._reservations.pop(attempt.id, {}))

    def post(self, command: Command) -> None:
        """To an engine that may be gone."""
        if self._client is not None:
            with suppress(EngineDied):
                self._client.post(command)

    def note_use(self) -> None:
        self.idle_since_s = time.monotonic()

    async def park(self) -> None:
        """Give its memory back, weights included; texts are kept in the host. Raises EngineDied, EngineError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        if self.is_parked:
            return
        self.is_parked = True
        try:
            await self._client.post_call(Park())
        except EngineError:
            self.is_parked = False
            raise

    def unpark(self) -> asyncio.Future[MemoryReply] | None:
        """Take the memory again, without waiting: the engine does as it is told in its order, so that a request may
        follow at once. Nothing, if it has it. Raises EngineDied."""
        if not self.is_parked or self._client is None:
            return None
        self.is_parked = False
        answered = self._client.post_call(Unpark())
        answered.add_done_callback(self._note_unparked)
        return answered

    def _note_unparked(self, answered: asyncio.Future[MemoryReply]) -> None:
        self.note_use()  # it is idle from now on, not since it went
        error = None if answered.cancelled() else answered.exception()
        if isinstance(error, EngineError):
            self.is_parked = True  # the next request tries again
            _LOG.warning("%s cannot load its model again: %s", self.monitor.name, error.text)

    async def save_text(self, tokens: Sequence[int], path: str) -> SavedText:
        """Raises EngineDied, EngineError, LocalProtocolError."""
        async with self._file_lock:
            self.unpark()
            return await save_text(*self._for_files(), tokens, path)

    async def load_text(self, path: str) -> int:
        """Raises EngineDied, EngineError, LocalProtocolError."""
        async with self._file_lock:
            return await load_text(*self._for_files(), path)

    async def image_ids(self, file: ImageFile, salt: int | None) -> tuple[int, ...]:
        """Raises EngineDied, EngineError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        self.unpark()
        reply = await self._client.post_call(DescribeImage(file.path, salt=salt))
        assert isinstance(reply, ImageDescribed)
        return reply.ids

    async def compress(self, command: Compress) -> Compressed:
        """REQUIRES: the caller holds `compressing`. Raises EngineDied, EngineError, LocalProtocolError or OSError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        self.unpark()
        try:
            return await self._client.compress(command)
        finally:
            self.note_use()

    async def texts(self) -> TextListing:
        """What it remembers. Raises EngineDied, EngineError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        fields: dict[str, str] = {}
        runs: list[TextRun] = []
        while not fields or len(runs) < min(int(fields["total"]), MAX_TEXTS):
            reply = await self._client.post_call(ListTexts(first=len(runs)))
            assert isinstance(reply, TextsLine)
            fields = dict(reply.fields)
            listed = parse_listing(fields)
            if not listed.runs:
                break
            runs += listed.runs
        return TextListing(int(fields["total"]), int(fields["short"]), tuple(runs[:MAX_TEXTS]))

    async def hold_text(self, page: str, *, on: bool) -> None:
        """Raises EngineDied, EngineError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        await self._client.post_call(HoldText(page, on))

    async def forget_text(self, page: str) -> None:
        """Which slot holds which page only the engine knows, so all slots are given up: they keep memory from making
        room, and hold nothing else. Raises EngineDied, EngineError."""
        if self._client is None:
            raise EngineDied("there is no engine")
        for slot in self.slots.give_up_all() if self.slots is not None else ():
            self._free(slot)
        await self._client.post_call(ForgetText(page))

    def watch_pages(self) -> None:
        """Have it report its pages, from those that it holds now on."""
        if not self._reports_pages:
            self._reports_pages = True
            self._ask_for_pages()

    def _ask_for_pages(self) -> None:
        if not self._reports_pages or self._client is None or self.info is None or self.info.page_bytes is None:
            return

        def hear(line: PagesLine) -> None:
            self._held.change(self.monitor.name, list(map(parse_change, line.pages)), begins_anew=line.begins_anew)
            if self._texts is not None:
                self._texts.note_report()

        self._client.on_pages = hear
        with suppress(EngineDied):
            self._client.post_call(WatchPages())

    # What another engine may be given

    def _note_ended(self, request_id: int, in_flight: InFlightRequest) -> None:
        """The last token of an answer is sampled, and not computed."""
        if self._texts is None or self._leaves_gaps(in_flight):
            return  # a file does not say what is left out
        self._texts.note_ended(in_flight.key + pack(in_flight.tokens[:-1]), request_id)

    def known_text(self, in_flight: InFlightRequest) -> KnownText | None:
        """The longest beginning of its prompt that can be written down now."""
        info = self.info
        if self._texts is None or info is None or info.page_bytes is None or not info.reuses or self._file_slot is None:
            return None
        if self.is_parked or self._leaves_gaps(in_flight):
            return None
        ended = self._texts.longest_ended(in_flight.key, self.n_held(in_flight))
        slot = None if self.slots is None else self.slots.longest(in_flight.key, time.monotonic())
        n_tokens = max(ended.n_tokens if ended else 0, slot.n_tokens if slot else 0)
        if n_tokens == 0:
            return None
        n_bytes = -(-n_tokens // info.page_tokens) * info.page_bytes + info.tail_bytes
        if ended is not None and ended.n_tokens == n_tokens:
            return KnownText(n_tokens, n_bytes, of=ended.value, slot=None)
        assert slot is not None
        return KnownText(n_tokens, n_bytes, of=None, slot=slot.value)

    async def save_known(self, known: KnownText, path: str) -> SavedText:
        """Raises EngineDied, EngineError, LocalProtocolError."""
        async with self._file_lock:
            client, file_slot = self._for_files()
            if known.of is not None:
                return await save_ended(client, file_slot, known.of, path)
            assert known.slot is not None
            return await save_slot(client, known.slot, known.n_tokens, path)

    def _for_files(self) -> tuple[EngineClient, int]:
        self.note_use()
        if self._client is None:
            raise EngineDied("there is no engine")
        if self._file_slot is None:
            raise EngineError(ErrorCode.UNSUPPORTED, "texts need two slots at least to become files (--slots)")
        return self._client, self._file_slot

    def n_held(self, in_flight: InFlightRequest) -> int:
        """How many tokens of its text's start this engine has, or is reading."""
        if self._texts is None or self.info is None or not self.info.reuses:
            return 0
        running = [attempt.in_flight for attempt in self.attempts if attempt.in_flight is not None]
        being_read = [other.key for other in running if other.request.reuse and not self._leaves_gaps(other)]
        return self._texts.n_held(in_flight.key, in_flight.page_names(self.info.identity), being_read)

    def is_reading_what(self, asked: InFlightRequest) -> bool:
        """Whether somebody is reading so much of the same prefix that waiting for it beats reading it twice."""
        if self.info is None or not self.info.reuses or not asked.request.reuse:
            return False  # there is nothing to wait for
        key = asked.key
        n_least = max(self._config.share_min_tokens, 1)
        prefix = key[: n_least * TOKEN_BYTES]
        if len(prefix) < n_least * TOKEN_BYTES:
            return False
        for attempt in self.attempts:
            in_flight = attempt.in_flight
            if in_flight is None or not attempt.is_reading or not in_flight.key.startswith(prefix):
                continue
            if self._leaves_gaps(in_flight) and not (in_flight.key == key and self._leaves_gaps(asked)):
                continue  # what stands behind a gap is found by those alone that leave out the same
            n_useful = self._n_useful(in_flight, common_tokens(in_flight.key, key))
            if n_useful >= n_least and n_useful > attempt.n_read:
                return True
        return False

    def may_read_parts(self, request: GenerateRequest, n_prompt: int) -> bool:
        return self._reading.may_read_parts(request, n_prompt, self.n_ctx)

    def _leaves_gaps(self, in_flight: InFlightRequest) -> bool:
        return self.may_read_parts(in_flight.request, in_flight.n_prompt)

    def _n_useful(self, in_flight: InFlightRequest, n_common: int) -> int:
        """Of so many tokens that another text shares with this one, how many it can go on from once they are read."""
        if self.info is None or self.info.tail_bytes == 0:
            return n_common
        # A model with state goes on from its tails only: where the one that reads marks them.
        request = in_flight.request
        return max((mark for mark in (*request.boundaries, *request.marks) if mark <= n_common), default=0)

    # The engine's memory

    def note_snapshot(self, attempt: Attempt, slot: int, *, taken: bool) -> None:
        """What became of a snapshot that the attempt asked for."""
        reservation = self._reservations.get(attempt.id, {}).pop(slot, None)
        if reservation is None or self.slots is None:
            return
        if taken:
            self.slots.confirm(reservation, time.monotonic())
        else:
            self.slots.abort(reservation)

    def _memory_args(self, in_flight: InFlightRequest, *, in_parts: bool) -> tuple[MemoryArgs, dict[int, Reservation]]:
        """Marks where later prompts may part from this one, and a slot for the first and the last beginning of a
        message: what all conversations share, and what this one goes on from. Slots hold what was read whole."""
        pins = tuple(PinSpan(begin, end) for begin, end in in_flight.request.pin)
        if self.info is None or self.info.page_bytes is None:
            return MemoryArgs(pins=pins), {}  # it knows neither
        request = in_flight.request
        bounds = sorted({mark for mark in request.boundaries if 0 < mark <= in_flight.n_prompt})
        within = {mark for mark in request.marks if 0 < mark < in_flight.n_prompt}
        marks = sorted(within.union(bounds))[-MAX_MARKS:]
        reservations = {} if in_parts else self._reserve(in_flight, set(bounds[:1] + bounds[-1:]))
        points = tuple(SnapshotPoint(entry.n_tokens, slot) for slot, entry in sorted(reservations.items()))
        reuse = None if in_flight.request.reuse else False
        turn = request.turn if request.turn is not None and 0 < request.turn < in_flight.n_prompt else None
        salt = request.salt
        memory = MemoryArgs(
            marks=tuple(marks),
            turn=turn,
            snapshots=points,
            pins=pins,
            reuse=reuse,
            salt=None if salt is None else salt.value,
            salt_from=None if salt is None else salt.begin,
        )
        return memory, reservations

    def _reserve(self, in_flight: InFlightRequest, positions: set[int]) -> dict[int, Reservation]:
        slots = self.slots  # gone from here if the engine dies while it is told what to free
        if slots is None:
            return {}
        now_s = time.monotonic()
        slots.longest(in_flight.key, now_s)  # what it goes on from is in use
        reservations = {}
        for position in sorted(positions):
            if position < self._config.pin_min_tokens:
                continue
            reservation = slots.reserve(in_flight.key[: position * TOKEN_BYTES], now_s)
            if reservation is not None:
                reservations[reservation.slot] = reservation
                for slot in reservation.freed:
                    self._free(slot)
        return reservations

    def _free(self, slot: int) -> None:
        if self._client is not None:
            with suppress(EngineDied):
                self._client.post_free(slot)

    def _abort(self, reservations: dict[int, Reservation]) -> None:
        if self.slots is not None:
            for reservation in reservations.values():
                self.slots.abort(reservation)
