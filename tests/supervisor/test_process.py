"""EngineProcess with real children: starts that fail, ends that are slow, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from luce.supervisor import DaemonConfig, EngineProcess, StartError, StopDeadlines
from luce.supervisor.engine.activity import Activity
from luce.supervisor.engine.process import describe_exit

DEADLINE_S = 120.0
QUICK = StopDeadlines(quit_s=0.3, terminate_s=0.3, kill_s=DEADLINE_S)


def script(tmp_path: Path, body: str) -> Path:
    """A program that is not luced."""
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def open_descriptors() -> set[str]:
    gc.collect()
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}  # noqa: PTH115, PTH208


def _is_open(fd: str) -> bool:
    return Path(f"/proc/self/fd/{fd}").is_symlink()


async def test_ready_says_what_runs(luced: Path, config: DaemonConfig) -> None:
    async with await EngineProcess.spawn(luced, config) as process:
        fields = dict((await process.wait_ready(timeout_s=DEADLINE_S)).fields)
        assert fields["proto"] == "2"
        assert fields["lanes"] == "4"
        assert int(fields["pid"]) == process.pid
        assert process.exit_code is None
    assert process.exit_code == 0


async def test_nothing_is_left_behind(luced: Path, config: DaemonConfig) -> None:
    async with await EngineProcess.spawn(luced, config) as process:
        await process.wait_ready(timeout_s=DEADLINE_S)
    before, children = open_descriptors(), psutil.Process().children()
    for _ in range(3):
        async with await EngineProcess.spawn(luced, config) as process:
            await process.wait_ready(timeout_s=DEADLINE_S)
        assert not psutil.pid_exists(process.pid)
    assert len(open_descriptors()) <= len(before)
    assert psutil.Process().children() == children


async def test_stop_climbs_to_sigkill(luced: Path, config: DaemonConfig) -> None:
    async with await EngineProcess.spawn(luced, config) as process:
        await process.wait_ready(timeout_s=DEADLINE_S)
        os.kill(process.pid, signal.SIGSTOP)  # it can hear neither quit nor SIGTERM
        assert await process.stop(QUICK) == -signal.SIGKILL
        assert await process.stop(QUICK) == -signal.SIGKILL  # once more does no harm


async def test_one_that_writes_to_disk_at_its_end_is_waited_for(config: DaemonConfig, tmp_path: Path) -> None:
    """Longer than the two seconds of one that has nothing to write."""
    writing = script(tmp_path, "cat >/dev/null; sleep 3; exit 0")
    async with await EngineProcess.spawn(writing, replace(config, disk_cache=tmp_path / "cache")) as process:
        pass
    assert process.exit_code == 0


async def test_an_exception_stops_the_child(luced: Path, config: DaemonConfig) -> None:
    with pytest.raises(ZeroDivisionError):
        async with await EngineProcess.spawn(luced, config) as process:
            raise ZeroDivisionError
    assert not psutil.pid_exists(process.pid)


async def test_a_cancelled_stop_still_ends_the_child(luced: Path, config: DaemonConfig) -> None:
    process = await EngineProcess.spawn(luced, config)
    await process.wait_ready(timeout_s=DEADLINE_S)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await process.stop()
    assert process.exit_code == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


async def test_a_cancelled_start_leaves_nothing(config: DaemonConfig, tmp_path: Path) -> None:
    """Wherever it is cancelled. A pipe that nobody has closed complains when it is collected."""
    program = script(tmp_path, "exec cat >/dev/null")
    before, children = open_descriptors(), psutil.Process().children()
    for n_turns in range(12):
        starting = asyncio.create_task(EngineProcess.spawn(program, config))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await (await starting).kill()
    async with asyncio.timeout(DEADLINE_S):
        while len(open_descriptors()) > len(before):  # noqa: ASYNC110
            await asyncio.sleep(0)  # what was closed is gone in the loop's next turns
    assert psutil.Process().children() == children


async def test_no_such_program(config: DaemonConfig, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="No such file"):
        await EngineProcess.spawn(tmp_path / "none", config)


async def test_a_model_that_is_none(luced: Path, tmp_path: Path) -> None:
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    async with await EngineProcess.spawn(luced, DaemonConfig(model=model)) as process:
        with pytest.raises(StartError) as failed:
            await process.wait_ready(timeout_s=DEADLINE_S)
    assert failed.value.exit_code == 2


async def test_a_start_that_fails_leaves_asyncio_nothing_to_complain_of(luced: Path, tmp_path: Path) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    model = tmp_path / "bad.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    for _ in range(20):
        async with await EngineProcess.spawn(luced, DaemonConfig(model=model)) as process:
            with pytest.raises(StartError):
                await process.wait_ready(timeout_s=DEADLINE_S)
    assert complaints == []


async def test_a_program_that_is_not_luced(config: DaemonConfig, tmp_path: Path) -> None:
    program = script(tmp_path, r"printf '\377\376 sorry\nlast words' >&2; exit 3")
    seen: list[str] = []
    async with await EngineProcess.spawn(program, config, on_log=seen.append) as process:
        with pytest.raises(StartError, match="exit code 3") as failed:
            await process.wait_ready(timeout_s=DEADLINE_S)
    assert failed.value.exit_code == 3
    assert seen == ["\ufffd\ufffd sorry", "last words"]
    assert process.log_tail() == seen


async def test_a_program_that_says_nothing(config: DaemonConfig, tmp_path: Path) -> None:
    async with await EngineProcess.spawn(script(tmp_path, "exec cat"), config) as process:
        with pytest.raises(StartError, match=r"within 0\.2 s"):
            await process.wait_ready(timeout_s=0.2)
        await process.stop(QUICK)
    assert process.exit_code is not None


async def test_a_program_that_talks_garbage(config: DaemonConfig, tmp_path: Path) -> None:
    program = script(tmp_path, "echo '[daemon] ready proto'; echo 'ok N=x'; exec cat")
    async with await EngineProcess.spawn(program, config) as process:
        with pytest.raises(StartError):
            await process.wait_ready(timeout_s=DEADLINE_S)
        await process.stop(QUICK)


def test_killing_the_supervisor_leaves_no_engine(luced: Path, tiny_model: Path) -> None:
    code = f"""
