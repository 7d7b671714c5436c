"""InFlightRequest: one request on its way, over as many engines as it takes; Attempt: its run on one of them.

An in-flight request holds what must not be lost: the prompt, the seed, the tokens that its caller has got or will get.
An attempt turns one engine's two channels into more of them. Both are driven from the event loop's callbacks and
never wait: the caller's own task waits in `InFlightRequest.wait`. They must not know engines' lives, queues or slots.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from luce.protocol import (
    Generate,
    GenerateOk,
    GenerationStats,
    ImageAt,
    InlineSnapshot,
    InlineSnapshotFailed,
    Logprobs,
    MemoryArgs,
    PrefillProgress,
    PromptLogprobs,
    ReadingArgs,
    RemoteProtocolError,
    StopReason,
)
from luce.supervisor.engine.generation import GenerationReply, TokenEvent
from luce.supervisor.prefix_cache.page_names import page_names, salted
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.requests import FinishedEvent, GenerateRequest, PrefillEvent, PromptTokenEvent, fields_of
from luce.supervisor.scheduling.crash_attribution import FailureCount

Item = int | TokenEvent | PrefillEvent | PromptTokenEvent | FinishedEvent
"""What waits for a caller: a plain token is just a number until somebody looks at it."""


class InFlightRequest:
    """One reader. Compared and hashed by identity."""

    __slots__ = (
        "_fast_path", "_items", "_page_names", "_waiter", "asked_s", "diverged", "failure", "failures", "finished",
        "first_token_s", "identity", "is_enough", "key", "n_attempts", "n_begun", "n_computed", "n_prompt", "next_row",
        "on_finish", "prompt", "request", "seed", "serial", "started_s", "tokens", "waits_for_files", "waits_for_room",
        "was_admitted",
    )  # fmt: skip

    def __init__(self, serial: int, request: GenerateRequest, prompt: Sequence[int], seed: int) -> None:
        self.serial = serial
        self.request = replace(request, prompt_ids=(), prompt=None, begun=None)  # prompt and tokens are here once
        self.n_prompt = len(prompt)
        self.prompt = pack(prompt)
        """Four bytes a token."""
        self.key = self.prompt if request.salt is None else salted(self.prompt, request.salt.value, request.salt.begin)
        """What an engine's memory knows it by."""
        self.seed = seed
        self.tokens: list[int] = [] if request.begun is None else list(request.begun.tokens)
        self.n_begun = len(self.tokens)
        """Of them, those that another supervisor has generated."""
        self.next_row = 1 if self.n_begun == 0 else self.n_prompt
        """The next position of the prompt whose logprobs its caller gets, if it wants them: all come before a token."""
        self.diverged = False
        """The last attempt did not repeat the last token: the next one takes it as given."""
        self.is_enough = False
        """Its caller wants no further token, but still to know what it took."""
        self.identity: str | None = None if request.begun is None else request.begun.identity
        """Of the model that has begun it."""
        self.n_attempts = 0
        self.was_admitted = False
        """It has left the queue by its turn."""
        self.n_computed: int | None = None
        """Tokens that the engine computed for it, as its final reply says."""
        self.failures = FailureCount()
        self.waits_for_room = False
        """An engine had no room for it, and nothing has ended since."""
        self.waits_for_files = False
        """It has been set aside while an engine hears of files that its text goes on from."""
        self.asked_s = time.monotonic()
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.finished = False
        """Nothing more will come: the last event or the failure has been handed over."""
        self.failure: Exception | None = None
        self.on_finish: Callable[[FinishedEvent], None] = lambda _: None
        """Called once, if it was served to its end."""
        self._page_names: dict[str, tuple[bytes, ...]] = {}  # by identity
        self._items: list[Item] = []
        self._waiter: asyncio.Future[None] | None = None
        self._fast_path: Callable[[Sequence[int]], bool] | None = None  # only while somebody waits

    # The caller's side

    def take(self) -> list[Item]:
        """What has come since the last call."""
        items = self._items
        self._items = []
        return items

    @property
    def has_items(self) -> bool:
        return bool(self._items)

    async def wait(self, fast_path: Callable[[Sequence[int]], bool] | None = None) -> None:
        """Returns once there is something to take, or the request has finished. How long that may be is the engines'
        watchdogs' and the request's own deadlines' to judge.

        Plain tokens that come meanwhile are offered to `fast_path` in the turn of the loop in which they come, outside
        of the caller's task. What it takes (it returns True) ends no wait. It must not raise."""
        if self._items or self.finished:
            return
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._fast_path = fast_path
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # cancelled, and nobody else waits by now
                self._waiter = self._fast_path = None

    # The engines' side

    def deliver(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        if self._fast_path is not None and self._fast_path(tokens):
            return
        self._items += tokens
        self._wake()

    def deliver_with(self, token: int, logprobs: tuple[tuple[int, float], ...]) -> None:
        event = TokenEvent(token, len(self.tokens), logprobs)
        self.tokens.append(token)
        self.show(event)

    @property
    def wants_rows(self) -> bool:
        """Logprobs of the prompt are still to come."""
        return self.request.n_prompt_logprobs is not None and self.next_row < self.n_prompt

    def deliver_row(self, event: PromptTokenEvent) -> None:
        """One that has come before, from an engine that is gone, is passed over."""
        if event.position == self.next_row:
            self.next_row += 1
            self.show(event)

    def show(self, event: TokenEvent | PrefillEvent | PromptTokenEvent | FinishedEvent) -> None:
        self._items.append(event)
        self._wake()

    def finish(self, event: FinishedEvent) -> None:
        if not self.finished:
            self.finished = True
            self.show(event)
            self.on_finish(event)

    def fail(self, failure: Exception) -> None:
        """What has come before is still handed over first."""
        if not self.finished:
            self.finished = True
            self.failure = failure
            self._wake()

    def _wake(self) -> None:
        """Whoever waits looks again."""
        waiter, self._waiter = self._waiter, None
        self._fast_path = None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # From one engine to the next

    def page_names(self, identity: str) -> Sequence[bytes]:
        """Of the prompt's whole pages in the memory of engines of this identity."""
        if identity not in self._page_names:
            self._page_names[identity] = tuple(page_names(self.key, identity))
        return self._page_names[identity]

    def n_kept(self) -> int:
        """How many of the tokens go into the next attempt's prompt. The last one is generated once more, if it can be:
        only the engine knows whether it was the text's end, and it says so again."""
        return len(self.tokens) if self.diverged else max(len(self.tokens) - 1, 0)

    def command(self, memory: MemoryArgs, reading: ReadingArgs) -> Generate:
        """What the next attempt asks for; without an id. Of a prompt that is read in parts the engine reads the tokens
        that it is told were generated before in any case."""
        request, n_kept = self.request, self.n_kept()
        prompt = array("i", self.prompt)
        prompt.extend(self.tokens[:n_kept])
        return Generate(
            prompt=prompt,
            n_generate=request.max_tokens - n_kept,
            sampling=request.sampling(self.seed),
            constraint=request.constraint,
            memory=memory,
            reading=reading,
            images=tuple(ImageAt(image.position, image.file.path) for image in request.images),
            stop_tokens=tuple(request.stop_tokens),
            n_least=request.min_tokens,
            ignore_eos=request.ignore_eos,
            n_logprobs=request.n_logprobs,
            n_prompt_logprobs=request.n_prompt_logprobs if self.wants_rows else None,
            prompt_logprobs_from=self.next_row if self.wants_rows else 0,
            n_generated_before=n_kept,
            priority=request.priority,
        )

    def is_full(self, n_ctx: int | None) -> bool:
        """No further token fits, and no attempt is needed to know it."""
        n_kept = self.n_kept()
        if not self.diverged:
            return False
        return n_kept >= self.request.max_tokens or (n_ctx is not None and self.n_prompt + n_kept >= n_ctx)

    def finished_event(self, final: GenerateOk | None) -> FinishedEvent:
        """The last event, from the last attempt's own figures, or from the clock where there were several."""
        now_s = time.monotonic()
        started_s = now_s if self.started_s is None else self.started_s
        first_token_s = now_s if self.first_token_s is None else self.first_token_s
        stats = final or GenerationStats(miss="none")
        n_read = self._n_read(stats)
        own: dict[str, Any] = {
            "n_prompt": self.n_prompt,
            "n_read": n_read,
            "n_generated": len(self.tokens),
            "n_reused": min(stats.n_reused, self.n_prompt if n_read is None else n_read),
        }
        if final is None or self.n_attempts != 1:
            decode_s = now_s - first_token_s
            rate = max(len(self.tokens) - 1, 0) / decode_s if decode_s > 0 else 0.0
            own |= {"prefill_s": first_token_s - started_s, "decode_s": decode_s, "decode_tokens_per_s": rate}
        return FinishedEvent(
            **fields_of(stats, GenerationStats) | own,
            queue_s=started_s - self.asked_s,
            seed=self.seed,
            n_resumes=max(self.n_attempts - 1, 0),
        )

    def _n_read(self, final: GenerationStats) -> int | None:
        """Of the prompt itself: an engine counts what it was given of the answer too, and has read all of that."""
        if final.n_read is None:
            return None
        return max(final.n_read - (final.n_prompt - self.n_prompt), 0)


class AttemptListener(Protocol):
    """Who decides what an attempt's events mean for its request."""

    def attempt_moved(self, attempt: Attempt) -> None:
        """Its first token has come, or more of its prompt has been read."""

    def attempt_went_on(self, attempt: Attempt) -> None:
        """It has brought as many new tokens as clear its request."""

    def attempt_diverged(self, attempt: Attempt) -> None:
        """It did not repeat its request's last token."""

    def attempt_snapshot(self, attempt: Attempt, slot: int, *, taken: bool) -> None:
        """A snapshot that it asked for is there, or will not be. Also of an attempt that nobody wants any more."""

    def attempt_ended(self, attempt: Attempt, final: GenerateOk) -> None: ...

    def attempt_failed(self, attempt: Attempt, failure: Exception) -> None: ...


class Attempt:
    """A client's receiver for one request. `in_flight` becomes None when nobody wants the rest."""

    __slots__ = (
        "_ended",
        "_failed",
        "_final",
        "_held",
        "_is_plain",
        "_listener",
        "_logprobs",
        "_n_received",
        "_n_replayed",
        "_n_to_clear",
        "_replay",
        "ended_s",
        "first_token_s",
        "id",
        "in_flight",
        "is_alone",
        "is_reading",
        "largest_slice",
        "moved_s",
        "n_kept",
        "n_read",
        "started_s",
    )  # fmt: skip

    def __init__(self, in_flight: InFlightRequest, listener: AttemptListener, *, n_to_clear: int) -> None:
        """`n_to_clear`: new tokens after which it `went_on`, if engines have died under its request."""
        self.id = 0
        self.in_flight: InFlightRequest | None = in_flight
        self.n_kept = in_flight.n_kept()
        self.is_reading = True
        """Its prompt is not read yet."""
        self.n_read = 0
        """Tokens of its prompt that have been read, as far as the engine has said so …"""
        self.moved_s = self.started_s = time.monotonic()
        """… and when it did."""
        self.largest_slice = 0
        """The most tokens between two times that it did."""
        self.first_token_s: float | None = None
        self.is_alone = False
        """Nothing else is to run beside it."""
        self.ended_s: float | None = None
        """When its first channel ended: the other one has to follow soon."""
        self._listener = listener
        self._n_received = 0
        self._replay = in_flight.tokens[self.n_kept :]
        self._n_replayed = 0
        self._n_to_clear = 0 if in_flight.failures.is_clear else max(n_to_clear, 1)
        self._held: deque[int] = deque()  # tokens whose logprobs, or the prompt's, have not come …
        self._logprobs: deque[Logprobs] = deque()  # … and the other way round
        self._is_plain = False
        self._final: GenerateOk | None = None
        self._ended = False
        self._failed = False

    def abandon(self) -> None:
        """The rest is for nobody."""
        self.in_flight = None
        self._is_plain = False
        self._held.clear()
        self._logprobs.clear()

    # Receiver

    @property
    def done(self) -> bool:
        return self._failed or (self._ended and self._final is not None)

    def take_tokens(self, tokens: Sequence[int]) -> None:
        if self._is_plain and self.in_flight is not None:
            self._n_received += len(tokens)
            self.in_flight.deliver(tokens)
            return
        for token in tokens:
            self._n_received += 1
            if self.in_flight is not None:
                self._take_carefully(self.in_flight, token)

    def take_end(self) -> None:
        self._ended = True
        self._check_end()

    def take_reply(self, reply: GenerationReply) -> None:
        if isinstance(reply, GenerateOk):
            self._final = reply
            self._check_end()
        elif isinstance(reply, InlineSnapshot | InlineSnapshotFailed):
            self._listener.attempt_snapshot(self, reply.slot, taken=isinstance(reply, InlineSnapshot))
        elif self.in_flight is None:
            pass
        elif isinstance(reply, PrefillProgress):
            if self.n_read > 0:  # what came before the first time was not all computed
                self.largest_slice = max(self.largest_slice, reply.n_done - self.n_read)
            self.n_read, self.moved_s = reply.n_done, time.monotonic()
            self._listener.attempt_moved(self)
            if not self.in_flight.tokens:
                self.in_flight.show(PrefillEvent(reply.n_done, reply.n_total))
        elif isinstance(reply, PromptLogprobs):
            self.moved_s = time.monotonic()
            self.in_flight.deliver_row(PromptTokenEvent(reply.position, reply.entries))
            self._join(self.in_flight)
        elif reply.index >= len(self._replay):
            self._logprobs.append(reply)
            self._join(self.in_flight)

    def fail(self, failure: Exception) -> None:
        self._failed = True
        self._listener.attempt_failed(self, failure)

    def _take_carefully(self, in_flight: InFlightRequest, token: int) -> None:
        if self.is_reading:
            self.is_reading = False
            self.first_token_s = time.monotonic()
            if in_flight.first_token_s is None:
                in_flight.first_token_s = self.first_token_s
            self._listener.attempt_moved(self)
        if self._n_replayed < len(self._replay):
            if token != self._replay[self._n_replayed]:
                self._listener.attempt_diverged(self)
                return
            self._n_replayed += 1
        elif in_flight.request.n_logprobs > 0 or in_flight.wants_rows:
            self._held.append(token)
            self._join(in_flight)
        else:
            in_flight.deliver((token,))
        n_new = self._n_received - len(self._replay)
        if self._n_to_clear and n_new >= self._n_to_clear and self.in_flight is not None:
            self._n_to_clear = 0
            self._listener.attempt_went_on(self)
        self._is_plain = (
            self._n_replayed == len(self._replay)
            and in_flight.request.n_logprobs == 0
            and self._n_to_clear == 0
            and not self._held
        )

    def _join(self, in_flight: InFlightRequest) -> None:
        if in_flight.wants_rows:
            return
        if in_flight.request.n_logprobs == 0 and self._held:
            in_flight.deliver(tuple(self._held))
            self._held.clear()
        while self._held and self._logprobs:
            in_flight.deliver_with(self._held.popleft(), self._logprobs.popleft().entries)

    def _check_end(self) -> None:
        if self._final is None or not self._ended:
            self.ended_s = time.monotonic()
            return
        if self._final.n_generated != self._n_received:
            raise RemoteProtocolError(
                f"request {self.id} has {self._final.n_generated} tokens by its reply, but {self._n_received} came"
            )
        if self._held or self._logprobs:
            raise RemoteProtocolError(f"request {self.id} lacks {len(self._held) + len(self._logprobs)} logprobs")
        if self.in_flight is not None and self.in_flight.wants_rows and self._final.stop is not StopReason.CANCEL:
            raise RemoteProtocolError(
                f"request {self.id} lacks logprobs of its prompt's token {self.in_flight.next_row}"
            )
        self._listener.attempt_ended(self, self._final)
