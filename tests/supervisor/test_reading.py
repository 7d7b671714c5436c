"""Prompts of which only parts are read, below HTTP: which are, what their engine is told, that they take no slots, that
nobody waits for what they leave out, and that they outlive their engines like any other."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from luce.protocol import MAX_MARKS, PinSpan, Reading, ReadingArgs
from luce.supervisor import (
    ConfigError,
    DaemonConfig,
    GenerateRequest,
    PromptTooLongError,
    RequestRefusedError,
    Supervisor,
    SupervisorConfig,
    TokenEvent,
)
from luce.supervisor.config.table import engine_options
from luce.supervisor.engine.image_file import ImageFile
from luce.supervisor.requests import PromptImage
from luce.supervisor.scheduling.reading_policy import DEFAULT_FROM, ReadingPolicy
from luce.supervisor.text import TextModel
from tests.daemon.test_residency import Facts
from tests.supervisor.streams import DEADLINE_S, Answer, FaultyEngine, collect, request

SPARSE = ReadingArgs(prefill=Reading.SPARSE)
AUTO = ReadingArgs(prefill=Reading.AUTO)
FULL = ReadingArgs(prefill=Reading.FULL)
NOTHING = ReadingArgs()


@pytest.fixture
def facts(tiny_model: Path) -> Iterator[Facts]:
    with TextModel(tiny_model) as model:
        yield Facts(model, seed=3)


@pytest.fixture
def scorer(data_models: Path) -> Path:
    return data_models / "luce-tiny-scorer-Q8_0.gguf"


@pytest.fixture
def sparse(brisk: SupervisorConfig, scorer: Path) -> SupervisorConfig:
    return dataclasses.replace(brisk, ctx=8192, pool=16384, prefill_scorer=scorer, prefill_repair="off")


def policy(**options: Any) -> ReadingPolicy:
    return ReadingPolicy.of(DaemonConfig(model=Path("m"), **options))


def asked(reading: ReadingArgs, n_images: int = 0) -> GenerateRequest:
    images = [PromptImage(0, ImageFile("x", b"")) for _ in range(n_images)]
    return request(reading=reading, images=images)


@pytest.mark.parametrize(
    ("options", "reading", "n_first"),
    [
        ({}, NOTHING, None),
        ({}, FULL, None),
        ({}, SPARSE, 0),
        ({}, AUTO, DEFAULT_FROM),
        ({"prefill_from": 500}, AUTO, 500),
        ({}, ReadingArgs(prefill=Reading.AUTO, n_from=700), 700),
        ({}, ReadingArgs(prefill=Reading.AUTO, n_from=40_000), 20_000),  # what does not fit is read in parts
        ({}, ReadingArgs(share=0.5, n_from=10), None),
        ({"prefill": "sparse"}, NOTHING, 0),
        ({"prefill": "sparse"}, FULL, None),
        ({"prefill": "auto", "prefill_from": 900}, NOTHING, 900),
        ({"prefill": "auto"}, ReadingArgs(n_from=10), 10),
    ],
)
def test_which_prompts_may_be_read_in_parts(options: dict[str, Any], reading: ReadingArgs, n_first: int | None) -> None:
    settled = policy(**options)
    assert settled.parts_from(reading, 20_000) == n_first
    lengths = (0, 1) if n_first is None else (n_first, n_first + 1)
    for n_prompt in lengths:
        assert settled.may_read_parts(asked(reading), n_prompt, 20_000) == (n_first is not None)
        assert not settled.may_read_parts(asked(reading, n_images=1), n_prompt, 20_000)
    if n_first:
        assert not settled.may_read_parts(asked(reading), n_first - 1, 20_000)


def test_what_an_engine_is_told(caplog: pytest.LogCaptureFixture) -> None:
    spans = ReadingArgs(Reading.SPARSE, 0.5, 10, (PinSpan(0, 5),), (PinSpan(7, 9),))
    for options in ({}, {"prefill": "sparse"}, {"prefill": "auto"}):
        assert policy(**options).told(asked(spans), in_parts=True) == spans
    # Nothing that it does by itself.
    assert policy().told(asked(NOTHING), in_parts=False) == NOTHING
    assert policy().told(asked(FULL), in_parts=False) == NOTHING
    assert policy().told(asked(AUTO), in_parts=False) == NOTHING
    assert policy(prefill="sparse").told(asked(FULL), in_parts=False) == FULL
    assert policy(prefill="auto").told(asked(NOTHING), in_parts=False) == FULL
    with caplog.at_level("INFO", logger="luce.scheduling"):
        for _ in range(2):
            assert policy().told(asked(spans, n_images=1), in_parts=False) == NOTHING
    assert sum("images" in record.message for record in caplog.records) <= 1


def test_from_how_many_tokens_on_is_luceds_own_default() -> None:
    assert f"Default: {DEFAULT_FROM}." in engine_options()["prefill_from"].help


@pytest.mark.parametrize(
    "reading",
    [
        ReadingArgs(share=0),
        ReadingArgs(share=1.5),
        ReadingArgs(n_from=-1),
        ReadingArgs(keep=(PinSpan(5, 5),)),
        ReadingArgs(blocks=(PinSpan(-1, 5),)),
        ReadingArgs(keep=(PinSpan(0, 1),) * (MAX_MARKS + 1)),
    ],
)
def test_what_cannot_be_is_no_request(reading: ReadingArgs) -> None:
    with pytest.raises(ValueError, match="reading"):
        request(reading=reading)


def commands(log: Path) -> list[dict[str, str]]:
    """The arguments of each generation, as its engine has read them."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("gen ")]
    return [dict(re.findall(r" (\w+)=(\S+)", line)) for line in lines]


