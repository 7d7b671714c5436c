"""A server under stress and at its end: clients that vanish, readers that stall, engines that die, signals."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest

from tests.daemon.same_tokens import NOISE_CUTS, Comparison
from tests.http.conftest import MakeServer
from tests.http.raw_client import RawAnswer, RawClient, get, post, raw_client
from tests.http.serving import Server

CHAT = "/v1/chat/completions"
DEADLINE_S = 120.0
PATIENT = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0, "stalled_timeout_s": 600.0}
"""The supervisor takes an engine that a test has stopped for a slow one."""
LONG_PROMPT = "All work and no play makes a dull day. " * 280  # thousands of tokens: prefill takes its time


def asked(text: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "any", "ignore_eos": True, "messages": [{"role": "user", "content": text}], **more}


async def until(holds: Callable[[], bool], what: str) -> None:
    """Fails when it never does."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110  the state is another thread's
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"never: {what}")


def is_idle(server: Server) -> bool:
    status = server.supervisor.status()
    return status.n_waiting == 0 and all(engine.n_running == 0 for engine in status.engines)


def lines_of(data: bytes) -> list[Any]:
    """The events of a stream in OpenAI's shape."""
    events = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: ")]
    return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        (CHAT, True),
        ("/v1/messages", True),
        ("/v1/responses", True),
        (CHAT, False),
        pytest.param("/v1/messages", False, marks=pytest.mark.full_only),
        pytest.param("/v1/responses", False, marks=pytest.mark.full_only),
    ],
)
async def test_clients_that_vanish_free_their_lanes(
    make_server: MakeServer, path: str, stream: bool, full: bool
) -> None:
    """Mid-prefill, in the queue, and mid-stream, by close and by reset: nothing of theirs is left."""
    async with make_server(ctx=4096) as server:
        await lose_clients(server, path, 4, stream=stream)
        before = footprint(server)
        await lose_clients(server, path, 200 if full else 12, stream=stream)
        # Fewer are fine: what the first ones left may have been counted while it was going.
        await until(
            lambda: all(now <= then for now, then in zip(footprint(server), before, strict=True)),
            f"{footprint(server)} is at most {before} again",
        )
        assert server.supervisor.status().n_failed == 0
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            assert (await client.post(server.url + CHAT, json=asked(max_tokens=2))).status_code == 200


async def lose_clients(server: Server, path: str, n_clients: int, *, stream: bool) -> None:
    n_before = server.supervisor.status().n_requests
    body: dict[str, Any] = {"model": "any", "stream": stream}
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_client(server.url)) for _ in range(n_clients)]
        for number, client in enumerate(clients):
            text = f"{number} " + (LONG_PROMPT if number % 2 else "Hello")
            if path == "/v1/responses":
                body = {**body, "input": text, "max_output_tokens": 1000}
            else:
                body = {**body, "messages": [{"role": "user", "content": text}], "max_tokens": 1000}
            await client.send(post(path, body))
        await until(lambda: server.supervisor.status().n_requests >= n_before + n_clients, "all were taken in")
        for number, client in enumerate(clients):
            if stream:
                await client.read_until(b"data: ")
            client.vanish() if number % 3 else client.writer.close()
    await until(lambda: is_idle(server), "all lanes are free")


def footprint(server: Server) -> tuple[int, int]:
    """Descriptors of this process, tasks of the server."""

    async def count() -> int:
        return len(asyncio.all_tasks())

    gc.collect()
    return psutil.Process().num_fds(), server.call(count)


async def test_readers_that_stall_cost_nobody_else(make_server: MakeServer) -> None:
    async with make_server(stalled_reader_s=1.0, lanes=4, ctx=2048) as server, AsyncExitStack() as stack:
        for _ in range(3):
            stalled = await stack.enter_async_context(raw_client(server.url, receive_buffer=2048))
            await stalled.send(post(CHAT, asked(stream=True, max_tokens=300, logprobs=True, top_logprobs=20)))
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            answer = await client.post(server.url + CHAT, json=asked(max_tokens=50, stream=True))
        assert lines_of(answer.content)[-1] == "[DONE]"
        await until(lambda: is_idle(server), "the others have finished or were ended")


