"""Service: `generate(request)` -> events, and `submit(request)` for those who have to know at once whether it is taken.
All that HTTP and embedders see of the engine's side.

Below it there are only token ids; here a text becomes ids, and an in-flight request's items become events. It must not
know engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from luce.protocol import ErrorCode
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.requests import GenerateRequest, RequestEvent, RequestRefusedError
from luce.supervisor.scheduling.in_flight_request import InFlightRequest, Item
from luce.supervisor.scheduling.multiplexer import Multiplexer
from luce.supervisor.text_side import TextSide


class Requests(Protocol):
    """Who carries requests that have been taken in."""

    def end(self, in_flight: InFlightRequest) -> None: ...

    def cancel(self, in_flight: InFlightRequest) -> None: ...


class Submission:
    """A request that has been taken in. One reader, who closes it."""

    def __init__(self, requests: Requests, in_flight: InFlightRequest) -> None:
        self._requests = requests
        self._in_flight = in_flight

    @property
    def n_prompt(self) -> int:
        return self._in_flight.n_prompt

    async def take(self, fast_path: Callable[[Sequence[int]], bool] | None = None) -> Sequence[Item]:
        """All that has come since the last call, once there is something: PrefillEvents, PromptTokenEvents, tokens
        (plain numbers, or TokenEvents where logprobs were asked for), and FinishedEvent last. Nothing after that.
        Raises RequestError.

        While nothing else has come, plain tokens are offered to `fast_path` as they come, in the loop's own callback:
        at less than it costs to wake a task. Those for which it returns True are not taken again. It must not raise."""
        while True:
            in_flight = self._in_flight
            items = in_flight.take()
            if items:
                return items
            if in_flight.finished:
                if in_flight.failure is not None:
                    raise in_flight.failure
                return ()
            await in_flight.wait(fast_path)

    async def begun(self) -> None:
        """Returns once there is something to take. Raises RequestError where nothing will ever be."""
        while not self._in_flight.has_items:
            if self._in_flight.finished:
                if self._in_flight.failure is not None:
                    raise self._in_flight.failure
                return
            await self._in_flight.wait()

    def end(self) -> None:
        """The reader has enough: FinishedEvent comes as soon as the engine has stopped, with what it took."""
        self._requests.end(self._in_flight)

    def close(self) -> None:
        """Nobody reads it any more: what is not finished is cancelled, wherever it is. Safe at any time."""
        self._requests.cancel(self._in_flight)


class Service:
    def __init__(self, multiplexer: Multiplexer, text: TextSide) -> None:
        self._multiplexer = multiplexer
        self._text = text
        self.on_submit: Callable[[InFlightRequest], None] = lambda _: None
        """Called with each request that has got its place in the queue."""

    async def submit(self, request: GenerateRequest) -> Submission:
        """Take a request in: when this returns it has its place in the queue, and must be closed. Raises RequestError
        where it cannot be served."""
        prompt = await self._prompt_ids(request)
        in_flight = self._multiplexer.submit(request, prompt)
        self.on_submit(in_flight)
        return Submission(self._multiplexer, in_flight)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestEvent, None]:
        """The events of one request: prefill progress and tokens, FinishedEvent last. Raises RequestError.

        Leaving it early, or cancelling the task that reads it, cancels the request wherever it is. A slow reader stalls
        nobody else.
        """
        submission = await self.submit(request)
        index = 0
        try:
            while items := await submission.take():
                for item in items:
                    if isinstance(item, int):
                        yield TokenEvent(item, index)
                        index += 1
                    else:
                        yield item
        finally:
            submission.close()

    async def _prompt_ids(self, request: GenerateRequest) -> Sequence[int]:
        if request.prompt_ids is not None:
            return request.prompt_ids
        assert request.prompt is not None
        from luce.supervisor.text import TextError

        try:
            model = await self._text.get()
            return await asyncio.to_thread(model.tokenize, request.prompt, add_special=True, parse_special=True)
        except TextError as error:
            raise RequestRefusedError(ErrorCode.BAD_ARGS, f"the prompt could not be tokenised: {error}") from error