READING_KEYS = ("prefill", "prefill_keep", "prefill_from", "keep", "blocks", "snap")


def told_of_reading(log: Path) -> list[dict[str, str]]:
    return [{key: value for key, value in words.items() if key in READING_KEYS} for words in commands(log)]


async def test_parts_take_no_slots(faulty: FaultyEngine, scorer: Path, facts: Facts, tmp_path: Path) -> None:
    log = tmp_path / "log"
    changes = {"ctx": 8192, "prefill_scorer": scorer, "prefill_repair": "off"}
    async with Supervisor(faulty(LOG=log, changes=changes)) as supervisor:
        for reading in (ReadingArgs(Reading.SPARSE, 0.25, keep=(PinSpan(64, 128),)), NOTHING):
            prompt, _ = facts.prompt(200, 0.5)
            boundaries = (400, len(prompt))
            answer = await collect(supervisor, request(prompt_ids=prompt, boundaries=boundaries, reading=reading))
            assert (answer.end.n_read is None) == (reading is NOTHING)
            assert answer.end.n_prompt == len(prompt)
    sparse, whole = told_of_reading(log)
    assert sparse == {"prefill": "sparse", "prefill_keep": "0.25", "keep": "64:128"}
    assert whole.keys() == {"snap"}
    assert [words["marks"].split(",")[0] for words in commands(log)] == ["400", "400"]


async def test_short_prompts_of_a_server_that_reads_long_ones_in_parts(
    faulty: FaultyEngine, scorer: Path, facts: Facts, tmp_path: Path
) -> None:
    """They are read whole, and get their slots."""
    log = tmp_path / "log"
    changes = {"ctx": 8192, "prefill_scorer": scorer, "prefill_repair": "off", "prefill": "auto", "prefill_from": 1200}
    async with Supervisor(faulty(LOG=log, changes=changes)) as supervisor:
        assert supervisor.has_scorer
        assert supervisor.parts_from(NOTHING) == 1200
        for n_sentences in (80, 200):
            prompt, _ = facts.prompt(n_sentences, 0.5)
            answer = await collect(supervisor, request(prompt_ids=prompt, boundaries=(400,)))
            assert (answer.end.n_read is None) == (n_sentences == 80)
    short, long = told_of_reading(log)
    assert short.keys() == {"prefill", "snap"}
    assert short["prefill"] == "full"
    assert long == {}


async def test_a_prompt_beyond_the_context(sparse: SupervisorConfig, facts: Facts) -> None:
    prompt, code = facts.prompt(300, 0.4)
    async with Supervisor(dataclasses.replace(sparse, ctx=1536, pool=6144)) as supervisor:
        with pytest.raises(PromptTooLongError):
            await collect(supervisor, request(prompt_ids=prompt))
        answer = await collect(supervisor, request(prompt_ids=prompt, reading=AUTO))
        assert facts.tells(answer.tokens, code)
        assert answer.end.n_read is not None
        assert answer.end.n_reused <= answer.end.n_read < 1536 < answer.end.n_prompt
        whole = (PinSpan(0, len(prompt)),)
        with pytest.raises(PromptTooLongError, match="1536"):  # all of it is to be read
            await collect(supervisor, request(prompt_ids=prompt, reading=dataclasses.replace(AUTO, keep=whole)))


