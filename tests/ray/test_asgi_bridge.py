"""An aiohttp application behind an ASGI server: bodies both ways as they come, leaving clients, answers cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import h11
import pytest
from aiohttp import web

from luce.ray.asgi_bridge import AsgiBridge

TIMEOUT_S = 60.0
Message = MutableMapping[str, Any]


class Client:
    """An ASGI server's side of one request."""

    def __init__(
        self, bridge: AsgiBridge, method: str, path: str, headers: list[tuple[bytes, bytes]], root: str = ""
    ) -> None:
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._from_app: asyncio.Queue[Message] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": method,
            "root_path": root,
            "path": root + path,
            "raw_path": (root + path).encode(),
            "query_string": b"a=1",
            "headers": headers,
            "client": ("10.0.0.9", 5),
        }
        self.task = asyncio.create_task(bridge(scope, self._to_app.get, self._from_app.put))

    def send(self, body: bytes, *, more: bool = False) -> None:
        self._to_app.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._to_app.put_nowait({"type": "http.disconnect"})

    async def get(self) -> Message:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._from_app.get()

    async def body(self) -> bytes:
        data = b""
        while (message := await self.get())["more_body"]:
            data += message["body"]
        return data


class Application:
    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.go_on = asyncio.Event()

    async def echo(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"X-Query": request.query_string, "X-Peer": str(request.remote)})
        await response.prepare(request)
        async for chunk in request.content.iter_any():
            await response.write(chunk.upper())
        await response.write_eof()
        return response

    async def endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        return response

    async def cut(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        await self.go_on.wait()
        request.transport.abort()
        return response


@pytest.fixture
async def application() -> Application:
    return Application()


@pytest.fixture
async def bridge(application: Application) -> AsyncIterator[AsgiBridge]:
    app = web.Application(client_max_size=4 << 20)
    app.router.add_post("/echo", application.echo)
    app.router.add_get("/endless", application.endless)
    app.router.add_get("/cut", application.cut)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    yield AsgiBridge(runner)
    await runner.cleanup()


@pytest.mark.parametrize("sized", [True, False], ids=["content-length", "chunked"])
async def test_bodies_go_both_ways_as_they_come(bridge: AsgiBridge, *, sized: bool) -> None:
    length = [(b"content-length", b"6")] if sized else []
    client = Client(bridge, "POST", "/echo", [(b"host", b"there"), *length])
    client.send(b"abc", more=True)
    head = await client.get()
    assert head["status"] == 200
    headers = dict(head["headers"])
    assert (headers[b"x-query"], headers[b"x-peer"]) == (b"a=1", b"10.0.0.9")
    assert b"transfer-encoding" not in headers
    assert (await client.get())["body"] == b"ABC"
    client.send(b"def")
    assert await client.body() == b"DEF"
    await client.task


async def test_much_at_once(bridge: AsgiBridge) -> None:
    client = Client(bridge, "POST", "/echo", [(b"host", b"there")])
    data = b"x" * (3 << 20)
    client.send(data)
    assert (await client.get())["status"] == 200
    assert await client.body() == data.upper()


async def test_what_is_not_there_and_no_host(bridge: AsgiBridge) -> None:
    client = Client(bridge, "GET", "/nowhere", [])
    client.send(b"")
    assert (await client.get())["status"] == 404
    assert b"Not Found" in await client.body()


async def test_below_a_prefix_and_with_bytes_that_no_line_may_have(bridge: AsgiBridge) -> None:
    client = Client(bridge, "POST", "/echo", [(b"host", b"there")], root="/llm")
    client.send(b"abc")
    assert (await client.get())["status"] == 200
    assert await client.body() == b"ABC"
    client = Client(bridge, "GET", "/caf\u00e9", [(b"host", b"there")])
    client.send(b"")
    assert (await client.get())["status"] == 404
    client = Client(bridge, "GET", "/echo", [(b"host", b"there"), (b"x-one", b"two\x00")])
    assert (await client.get())["status"] == 400
    assert b"x-one" not in await client.body()
    await client.task


async def test_a_client_that_leaves_ends_the_handler(bridge: AsgiBridge, application: Application) -> None:
    client = Client(bridge, "GET", "/endless", [(b"host", b"there")])
    client.send(b"")
    assert [(await client.get())["type"], (await client.get())["body"]] == ["http.response.start", b"begun"]
    client.leave()
    async with asyncio.timeout(TIMEOUT_S):
        await application.left.wait()


async def test_an_answer_that_is_cut_off_is_not_taken_for_whole(bridge: AsgiBridge, application: Application) -> None:
    client = Client(bridge, "GET", "/cut", [(b"host", b"there")])
    client.send(b"")
    assert [(await client.get())["status"], (await client.get())["body"]] == [200, b"half"]
    application.go_on.set()
    with pytest.raises(h11.RemoteProtocolError):
        await client.task


async def test_the_lifespan_is_answered_and_other_protocols_are_refused(bridge: AsgiBridge) -> None:
    said: list[Message] = []
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(asked)

    async def send(message: Message) -> None:
        said.append(message)

    await bridge({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in said] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(NotImplementedError, match="websocket"):
        await bridge({"type": "websocket"}, receive, send)
