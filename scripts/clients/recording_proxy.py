#!/usr/bin/env python3
"""RecordingProxy: stands between a client and a server, passes everything on as it comes and writes it down.

One line of JSON a request: what was asked, how many tools were offered, when the headers came, how long the prompt was
and how much of it the server had cached, what came back. Its own address is the first line on stdout. It changes two
things: a request for an answer without bounds gets --max-tokens, because a small model that was asked far beyond its
training may never end; and with --answers some requests have one answer only (steering.py).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.clients.steering import Steering, read_steering
from scripts.clients.streamed_answer import answer_of

ROUTES = {
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/chat/completions": "max_completion_tokens",
}
"""Where answers are asked for, and the field that bounds them."""
HOP_HEADERS = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}


@dataclass
class Record:
    """One request, as both sides saw it."""

    path: str
    n_tools: int
    body: dict[str, Any]
    is_steered: bool = False
    started_s: float = 0.0
    status: int = 0
    headers_s: float = 0.0
    total_s: float = 0.0
    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_text: int = 0
    """Characters of text and reasoning."""
    n_tool_calls: int = 0
    finish: str = ""
    """What the answer says of its end; empty: it has none."""
    error: str = ""
    answer: list[dict[str, Any]] = field(default_factory=list)
    """As the client may send it back."""


def count_tools(body: dict[str, Any]) -> int:
    """Those in a namespace are counted one by one."""
    return sum(len(tool["tools"]) if "tools" in tool else 1 for tool in body.get("tools") or ())


def find_usage(event: dict[str, Any]) -> dict[str, Any]:
    for holder in (event, event.get("message"), event.get("response")):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return dict(holder["usage"])
    return {}


def note_usage(record: Record, usage: dict[str, Any]) -> None:
    """Anthropic counts cached tokens beside the prompt's, OpenAI among them."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    if "prompt_tokens" in usage or details:
        record.n_prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
        record.n_cached = details.get("cached_tokens", 0)
    elif "input_tokens" in usage:
        record.n_cached = usage.get("cache_read_input_tokens") or 0
        record.n_prompt = usage["input_tokens"] + record.n_cached + (usage.get("cache_creation_input_tokens") or 0)
    record.n_generated = usage.get("completion_tokens", usage.get("output_tokens", record.n_generated))


def pieces(event: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What an event brings: ("text", …), ("call", name), ("finish", why), ("error", text)."""
    if error := event.get("error"):
        yield "error", json.dumps(error)
    kind = event.get("type", "")
    if kind == "content_block_delta":
        delta = event["delta"]
        yield "text", delta.get("text", "") + delta.get("thinking", "")
    elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
        yield "call", event["content_block"]["name"]
    elif kind == "message_delta":
        yield "finish", event["delta"].get("stop_reason") or ""
    elif kind in {"response.output_text.delta", "response.reasoning_text.delta"}:
        yield "text", event["delta"]
    elif kind == "response.output_item.done" and event["item"]["type"] == "function_call":
        yield "call", event["item"]["name"]
    elif kind in {"response.completed", "response.incomplete", "response.failed"}:
        yield "finish", event["response"]["status"]
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or choice.get("message") or {}
        yield "text", (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        for call in delta.get("tool_calls") or ():
            if call.get("function", {}).get("name"):
                yield "call", call["function"]["name"]
        yield "finish", choice.get("finish_reason") or ""


def note_event(record: Record, event: dict[str, Any]) -> None:
    note_usage(record, find_usage(event))
    for kind, value in pieces(event):
        if kind == "text":
            record.n_text += len(value)
        elif kind == "call":
            record.n_tool_calls += 1
        elif value:
            setattr(record, kind, value)


@dataclass(frozen=True)
class RecordingProxy:
    server: str
    records: Path
    max_tokens: int
    steering: Steering
    session: ClientSession

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_HEADERS}
        bound = ROUTES.get(request.path)
        if request.method != "POST" or bound is None:
            return await self._pass(request, headers, raw, None, [])
        body = json.loads(raw)
        sent = self.steering.steer(body)
        if not body.keys() & {bound, "max_tokens"}:
            sent[bound] = self.max_tokens
        record = Record(request.path, count_tools(body), body, is_steered="grammar" in sent, started_s=monotonic())
        events: list[dict[str, Any]] = []
        try:
            raw = raw if sent == body else json.dumps(sent).encode()
            return await self._pass(request, headers, raw, record, events)
        finally:
            record.total_s = monotonic() - record.started_s
            record.answer = answer_of(events) if record.finish else []
            with self.records.open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")

    async def _pass(
        self,
        request: web.Request,
        headers: dict[str, str],
        raw: bytes,
        record: Record | None,
        events: list[dict[str, Any]],
    ) -> web.StreamResponse:
        started_s = monotonic()
        url = self.server + request.raw_path
        async with self.session.request(request.method, url, headers=headers, data=raw) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_HEADERS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            if record is not None:
                record.status, record.headers_s = answer.status, monotonic() - started_s
            held = b""
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
                if record is not None:
                    held = note_lines(record, events, held + chunk)
            if record is not None and held.startswith(b"{"):
                events.append(json.loads(held))
                note_event(record, events[-1])
            await response.write_eof()
        return response


def note_lines(record: Record, events: list[dict[str, Any]], data: bytes) -> bytes:
    """Notes what stands in whole lines; the rest is returned."""
    *lines, rest = data.split(b"\n")
    for line in lines:
        if line.startswith(b"data: {"):
            events.append(json.loads(line[6:]))
            note_event(record, events[-1])
    return rest


async def prompt_of(session: ClientSession, server: str, messages: list[dict[str, Any]], opens_answer: bool) -> str:
    """What the model's template makes of them."""
    body = {"messages": messages, "add_generation_prompt": opens_answer, "continue_final_message": False}
    async with session.post(f"{server}/apply-template", json=body, raise_for_status=True) as answer:
        return str((await answer.json())["prompt"])


async def serve(args: argparse.Namespace) -> None:
    patience = ClientTimeout(total=None, sock_connect=10)
    async with ClientSession(timeout=patience, auto_decompress=False) as session:
        server = args.to.rstrip("/")
        steering = Steering({})
        if args.answers is not None:
            steering = await read_steering(args.answers.read_text(), args.folder, partial(prompt_of, session, server))
        recording_proxy = RecordingProxy(server, args.records, args.max_tokens, steering, session)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", recording_proxy.handle)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        print(f"http://{host}:{port}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, metavar="URL", help="the server")
    parser.add_argument("--records", type=Path, required=True, help="file that lines are added to")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--answers", type=Path, metavar="FILE", help="what is to be answered: scripts/clients/answers")
    parser.add_argument("--folder", type=Path, default=Path(), help="the client's, for these answers")
    try:
        asyncio.run(serve(parser.parse_args()))
    except (KeyboardInterrupt, ClientError):
        return


if __name__ == "__main__":
    main()