async def test_without_a_small_model(brisk: SupervisorConfig) -> None:
    async with Supervisor(brisk) as supervisor:
        assert not supervisor.has_scorer
        with pytest.raises(RequestRefusedError, match="--prefill-scorer"):
            await collect(supervisor, request(reading=SPARSE))
        assert (await collect(supervisor, request(reading=FULL))).end.n_read is None


async def test_all_engines_read_alike(sparse: SupervisorConfig, scorer: Path) -> None:
    unlike: list[list[dict[str, Any]]] = [[{}, {"prefill": "sparse"}], [{"prefill_scorer": None}, {}]]
    for engines in unlike:
        with pytest.raises(ConfigError, match="prefill_scorer"):
            async with Supervisor(dataclasses.replace(sparse, engines=engines)):
                pass
    async with Supervisor(dataclasses.replace(sparse, engines=[{}, {"prefill_scorer": scorer}])) as supervisor:
        assert len(supervisor.engine_pids()) == 2


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full_only)])
async def test_an_engine_that_is_lost_is_a_pause(
    faulty: FaultyEngine, scorer: Path, facts: Facts, tmp_path: Path, signal_number: int
) -> None:
    """What has come of the answer is read by the next engine in any case, and so is what the request names."""
    log = tmp_path / "log"
    changes = {"ctx": 8192, "prefill_scorer": scorer, "prefill_repair": "off"}
    prompt, code = facts.prompt(300, 0.4)
    reading = ReadingArgs(Reading.SPARSE, keep=(PinSpan(128, 256),), blocks=(PinSpan(300, 400),))
    wanted = request(prompt_ids=prompt, reading=reading, max_tokens=200)
    async with Supervisor(faulty(LOG=log, changes=changes)) as supervisor:
        answer = await collect_and_kill(supervisor, wanted, at=[8, 60], signal_number=signal_number)
        assert supervisor.status().n_resumes == 2
    assert facts.tells(answer.tokens[:24], code)
    assert len(answer.tokens) == 200
    end = answer.end
    assert end.n_resumes == 2
    assert end.n_read is not None
    assert end.n_reused <= end.n_read < 0.3 * len(prompt)
    told = commands(log)
    assert len(told) == 3
    for words in told:
        assert (words["prefill"], words["keep"], words["blocks"]) == ("sparse", "128:256", "300:400")
        assert "snap" not in words
    assert [int(words.get("generated", 0)) > 0 for words in told] == [False, True, True]


async def collect_and_kill(
    supervisor: Supervisor, wanted: GenerateRequest, *, at: list[int], signal_number: int
) -> Answer:
    answer = Answer()
    async with asyncio.timeout(DEADLINE_S), aclosing(supervisor.generate(wanted)) as events:
        async for event in events:
            answer.take(event)
            if isinstance(event, TokenEvent) and event.index in at:
                for pid in supervisor.engine_pids():
                    os.kill(pid, signal_number)
    return answer


async def test_nobody_waits_for_what_another_leaves_out(sparse: SupervisorConfig, facts: Facts) -> None:
    """A prompt that is read whole does not find what is computed behind a gap."""
    prompt, _ = facts.prompt(400, 0.5)
    async with Supervisor(dataclasses.replace(sparse, share_min_tokens=64)) as supervisor:
        parts = request(prompt_ids=prompt, reading=SPARSE, boundaries=(800, len(prompt)), max_tokens=2)
        whole = request(prompt_ids=[*prompt[:-8], *prompt[-4:]], boundaries=(800,), max_tokens=2)
        answers = await asyncio.gather(*(collect(supervisor, one) for one in (parts, whole, parts)))
        first, second, third = (answer.end for answer in answers)
        assert second.n_read is None
        assert second.queue_s < first.queue_s + first.prefill_s
        # The same parts of the same prompt are read once.
        assert third.queue_s > first.prefill_s / 2
        assert third.n_reused > 0.8 * (third.n_read or third.n_prompt)
        assert first.tier == "none"
