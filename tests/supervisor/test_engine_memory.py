"""What the supervisor asks of an engine's memory: marks, slots, and not reading the same twice.

The engine is real; fault_injector.py says in its place that it keeps pages, and answers for its slots.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest

from luce.supervisor import Supervisor
from tests.supervisor.streams import DEADLINE_S, FaultyEngine, collect, request

PATIENT = {"stopped_timeout_s": 600.0, "asleep_timeout_s": 600.0}
"""For tests that stop the engine: it is not taken for dead, however long they need."""
SYSTEM = tuple(range(10, 310))  # longer than what is worth a slot


def conversation(number: int, n_tokens: int) -> tuple[int, ...]:
    return SYSTEM + tuple(1000 + number + i for i in range(n_tokens))


def asked_for(log: Path) -> list[tuple[str, str]]:
    """(snap=, marks=) of each generation, as the engine has read them."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("gen ")]
    return [
        tuple((re.search(rf" {key}=(\S+)", line) or ["", ""])[1] for key in ("snap", "marks"))  # type: ignore[misc]
        for line in lines
    ]


async def test_an_engine_that_keeps_nothing_is_asked_for_nothing(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor(faulty(SLOTS="none", LOG=log)) as supervisor:
        await collect(supervisor, request(prompt_ids=conversation(0, 300), boundaries=(300, 500)))
    assert asked_for(log) == [("", "")]


async def test_boundaries_become_marks_and_the_first_and_last_get_slots(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor(faulty(SLOTS=8, LOG=log)) as supervisor:
        first = request(prompt_ids=conversation(0, 300), boundaries=(300, 400, 590, 601, 0))
        await collect(supervisor, first)
        await collect(supervisor, first)  # all it could keep is kept
        await collect(supervisor, request(prompt_ids=conversation(0, 600), boundaries=(300, 400, 590, 890)))
        await collect(supervisor, request(prompt_ids=conversation(99, 100), boundaries=(300, 390)))
        await collect(supervisor, request(prompt_ids=(5,) * 100, boundaries=(50, 90)))  # too short for a slot
        status = supervisor.status().engines[0]
        assert (status.slots, status.n_slots_used) == (8, 4)
        assert status.slot_bytes_used > 0
    assert asked_for(log) == [
        ("300:0,590:1", "300,400,590"),
        ("", "300,400,590"),
        ("890:2", "300,400,590,890"),
        ("390:3", "300,390"),
        ("", "50,90"),
    ]


async def test_marks_within_messages_get_no_slots(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor(faulty(SLOTS=8, LOG=log)) as supervisor:
        asked = request(prompt_ids=conversation(0, 300), boundaries=(300, 590), marks=(595, 280, 300, 0, 600, 700))
        await collect(supervisor, asked)
    assert asked_for(log) == [("300:0,590:1", "280,300,590,595")]


async def test_snapshots_that_fail_leave_their_slots_free(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor(faulty(SLOTS=3, REFUSE=1, LOG=log)) as supervisor:
        for _ in range(3):
            await collect(supervisor, request(prompt_ids=conversation(0, 300), boundaries=(300, 590)))
        assert supervisor.status().engines[0].n_slots_used == 0
    assert [snap for snap, _ in asked_for(log)] == ["300:0,590:1"] * 3


async def test_a_cancelled_request_strands_no_slot(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(SLOTS=3, changes=PATIENT)) as supervisor:
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)  # nothing is confirmed
        task = asyncio.create_task(collect(supervisor, request(prompt_ids=conversation(0, 300), boundaries=(300, 590))))
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].slot_bytes_used == 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        os.kill(pid, signal.SIGCONT)
        await collect(supervisor, request(prompt_ids=conversation(7, 300), boundaries=(300, 590)))
        status = supervisor.status().engines[0]
        assert status.n_slots_used == 2  # what the engine took after all; nothing is on its way for ever
        slots = supervisor._multiplexer.handle(supervisor._monitors[0]).slots
        assert slots is not None
        slots.check_integrity()
        assert not slots._reserved


async def test_slots_are_given_up_for_bytes_and_the_engine_is_told(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = faulty(SLOTS=8, LOG=log, changes={"slot_budget": 5 * 1000 + 500 + 100})  # five pages and a tail
    async with Supervisor(config) as supervisor:
        await collect(supervisor, request(prompt_ids=(7,) * 300, boundaries=(256,)))
        await collect(supervisor, request(prompt_ids=(8,) * 400, boundaries=(320,)))
        assert supervisor.status().engines[0].n_slots_used == 1
    words = [line.split()[0] for line in log.read_text().splitlines() if line.startswith(("gen", "free"))]
    assert words == ["gen", "free", "gen"]
    assert [snap for snap, _ in asked_for(log)] == ["256:0", "320:0"]


async def test_a_new_engine_has_empty_slots(faulty: FaultyEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Supervisor(faulty(SLOTS=8, LOG=log)) as supervisor:
        asked = request(prompt_ids=conversation(0, 300), boundaries=(300, 590))
        await collect(supervisor, asked)
        os.kill(supervisor.engine_pids()[0], signal.SIGKILL)
        await collect(supervisor, asked)
        assert supervisor.status().engines[0].n_slots_used == 2
    assert [snap for snap, _ in asked_for(log)] == ["300:0,590:1"] * 2


async def test_what_another_is_reading_is_waited_for(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(SLOTS=8, changes=PATIENT)) as supervisor:
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)  # so that the first prompt is not read before the others come
        shared = (len(SYSTEM),)  # a boundary: the engine leaves a tail there, from which the others can go on
        asked = [request(prompt_ids=conversation(i, 200 + i), boundaries=shared) for i in range(3)] + [request()]
        tasks = [asyncio.create_task(collect(supervisor, one)) for one in asked]
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().n_waiting != 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert supervisor.status().engines[0].n_running == 2  # the first, and the one that shares nothing
        os.kill(pid, signal.SIGCONT)
        assert [len(answer.tokens) for answer in await asyncio.gather(*tasks)] == [20] * 4


async def test_a_beginning_without_a_tail_is_not_waited_for(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(SLOTS=8, changes=PATIENT)) as supervisor:
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        tasks = [
            asyncio.create_task(collect(supervisor, request(prompt_ids=conversation(i, 200 + i)))) for i in range(3)
        ]
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].n_running != 3:  # noqa: ASYNC110
                await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        assert [len(answer.tokens) for answer in await asyncio.gather(*tasks)] == [20] * 3


async def test_without_pages_there_is_nothing_to_wait_for(faulty: FaultyEngine) -> None:
    async with Supervisor(faulty(SLOTS="none", changes=PATIENT)) as supervisor:
        (pid,) = supervisor.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        tasks = [asyncio.create_task(collect(supervisor, request(prompt_ids=SYSTEM))) for _ in range(4)]
        async with asyncio.timeout(DEADLINE_S):
            while supervisor.status().engines[0].n_running != 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        assert [len(answer.tokens) for answer in await asyncio.gather(*tasks)] == [20] * 4
