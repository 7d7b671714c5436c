"""A model on two workers: the same tokens as without them, and a worker that dies or hangs costs a pause."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from luce.supervisor import StartError, Supervisor, SupervisorConfig
from luce.supervisor.engine.generation import EXIT_TRY_LATER
from tests.supervisor.streams import DEADLINE_S, check_same, collect, request, until

LONG = tuple(2 + i * 7 % 8000 for i in range(700))


class Worker:
    """A luced that lends its CPU."""

    def __init__(self, luced: Path) -> None:
        self._luced = luced
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.process: subprocess.Popen[bytes]

    @contextmanager
    def running(self) -> Iterator[None]:
        command = [str(self._luced), "--rpc-worker", self.address, "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as self.process:
            try:
                self._wait()
                yield
            finally:
                self.process.kill()

    def _wait(self) -> None:
        host, port = self.address.split(":")
        for _ in range(int(DEADLINE_S * 20)):
            with socket.socket() as tried:
                tried.settimeout(0.05)
                if tried.connect_ex((host, int(port))) == 0:
                    return
            assert self.process.poll() is None
        pytest.fail("the worker does not listen")


@pytest.fixture
def workers(luced: Path) -> list[Worker]:
    return [Worker(luced), Worker(luced)]


def on(config: SupervisorConfig, workers: list[Worker]) -> SupervisorConfig:
    """Half of the layers on each: by itself --fit takes the first one, which has room for all."""
    addresses = ",".join(worker.address for worker in workers)
    return dataclasses.replace(config, rpc=addresses, tensor_split=",".join("1" for _ in workers))


@pytest.mark.parametrize("split_mode", ["layer", pytest.param("tensor", marks=pytest.mark.full_only)])
async def test_two_workers_give_the_tokens_of_one_machine(
    brisk: SupervisorConfig, workers: list[Worker], split_mode: Literal["layer", "tensor"]
) -> None:
    asked = [request(prompt_ids=LONG[: 40 * (n + 1)], max_tokens=60, n_logprobs=2) for n in range(4)]
    async with Supervisor(brisk) as alone:
        expected = [await collect(alone, one) for one in asked]
    with workers[0].running(), workers[1].running():
        async with Supervisor(dataclasses.replace(on(brisk, workers), split_mode=split_mode)) as spread:
            answers = await asyncio.gather(*(collect(spread, one) for one in asked))
            check_same(asked, answers, expected, n_compared=3)
            for _ in range(2):
                again = await collect(spread, asked[-1])
                assert again.end.n_reused >= 0.9 * again.end.n_prompt, "memory works there as here"
                check_same(asked[-1:], [again], expected[-1:], n_compared=0)
                await spread.park()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_or_hangs_costs_a_pause(
    brisk: SupervisorConfig, workers: list[Worker], blow: signal.Signals, full: bool
) -> None:
    if blow is signal.SIGSTOP and not full:
        pytest.skip("one that hangs is waited for: --full")
    asked = request(prompt_ids=LONG, max_tokens=400, n_logprobs=2)
    hang_s = 120.0 if blow is signal.SIGKILL else 8.0  # a busy machine is no worker that hangs
    config = dataclasses.replace(on(brisk, workers), busy_timeout_s=hang_s, restart_limit=2)
    log: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(workers[0].running())
        second = stack.enter_context(ExitStack())
        second.enter_context(workers[1].running())
        async with Supervisor(config, on_log=log.append) as supervisor:
            expected = await collect(supervisor, asked)
            running = asyncio.create_task(collect(supervisor, asked))
            await until(lambda: supervisor.status().engines[0].n_running > 0, "it runs")
            workers[1].process.send_signal(blow)
            await until(lambda: supervisor.status().engines[0].n_deaths > 0, "its engine is gone")
            assert not running.done()
            second.close()
            await until(lambda: supervisor.status().engines[0].n_deaths > 3, "it looks for the worker")
            stack.enter_context(workers[1].running())
            check_same([asked], [await running], [expected], n_compared=1)
    assert len([line for line in log if "cannot be reached" in line]) == 1, log


@contextmanager
def something_else(says: bytes | None) -> Iterator[str]:
    """Its address. It says this and closes, or says nothing."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1 << 16):
                if says is not None:
                    self.request.sendall(says)
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("says", "told"),
    [
        (None, "does not answer"),
        (b"", "no luce rpc-worker"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no luce rpc-worker"),
    ],
    ids=["nothing", "closes", "HTTP"],
)
async def test_a_port_of_something_else_is_named(brisk: SupervisorConfig, says: bytes | None, told: str) -> None:
    with something_else(says) as address:
        with pytest.raises(StartError, match=f"the RPC worker {address}: .*{told}") as failed:
            async with asyncio.timeout(DEADLINE_S), Supervisor(dataclasses.replace(brisk, rpc=address)):
                pass
        assert failed.value.exit_code == EXIT_TRY_LATER, "it may be a worker later"


async def test_a_worker_that_is_not_there_is_named(brisk: SupervisorConfig, workers: list[Worker]) -> None:
    with pytest.raises(StartError, match=f"{workers[0].address} cannot be reached: Connection refused"):
        async with Supervisor(on(brisk, workers[:1])):
            pass
