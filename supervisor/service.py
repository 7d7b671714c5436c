"""Service: `generate(request)` -> events. All that HTTP and embedders see of the engine's side.

Below it there are only token ids; here a text becomes ids, and a flight's items become events. It must not know
engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from luce.protocol import ErrorCode
from luce.supervisor.generation import TokenEvent
from luce.supervisor.multiplexer import Multiplexer
from luce.supervisor.requests import GenerateRequest, RequestEvent, RequestRefusedError

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel


class Service:
    def __init__(self, multiplexer: Multiplexer, open_text: Callable[[], TextModel]) -> None:
        """`open_text` opens the model's vocabulary; called on first use, in a thread."""
        self._multiplexer = multiplexer
        self._open_text = open_text
        self._text: TextModel | None = None
        self._text_lock = asyncio.Lock()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestEvent, None]:
        """The events of one request: prefill progress and tokens, FinishedEvent last. Raises RequestError.

        Leaving it early, or cancelling the task that reads it, cancels the request wherever it is. A slow reader stalls
        nobody else.
        """
        prompt = await self._prompt_ids(request)
        flight = self._multiplexer.submit(request, prompt)
        index = 0
        try:
            while True:
                items = flight.take()
                for item in items:
                    if isinstance(item, int):
                        yield TokenEvent(item, index)
                        index += 1
                    else:
                        yield item
                if items:
                    continue
                if flight.finished:
                    break
                await flight.wait()
            if flight.failure is not None:
                raise flight.failure
        finally:
            self._multiplexer.cancel(flight)

    async def text(self) -> TextModel:
        """The model's text side, opened on first use."""
        async with self._text_lock:
            if self._text is None:
                self._text = await asyncio.to_thread(self._open_text)
            return self._text

    def close(self) -> None:
        if self._text is not None:
            self._text.close()

    async def _prompt_ids(self, request: GenerateRequest) -> tuple[int, ...]:
        if request.prompt_ids is not None:
            return tuple(request.prompt_ids)
        assert request.prompt is not None
        from luce.supervisor.text import TextError

        try:
            model = await self.text()
            ids = await asyncio.to_thread(model.tokenize, request.prompt, add_special=True, parse_special=True)
        except TextError as error:
            raise RequestRefusedError(ErrorCode.BAD_ARGS, f"the prompt could not be tokenised: {error}") from error
        return tuple(ids)