async def test_health_answers_while_prompts_are_read_and_the_queue_is_full(make_server: MakeServer) -> None:
    async with make_server(lanes=1, max_queue=1, **PATIENT) as server, AsyncExitStack() as stack:
        (pid,) = server.supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)  # whoever reads a prompt does so until the end of the test
        for number in range(2):
            busy = await stack.enter_async_context(raw_client(server.url))
            await busy.send(post(CHAT, asked(f"{number} {LONG_PROMPT}", stream=True, max_tokens=1000)))
            await busy.read_until(b"data: ")
        assert not is_idle(server)
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            assert (await client.get(f"{server.url}/health")).json()["status"] == "ok"
            for path in (CHAT, "/v1/messages"):
                answer = await client.post(server.url + path, json=asked("2", stream=True, max_tokens=5))
                assert answer.status_code == 429
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["error"]["type"] == "rate_limit_error"
        assert not is_idle(server)
        os.kill(pid, signal.SIGCONT)


async def test_an_engine_that_is_killed_is_a_pause(make_server: MakeServer) -> None:
    """The same text as without its death, and a health that says so."""
    body = asked("Tell me a story", stream=True, max_tokens=600, temperature=0, logprobs=True, top_logprobs=2)
    async with make_server(prefix_cache="off") as server, httpx.AsyncClient(timeout=DEADLINE_S) as client:

        def tokens(data: bytes) -> list[Any]:
            events = lines_of(data)
            assert events.pop() == "[DONE]"
            told = [choice["logprobs"] for event in events for choice in event["choices"]]
            return [token for logprobs in told if logprobs is not None for token in logprobs["content"]]

        expected = tokens((await client.post(server.url + CHAT, json=body)).content)
        assert len(expected) == 600
        data = bytearray()
        async with client.stream("POST", server.url + CHAT, json=body) as stream:
            async for piece in stream.aiter_bytes():
                if not data:
                    os.kill(server.supervisor.engine_pids()[0], signal.SIGKILL)
                data += piece
        margins = [token["top_logprobs"][0]["logprob"] - token["top_logprobs"][1]["logprob"] for token in expected]
        got, wanted = ([token["id"] for token in told] for told in (tokens(bytes(data)), expected))
        Comparison(NOISE_CUTS).check("after its death", got, wanted, margins)
        assert server.supervisor.status().n_resumes == 1
        await until(lambda: server.supervisor.status().is_healthy, "another engine is ready")
        assert (await client.get(f"{server.url}/health")).json()["status"] == "ok"


async def test_health_while_there_is_no_engine(make_server: MakeServer) -> None:
    slow_restart = {"restart_delay_s": 3600.0, "max_restart_delay_s": 3600.0, "restart_limit": 100}
    async with make_server(**slow_restart) as server, httpx.AsyncClient(timeout=DEADLINE_S) as client:
        os.kill(server.supervisor.engine_pids()[0], signal.SIGKILL)
        await until(lambda: not server.supervisor.status().is_healthy, "its death is seen")
        answer = await client.get(f"{server.url}/health")
        assert answer.status_code == 200
        assert answer.json() == {"status": "degraded", "live": True, "ready": False, "engines": ["backoff"]}


async def test_health_when_there_will_be_no_engine(make_server: MakeServer) -> None:
    async with make_server(restart_limit=1) as server, httpx.AsyncClient(timeout=DEADLINE_S) as client:
        os.kill(server.supervisor.engine_pids()[0], signal.SIGKILL)
        await until(lambda: server.supervisor.status().engines[0].state == "failed", "it is given up")
        answer = await client.get(f"{server.url}/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "failed"
        for path in (CHAT, "/v1/messages", "/v1/responses"):
            answer = await client.post(server.url + path, json={**asked(max_tokens=5), "input": "a"})
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) >= 1


# Signals: a program of its own, as `luce serve` runs it.

PROGRAM = """
import asyncio, sys
from pathlib import Path
from luce.supervisor import Supervisor, SupervisorConfig
from luce.supervisor.http.server import serve
from luce.supervisor.http.settings import ServeSettings

async def main():
    config = SupervisorConfig(
        model=Path(sys.argv[1]), ctx=8192, lanes=2, threads=1, no_warmup=True, log_level="warn",
        stopped_timeout_s=600.0, asleep_timeout_s=600.0,
    )
    settings = ServeSettings(port=0, shutdown_grace_s=float(sys.argv[2]))
    async with Supervisor(config) as supervisor:
        await serve(supervisor, settings, on_ready=lambda url: print(url, flush=True))
    print("left", flush=True)

asyncio.run(main())
"""


