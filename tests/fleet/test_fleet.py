"""Models take turns: requests wait and are answered as if their model were alone, and what it knew it still knows."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from luce.supervisor import ConfigError, EngineFailedError, GenerateRequest, Supervisor
from luce.supervisor.fleet.fleet import Fleet, FleetConfig, Member
from luce.supervisor.fleet.turns import TurnRules
from tests.fleet.conftest import FleetMaker
from tests.supervisor.streams import Answer, check_same, collect, request, until

LONG = tuple(2 + i * 7 % 8000 for i in range(700))
NAMES = ("left", "right")
PAGE_TOKENS = 64


async def ask(fleet: Fleet, name: str, asked: GenerateRequest) -> Answer:
    return await collect(fleet.supervisors[name], asked)


def n_here(fleet: Fleet) -> int:
    return sum(
        len(supervisor.engine_pids()) > 0 and not parked(supervisor) for supervisor in fleet.supervisors.values()
    )


def parked(supervisor: Supervisor) -> bool:
    return all(engine.is_parked for engine in supervisor.status().engines)


async def test_nothing_is_loaded_before_it_is_asked_for(two_models: FleetMaker) -> None:
    async with Fleet(two_models()) as fleet:
        assert fleet.supervisors["left"].engine_pids() == []
        assert len((await ask(fleet, "left", request())).tokens) == 20
        assert fleet.supervisors["right"].engine_pids() == []


async def test_a_model_that_comes_back_knows_its_conversations(two_models: FleetMaker) -> None:
    async with Fleet(two_models()) as fleet:
        first = await ask(fleet, "left", request(prompt_ids=LONG))
        await ask(fleet, "right", request())
        assert parked(fleet.supervisors["left"]), "one place, two models"
        again = await ask(fleet, "left", request(prompt_ids=LONG))
        assert again.tokens == first.tokens
        assert again.end.n_reused >= 0.95 * len(LONG)
        assert n_here(fleet) == 1
        assert fleet.n_comes == 3


async def test_one_that_ends_comes_back_from_its_disk(two_models: FleetMaker) -> None:
    async with Fleet(two_models(disk=True, ends=True)) as fleet:
        first = await ask(fleet, "left", request(prompt_ids=LONG))
        await ask(fleet, "right", request())
        assert fleet.supervisors["left"].engine_pids() == [], "its host memory is free too"
        again = await ask(fleet, "left", request(prompt_ids=LONG))
        assert again.tokens == first.tokens
        assert again.end.n_reused >= 0.95 * len(LONG)
        assert fleet.supervisors["left"].status().engines[0].n_deaths == 0


async def test_an_answer_that_takes_too_long_goes_on_when_its_model_is_back(two_models: FleetMaker) -> None:
    long = request(max_tokens=700, n_logprobs=2)
    async with Fleet(two_models(drain_s=0.05, rules=TurnRules(turn_s=0.1, linger_s=0.05))) as fleet:
        running = asyncio.create_task(ask(fleet, "left", long))
        await until(lambda: fleet.supervisors["left"].presence.n_running > 0, "it runs")
        assert len((await ask(fleet, "right", request())).tokens) == 20
        assert not running.done(), "it was set aside"
        answer = await running
        check_same([long], [answer], [await ask(fleet, "left", long)], n_compared=1)
        assert fleet.supervisors["left"].status().n_resumes >= 1


async def test_a_parked_engine_that_is_killed_comes_back_from_its_disk(two_models: FleetMaker) -> None:
    async with Fleet(two_models(disk=True)) as fleet:
        left = fleet.supervisors["left"]
        folder = left.config.disk_cache
        assert folder is not None
        n_pages = (len(LONG) + 19) // PAGE_TOKENS
        first = await ask(fleet, "left", request(prompt_ids=LONG))
        await ask(fleet, "right", request())
        await until(lambda: len(list(folder.rglob("*.page"))) == n_pages, "its pages are on disk")
        os.kill(left.engine_pids()[0], signal.SIGKILL)
        await until(lambda: not left.engine_pids(), "it is dead")
        assert len((await ask(fleet, "right", request())).tokens) == 20
        assert left.engine_pids() == [], "it is not started while another one has the place"
        again = await ask(fleet, "left", request(prompt_ids=LONG))
        assert again.tokens == first.tokens
        assert again.end.n_reused >= len(LONG) - PAGE_TOKENS


@dataclasses.dataclass(frozen=True)
class Turn:
    asked: GenerateRequest
    answer: Answer
    n_known: int
    """Tokens that its model had computed before."""
    has_swapped: bool
    """Since the turn before."""
    has_died: bool

    @property
    def n_anew(self) -> int:
        return max(self.n_known - self.answer.end.n_reused, 0)


async def test_models_swap_under_load_and_kill_9(two_models: FleetMaker, full: bool) -> None:
    """Four agents on each of two models, that grow their conversations turn by turn."""
    n_turns, n_swaps = (110, 100) if full else (3, 4)
    drawn = random.Random(2)
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def agent(fleet: Fleet, name: str, number: int) -> list[Turn]:
        supervisor = fleet.supervisors[name]

        def seen() -> tuple[float, int]:
            return supervisor.presence.since_s, supervisor.status().engines[0].n_deaths

        text = [300 + number * 31 + NAMES.index(name) * 7 + i for i in range(40)]
        turns: list[Turn] = []
        n_known, (since_s, n_deaths) = 0, seen()
        for _ in range(n_turns):
            asked = request(prompt_ids=tuple(text), max_tokens=24, n_logprobs=2)
            answer = await ask(fleet, name, asked)
            answered.put_nowait(None)
            before = since_s, n_deaths
            since_s, n_deaths = seen()
            turns.append(Turn(asked, answer, n_known, since_s != before[0], n_deaths != before[1]))
            n_known = len(text) + len(answer.tokens) - 1
            text += [*answer.tokens, *(drawn.randrange(300, 8000) for _ in range(10))]
        return turns

    async def kill(fleet: Fleet) -> None:
        """One of them, whatever it does just then, after each few answers."""
        while True:
            for _ in range(drawn.randrange(2, 8)):
                await answered.get()
            pids = [pid for supervisor in fleet.supervisors.values() for pid in supervisor.engine_pids()]
            with suppress(ProcessLookupError, IndexError):
                os.kill(drawn.choice(pids), signal.SIGKILL)

    async with Fleet(two_models(disk=True, rules=TurnRules(turn_s=0.2, linger_s=0.05))) as fleet:
        async with asyncio.TaskGroup() as group:
            killer = group.create_task(kill(fleet))
            agents = [group.create_task(agent(fleet, name, number)) for name in NAMES for number in range(4)]
            await asyncio.wait(agents)
            killer.cancel()
        assert fleet.n_comes >= n_swaps
        turns = [turn for agent in agents for turn in agent.result()]
        left = fleet.supervisors["left"]
        expected = [await collect(left, turn.asked) for turn in turns]
    asked, answers = [turn.asked for turn in turns], [turn.answer for turn in turns]
    check_same(asked, answers, expected, n_compared=len(turns) // 2)
    back = [turn for turn in turns if turn.has_swapped and not turn.has_died and turn.n_known > 0]
    share = sum(turn.n_anew for turn in back) / max(sum(turn.n_known for turn in back), 1)
    n_killed = sum(turn.has_died for turn in turns)
    n_tokens = sum(len(answer.tokens) for answer in answers)
    print(
        f"{fleet.n_comes} swaps, {n_tokens} tokens of {len(turns)} answers compared, {n_killed} answers after a kill;"
        f" after {len(back)} turns of a model that was away {share:.2%} of their conversations read anew"
    )
    assert share <= 0.05


async def test_a_model_that_cannot_be_loaded_says_so_and_harms_nobody(two_models: FleetMaker, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(100))
    config = two_models()
    broken = Member(name="broken", config=type(config.members[0].config)(model=bad))
    async with Fleet(FleetConfig(members=[*config.members, broken], rules=config.rules)) as fleet:
        for _ in range(2):
            with pytest.raises(EngineFailedError, match=r"bad\.gguf"):
                await ask(fleet, "broken", request())
            assert len((await ask(fleet, "left", request())).tokens) == 20


async def test_a_resident_model_is_there_from_the_start_and_stays(two_models: FleetMaker) -> None:
    left, right = two_models().members
    small = Member(name="small", config=left.config, resident=True, group=None)
    async with Fleet(FleetConfig(members=[small, left, right], rules=TurnRules(turn_s=0.1))) as fleet:
        (pid,) = fleet.supervisors["small"].engine_pids()
        for name in (*NAMES, *NAMES):
            await ask(fleet, name, request())
        assert fleet.supervisors["small"].engine_pids() == [pid]
        assert not parked(fleet.supervisors["small"])


async def test_one_that_comes_is_not_put_to_sleep_for_its_time_away(two_models: FleetMaker) -> None:
    plan = two_models()
    members = [
        dataclasses.replace(one, config=dataclasses.replace(one.config, sleep_idle_s=0.2, log_level="debug"))
        for one in plan.members
    ]
    log: list[str] = []
    async with Fleet(dataclasses.replace(plan, members=members), on_log=log.append) as fleet:
        for name in ("left", "right"):
            await ask(fleet, name, request())
        await until(lambda: parked(fleet.supervisors["right"]), "it sleeps where it is")
        await ask(fleet, "left", request())
    assert sum(line.startswith("left: ") and "loaded within" in line for line in log) == 2


async def test_names_and_aliases_are_one_models(two_models: FleetMaker) -> None:
    left, right = (dataclasses.replace(member, aliases=("same",)) for member in two_models().members)
    with pytest.raises(ConfigError, match="two models are called same"):
        FleetConfig(members=[left, right])
    with pytest.raises(ConfigError, match="one model at least"):
        FleetConfig(members=[])


async def test_what_goes_wrong_within_a_fleet_comes_out_as_it_is(two_models: FleetMaker) -> None:
    with pytest.raises(FileNotFoundError):
        async with Fleet(two_models()):
            raise FileNotFoundError


async def test_leaving_a_fleet_leaves_nothing_behind(two_models: FleetMaker) -> None:
    async with Fleet(two_models()) as fleet:
        waiting = asyncio.create_task(ask(fleet, "left", request(max_tokens=5000)))
        other = asyncio.create_task(ask(fleet, "right", request()))
        await until(lambda: len(fleet.supervisors["left"].engine_pids()) > 0, "it starts")
        pids = [pid for supervisor in fleet.supervisors.values() for pid in supervisor.engine_pids()]
    outcomes = await asyncio.gather(waiting, other, return_exceptions=True)
    assert all(isinstance(outcome, Exception | Answer) for outcome in outcomes)
    assert not any(psutil.pid_exists(pid) for pid in pids)
