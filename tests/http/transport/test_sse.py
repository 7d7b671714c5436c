"""Streams of events: sent at once, kept alive, bounded, and ended when nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from luce.supervisor.http.server import listening
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.connection import ClientGoneError, connection_watch, while_connected
from luce.supervisor.http.transport.sse import COMMENT, EventStream
from tests.http.raw_client import get, raw_client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
DEADLINE_S = 120.0
QUICK = ServeSettings(keep_alive_s=0.05, stalled_reader_s=0.5)
PATIENT = ServeSettings(keep_alive_s=10)


@asynccontextmanager
async def serving(handler: Handler, *, cancels: bool = False) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, handler_cancellation=cancels, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_headers_and_each_event_come_at_once() -> None:
    go_on = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT) as stream:
            await go_on.wait()
            go_on.clear()
            await stream.send_bytes(b"event: a\ndata: 1\n\n")
            await go_on.wait()
            await stream.send_bytes(b"data: 2\n\nevent: b\ndata: 3\n\n")
        return stream.response

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(get("/"))
        head = await client.read_until(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"text/event-stream" in head
        go_on.set()
        assert await client.read_until(b"data: 1\n\n\r\n") == b"12\r\nevent: a\ndata: 1\n\n\r\n"
        go_on.set()
        rest = await client.read_until(b"0\r\n\r\n")
        assert rest == b"1b\r\ndata: 2\n\nevent: b\ndata: 3\n\n\r\n0\r\n\r\n", "one write for both"
        await client.send(get("/"))  # the connection goes on
        assert b"200 OK" in await client.read_until(b"\r\n\r\n")
        go_on.set()


async def test_signs_of_life_while_nothing_is_sent() -> None:
    numbers = iter(range(1000))

    async def handle(request: web.Request) -> web.StreamResponse:
        def keep_alive() -> bytes:
            return b": %d\n\n" % next(numbers)

        async with EventStream(request, keep_alive=keep_alive, settings=QUICK):
            await asyncio.Event().wait()
        raise AssertionError

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(get("/"))
        for number in range(3):
            await client.read_until(b": %d\n\n" % number)


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("manner", ["close", "vanish"])
@pytest.mark.parametrize("kind", ["stream", "whole"])
async def test_a_client_that_goes_while_nothing_is_written(kind: str, manner: str, cancels: bool) -> None:
    began = asyncio.Event()
    noticed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def wait_for_the_engine() -> web.Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            if kind == "whole":
                return await while_connected(request, wait_for_the_engine())
            async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT):
                return await wait_for_the_engine()
        except BaseException as error:
            noticed.set_result(error)
            raise web.HTTPBadRequest from error

    async with serving(handle, cancels=cancels) as url, raw_client(url) as client:
        await client.send(get("/"))
        async with asyncio.timeout(DEADLINE_S):
            await began.wait()
            client.vanish() if manner == "vanish" else client.writer.close()
            error = await noticed
    assert isinstance(error, ClientGoneError)
    assert connection_watch()._watched == set()


async def test_a_reader_that_stays_away_is_bounded_and_ended() -> None:
    noticed: asyncio.Future[tuple[BaseException, int]] = asyncio.get_running_loop().create_future()
    sent = 0
    event = b"data: " + b"x" * 10_000 + b"\n\n"

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        buffered = 0
        try:
            async with EventStream(request, keep_alive=lambda: COMMENT, settings=QUICK) as stream:
                while True:
                    await stream.send_bytes(event)
                    sent += len(event)
                    assert request.transport is not None
                    buffered = max(buffered, request.transport.get_write_buffer_size())
        except ClientGoneError as error:
            noticed.set_result((error, buffered))
            raise web.HTTPBadRequest from error

    async with serving(handle) as url, raw_client(url, receive_buffer=4096) as client:
        await client.send(get("/"))
        async with asyncio.timeout(DEADLINE_S):
            error, buffered = await noticed
    assert "read nothing" in str(error)
    assert buffered < 256 * 1024, "what waits for a reader is bounded"
    assert sent > 0


async def test_a_reader_that_stays_away_at_the_end() -> None:
    noticed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            async with EventStream(request, keep_alive=lambda: COMMENT, settings=QUICK) as stream:
                assert request.transport is not None
                request.transport.write(b"x" * 30_000_000)  # more than any kernel takes
        except ClientGoneError as error:
            noticed.set_result(error)
            raise
        return stream.response

    async with serving(handle) as url, raw_client(url, receive_buffer=4096) as client:
        await client.send(get("/"))
        async with asyncio.timeout(DEADLINE_S):
            assert "read nothing" in str(await noticed)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_whole_answer_that_nobody_reads(version: str) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 30_000_000)  # more than any kernel takes

    app = web.Application()
    app.router.add_get("/", handle)
    settings = ServeSettings(port=0, stalled_reader_s=0.2)
    async with listening(app, settings) as (runner, url), raw_client(url, receive_buffer=4096) as client:
        await client.send(f"GET / HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
        await client.read_until(b"\r\n\r\n")
        assert runner.server is not None
        async with asyncio.timeout(DEADLINE_S):
            while runner.server.connections:  # noqa: ASYNC110  the end is that it is not there
                await asyncio.sleep(0.01)
        assert len(await client.read_to_end()) < 30_000_000, "cut off"


async def test_a_failure_inside_cuts_the_stream_off() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT) as stream:
            await stream.send_bytes(b"data: 1\n\n")
            raise web.HTTPConflict

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(get("/"))
        text = await client.read_to_end()
    body = text.partition(b"\r\n\r\n")[2]
    assert b"data: 1\n\n" in body
    assert b"0\r\n\r\n" not in body, "a stream that failed must not look complete"


async def test_a_cancellation_of_others_stays_one() -> None:
    """What is not about the client is not taken for it."""
    seen: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await while_connected(request, asyncio.Event().wait())
        except BaseException as error:  # noqa: BLE001  whatever it is, the test looks at it
            seen.set_result(error)
            task.uncancel()
        began.set()
        return web.Response()

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(get("/"))
        async with asyncio.timeout(DEADLINE_S):
            await began.wait()
        assert isinstance(seen.result(), asyncio.CancelledError)


async def test_http_1_0_gets_the_stream_without_chunks() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT) as stream:
            for number in range(3):
                await stream.send_bytes(b"data: %d\n\n" % number)
        return stream.response

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        text = await client.read_to_end()
    assert text.endswith(b"\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n")
    assert b"chunked" not in text


async def test_nothing_to_send_does_not_end_the_stream() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT) as stream:
            for events in (b"", b"a", b"", b"b", b""):
                await stream.send_bytes(events)
        return stream.response

    async with serving(handle) as url, raw_client(url) as client:
        await client.send(get("/"))
        text = await client.read_until(b"0\r\n\r\n")
    assert text.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


async def test_what_waits_and_what_does_not_comes_in_order() -> None:
    """Chunks that wait in the transport, and those that go out at once, do not overtake each other."""
    events = [b"%d:%b\n" % (number, b"x" * (100_000 if number % 50 == 0 else 10)) for number in range(400)]

    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT) as stream:
            for event in events:
                await stream.send_bytes(event)
        return stream.response

    async with serving(handle) as url, aiohttp.ClientSession() as session, session.get(url) as response:
        assert await response.read() == b"".join(events)


async def test_a_stream_that_is_compressed_is_whole() -> None:
    """Nothing goes to the transport beside what aiohttp makes of it."""
    events = [b"data: %d\n\n" % number for number in range(50)]

    async def handle(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, keep_alive=lambda: COMMENT, settings=PATIENT)
        stream.response.enable_compression(web.ContentCoding.gzip)
        async with stream:
            await stream.send_bytes(events[0])
            for event in events[1:]:
                if stream.is_clear():
                    stream.send_now(event)
                else:
                    await stream.send_bytes(event)
        return stream.response

    async with serving(handle) as url, aiohttp.ClientSession() as session, session.get(url) as response:
        assert await response.read() == b"".join(events)
