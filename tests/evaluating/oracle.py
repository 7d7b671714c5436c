"""A small server of OpenAI's chat completions that knows the right answer to every question it is told of, and may be
given a fault that alters answers. Knows no model; judges nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from luce.supervisor.evaluating.question import Question, Reply

START_S = 30.0
Fault = Callable[[Question, Reply], Reply]


class Oracle:
    """`url` has no slash at its end. `asked` has the bodies of the questions it knew."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.fault: Fault = lambda _, reply: reply
        self.most_chars: int | None = None
        """Longer prompts are refused."""
        self.n_busy = 0
        """So many requests are refused first."""
        self.n_answers: int | None = None
        """Of the questions it knows; the others wait until it ends."""
        self._known: dict[str, Question] = {}
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="oracle")

    def learn(self, questions: Iterable[Question]) -> list[Question]:
        learned = list(questions)
        self._known |= {_key(question.messages): question for question in learned}
        return learned

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(START_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.n_busy > 0:
            self.n_busy -= 1
            return web.json_response({"error": {"message": "busy"}}, status=503)
        n_chars = sum(len(message.get("content") or "") for message in body["messages"])
        if self.most_chars is not None and n_chars > self.most_chars:
            return web.json_response({"error": {"message": "the prompt is too long"}}, status=400)
        reply = Reply("I do not know.")
        question = self._known.get(_key(body["messages"]))
        if question is not None:
            self.asked.append(body)
            if self.n_answers is not None and len(self.asked) > self.n_answers:
                await self._stop.wait()
            reply = self.fault(question, question.right)
        return await self._streamed(request, reply, n_chars // 4)

    async def _streamed(self, request: web.Request, reply: Reply, n_prompt: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        calls = [
            {"index": at, "id": f"c{at}", "function": {"name": call.name, "arguments": call.arguments}}
            for at, call in enumerate(reply.calls)
        ]
        usage = {"prompt_tokens": n_prompt, "completion_tokens": len(reply.text) // 4 + 1}
        for event in (
            {"choices": [{"index": 0, "delta": {"content": reply.text, "tool_calls": calls}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
        ):
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _key(messages: Iterable[Mapping[str, Any]]) -> str:
    return json.dumps(list(messages), sort_keys=True)


@contextmanager
def oracle() -> Iterator[Oracle]:
    server = Oracle()
    server.start()
    try:
        yield server
    finally:
        server.stop()
