"""Connections: clients that stop sending and still read, that send too slowly, that are too many, or send no HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.transport import server_connection
from tests.http.conftest import MakeServer
from tests.http.raw_client import DEADLINE_S, RawClient, get, post, raw_client
from tests.http.serving import Server

HELLO = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
}
CHAT = "/v1/chat/completions"
LONG = {"messages": HELLO, "max_tokens": 150, "ignore_eos": True}
ENDLESS = {**LONG, "max_tokens": 3500}
HALF_A_HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
PATIENT = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0, "stalled_timeout_s": 600.0}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def answer_to_the_end(client: RawClient) -> tuple[bytes, bytes]:
    """Head and body of the only answer."""
    data = await client.read_to_end()
    while data.startswith(CONTINUE):
        data = data.removeprefix(CONTINUE)
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


async def until_running(server: Server, *, n_lanes: int = 1) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while server.supervisor.status().engines[0].n_running != n_lanes:  # noqa: ASYNC110  another thread's state
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_has_only_stopped_sending_gets_its_answer(server: Server, path: str, stream: bool) -> None:
    async with raw_client(server.url) as client:
        await client.send(post(path, {**BODIES[path], "stream": stream}))
        client.writer.write_eof()
        head, body = await answer_to_the_end(client)
    assert head.startswith(b"HTTP/1.1 200 ")
    if stream:
        assert body.endswith(b"\r\n0\r\n\r\n")
    else:
        assert "error" not in json.loads(body) or path == "/v1/responses"


async def test_so_do_all_its_requests(server: Server) -> None:
    async with raw_client(server.url) as client:
        await client.send(post(CHAT, BODIES[CHAT]) + get("/health") + post("/tokenize", {"content": "a"}))
        client.writer.write_eof()
        assert (await client.read_answer()).json()["object"] == "chat.completion"
        assert (await client.read_answer()).json()["status"] == "ok"
        assert (await client.read_answer()).json()["tokens"]
        assert await client.read_to_end() == b""


async def test_a_long_answer_comes_too_and_a_sign_of_life_before_it(server: Server) -> None:
    async with raw_client(server.url) as client:
        await client.send(post(CHAT, {**LONG, "max_tokens": 400}))
        await until_running(server)
        client.writer.write_eof()
        data = await client.read_to_end()
    assert data.startswith(CONTINUE)
    assert json.loads(data.rpartition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 400


@pytest.mark.parametrize("manner", ["close", "vanish"])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_goes_after_it_has_stopped_sending_is_noticed(server: Server, stream: bool, manner: str) -> None:
    before = server.supervisor.status().n_requests
    async with raw_client(server.url) as client:
        await client.send(post(CHAT, {**ENDLESS, "stream": stream}))
        await until_running(server)
        client.writer.write_eof()
        client.vanish() if manner == "vanish" else client.writer.close()
        await until_running(server, n_lanes=0)
    status = server.supervisor.status()
    assert status.n_requests == before + 1
    assert status.n_cancelled > 0


async def test_with_http_1_0_nobody_is_waited_for_who_may_be_gone(server: Server) -> None:
    """Proxies speak it, and close their connection where their client has gone."""
    async with raw_client(server.url) as client:
        await client.send(post(CHAT, ENDLESS, version="1.0"))
        await until_running(server)
        client.writer.write_eof()
        await until_running(server, n_lanes=0)
        assert await client.read_to_end() == b""


async def test_over_a_unix_socket(make_server: MakeServer, tmp_path: Path) -> None:
    path = tmp_path / "luce.sock"
    async with make_server(host=str(path)) as server:
        for _ in range(2):
            client = RawClient(*await asyncio.open_unix_connection(path))
            await client.send(post(CHAT, BODIES[CHAT]))
            client.writer.write_eof()
            head, body = await answer_to_the_end(client)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert json.loads(body)["choices"]
            client.writer.close()
        gone = RawClient(*await asyncio.open_unix_connection(path))
        await gone.send(post(CHAT, ENDLESS))
        await until_running(server)
        gone.writer.close()
        await until_running(server, n_lanes=0)
        assert server.supervisor.status().n_cancelled == 1


@pytest.mark.parametrize("data", [b"", HALF_A_HEAD, post(CHAT, b"{}").replace(b"Length: 2", b"Length: 200")])
async def test_who_stops_in_the_middle_of_a_request_is_let_go(server: Server, data: bytes) -> None:
    async with raw_client(server.url) as client:
        await client.send(data)
        client.writer.write_eof()
        assert await client.read_to_end() == b""


async def test_the_head_of_a_request_has_to_come_in_time(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "luce.http.access")
    async with make_server(head_timeout_s=0.2) as server, AsyncExitStack() as stack:
        silent, slow_body, busy = [await stack.enter_async_context(raw_client(server.url)) for _ in range(3)]
        body = post("/tokenize", {"content": "a"})
        await slow_body.send(body[:-5])
        await busy.send(post(CHAT, LONG))
        slow = [await stack.enter_async_context(raw_client(server.url)) for _ in range(150)]
        await slow[0].send(get("/health"))
        assert (await slow[0].read_answer()).status == 200
        for client in slow:
            await client.send(HALF_A_HEAD)
        for client in slow:
            answer = await client.read_answer()
            assert answer.status == 408
            assert answer.json()["error"]["code"] == "slow_head"
            assert await client.read_to_end() == b""
        await slow_body.send(body[-5:])
        assert (await slow_body.read_answer()).status == 200, "a body has its own time"
        await silent.send(get("/health"))
        assert (await silent.read_answer()).status == 200, "nothing has begun there"
        assert (await busy.read_answer()).status == 200
    said = [record.getMessage() for record in caplog.records if "slow_head" in record.getMessage()]
    assert len(said) == 150


async def test_one_that_goes_while_nothing_is_written_to_it_is_noticed(make_server: MakeServer) -> None:
    async with make_server(**PATIENT) as server, raw_client(server.url) as client:
        (pid,) = server.supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            await client.send(post(CHAT, {**ENDLESS, "stream": True}))
            await client.read_until(b"data: ")
            client.writer.write_eof()
            client.writer.close()
            async with raw_client(server.url) as asking, asyncio.timeout(DEADLINE_S):
                outcome = b""
                while b'outcome="gone"} 1.0' not in outcome:
                    await asking.send(get("/metrics"))
                    outcome = (await asking.read_answer()).body
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_so_many_wait_for_a_request_at_most(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_WAITING", 10)
    async with make_server() as server, AsyncExitStack() as stack:

        async def connect() -> RawClient:
            return await stack.enter_async_context(raw_client(server.url))

        body = post("/tokenize", {"content": "a"})
        halves = [(b"", get("/health")), (HALF_A_HEAD, b"a\r\n\r\n"), (body[:-5], body[-5:])]
        busy = await connect()
        await busy.send(post(CHAT, LONG))
        await until_running(server)
        clients = []
        for number in range(15):
            clients.append(await connect())
            await clients[-1].send(halves[number % 3][0])
        for client in clients[:5]:
            with suppress(ConnectionResetError):  # half a head was left unread
                assert await client.read_to_end() == b""
        for number, client in enumerate(clients[5:], 5):
            await client.send(halves[number % 3][1])
            assert (await client.read_answer()).status == 200
        assert (await busy.read_answer()).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"SECRET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nSECRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"SECRET" * 10_000 + b"\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00SECRET",
    ],
)
async def test_what_is_no_http_gets_an_error_of_any_api(
    server: Server, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "luce.http.access")
    async with raw_client(server.url) as client:
        await client.send(data)
        answer = await client.read_answer()
        assert await client.read_to_end() == b""
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")
    assert told["error"]["code"] == "unreadable_request"
    (said,) = [record.getMessage() for record in caplog.records if told["request_id"] in record.getMessage()]
    assert "unreadable_request" in said
    assert "SECRET" not in said + answer.body.decode()