class Program:
    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def output(self) -> str:
        async with asyncio.timeout(DEADLINE_S):
            rest, errors = await self.process.communicate()
        assert b"Traceback" not in errors, errors.decode()
        assert b"Warning" not in errors, errors.decode()
        assert self.process.returncode == 0
        return rest.decode()


@asynccontextmanager
async def program(model: Path, *, grace_s: float) -> AsyncIterator[Program]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", PROGRAM, str(model), str(grace_s), stdout=pipe, stderr=pipe
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_S):
            url = (await process.stdout.readline()).decode().strip()
        yield Program(process, url)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def stream(client: httpx.AsyncClient, url: str, began: asyncio.Event, body: dict[str, Any]) -> bytes:
    data = bytearray()
    async with client.stream("POST", url, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_bytes():
            data += piece
            began.set()
    return bytes(data)


async def in_flight(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Awaitable[bytes]:
    """A stream that has begun."""
    began = asyncio.Event()
    task = asyncio.create_task(stream(client, url, began, body))
    async with asyncio.timeout(DEADLINE_S):
        await began.wait()
    return task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_streams_may_finish_after_a_signal(tiny_model: Path, number: signal.Signals) -> None:
    async with program(tiny_model, grace_s=100) as running, httpx.AsyncClient(timeout=DEADLINE_S) as client:
        whole = await in_flight(client, running.url + CHAT, asked(max_tokens=100))
        running.process.send_signal(number)
        assert lines_of(await whole)[-1] == "[DONE]"
        assert await running.output() == "left\n"


async def test_streams_that_do_not_finish_end_with_an_error(tiny_model: Path) -> None:
    async with program(tiny_model, grace_s=0.1) as running, httpx.AsyncClient(timeout=DEADLINE_S) as client:
        chat = await in_flight(client, running.url + CHAT, asked(max_tokens=8000))
        (engine,) = psutil.Process(running.process.pid).children()
        engine.suspend()  # nobody's answer ends before its time
        reading = await in_flight(client, running.url + CHAT, asked(LONG_PROMPT, max_tokens=900))
        messages = await in_flight(client, f"{running.url}/v1/messages", asked(max_tokens=8000))  # waits for a lane
        whole = asyncio.create_task(client.post(running.url + CHAT, json=asked("whole", max_tokens=8000)))
        async with raw_client(running.url) as idle:
            n_taken = b""
            async with asyncio.timeout(DEADLINE_S):
                while b'luce_http_requests_in_progress{api="chat_completions"} 3.0' not in n_taken:
                    await idle.send(get("/metrics"))
                    n_taken = (await idle.read_answer()).body
            running.process.send_signal(signal.SIGTERM)
            for events in (lines_of(await chat), lines_of(await reading)):
                assert events[-1]["error"]["code"] == "shutting_down"
                finishes = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
                assert set(finishes) == {None}
            last = (await messages).strip().split(b"\n\n")[-1]
            assert last.startswith(b"event: error\ndata: ")
            assert b"overloaded_error" in last
            answer = await whole
            assert answer.status_code == 503
            assert answer.headers["Retry-After"]
            assert await idle.read_to_end() == b""
        engine.resume()
        assert await running.output() == "left\n"


async def ask_briefly(connection: RawClient) -> RawAnswer:
    await connection.send(post(CHAT, asked("late", max_tokens=1)))
    return await connection.read_answer()


async def test_a_second_signal_ends_the_grace(tiny_model: Path) -> None:
    async with program(tiny_model, grace_s=1000) as running, httpx.AsyncClient(timeout=DEADLINE_S) as client:
        chat = await in_flight(client, running.url + CHAT, asked(max_tokens=8000))
        async with raw_client(running.url) as idle:
            running.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(DEADLINE_S):
                late = await ask_briefly(idle)
                while late.status == 200:  # the signal is still on its way
                    late = await ask_briefly(idle)
            assert late.status == 503, "nothing new is taken"
            assert late.json()["error"]["code"] == "shutting_down"
            running.process.send_signal(signal.SIGINT)
            assert lines_of(await chat)[-1]["error"]["code"] == "shutting_down"
        assert await running.output() == "left\n"