import asyncio
from pathlib import Path
from luce.supervisor import DaemonConfig, EngineProcess
async def main():
    process = await EngineProcess.spawn(Path({str(luced)!r}), DaemonConfig(model=Path({str(tiny_model)!r})))
    await process.wait_ready(60)
    print(process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:
            supervisor.kill()
            gone, _, _ = select.select([pidfd], [], [], DEADLINE_S)
            assert gone, f"luced {pid} outlived its supervisor"
        finally:
            os.close(pidfd)


def test_exit_codes_in_words() -> None:
    assert describe_exit(0) == "exit code 0"
    assert describe_exit(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert describe_exit(None) == "still running"


async def test_a_start_that_is_cancelled_leaves_no_pipe_open(luced: Path, tiny_model: Path) -> None:
    """An unclosed one is a warning, and so a failure, of whatever runs when it is collected."""
    starting = asyncio.create_task(EngineProcess.spawn(luced, DaemonConfig(model=tiny_model)))
    await asyncio.sleep(0)  # its first step: the child runs, and the pipes are being connected
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gc.collect()


def test_a_process_is_busy_while_one_of_its_threads_is() -> None:
    body = """
import threading
def spin():
    print("spins", flush=True)
    while True: pass
threading.Thread(target=spin, daemon=True).start()
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", body], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"spins\n"
            activity = Activity(program.pid)
            n_asleep = 0  # looks at which its first thread slept
            while n_asleep < 200:
                assert activity.look().busy
                n_asleep += psutil.Process(program.pid).status() == psutil.STATUS_SLEEPING
        finally:
            program.kill()
    assert not activity.look().busy, "it is gone"
