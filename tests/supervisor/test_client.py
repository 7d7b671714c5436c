"""EngineClient against the real daemon: every request gets its own events, errors and end, whatever else happens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from luce.protocol import (
    ConstraintArgs,
    Embed,
    ErrorCode,
    FreeSlot,
    Generate,
    GenerateOk,
    LocalProtocolError,
    Logprobs,
    SamplingArgs,
    StopReason,
)
from luce.supervisor import EngineClient, EngineDied, EngineError, EngineProcess, Event, TokenEvent
from tests.daemon.same_tokens import NOISE_BATCHING, SampledComparison

PROMPT = (329, 285, 1420, 261, 1319)
DEADLINE_S = 120.0
N_LONG = 16000
"""Tokens of an answer that is not done, however fast the machine, before what is tested beside it has happened."""


async def collect(client: EngineClient, command: Generate) -> list[Event]:
    async with asyncio.timeout(DEADLINE_S), await client.generate(command) as generation:
        return [event async for event in generation]


def tokens_of(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, TokenEvent)]


def logprobs_of(events: list[Event]) -> list[Sequence[tuple[int, float]]]:
    return [event.entries for event in events if isinstance(event, Logprobs)]


def final_of(events: list[Event]) -> GenerateOk:
    assert isinstance(events[-1], GenerateOk)
    return events[-1]


async def test_tokens_come_in_order_and_the_final_event_last(client: EngineClient) -> None:
    events = await collect(client, Generate(prompt=PROMPT, n_generate=20, ignore_eos=True))
    assert [event.index for event in events if isinstance(event, TokenEvent)] == list(range(20))
    final = final_of(events)
    assert (final.n_prompt, final.n_generated, final.stop) == (len(PROMPT), 20, StopReason.LIMIT)


async def test_zero_tokens_are_a_request_too(client: EngineClient) -> None:
    events = await collect(client, Generate(prompt=PROMPT, n_generate=0))
    assert tokens_of(events) == []
    assert final_of(events).n_generated == 0


async def test_logprobs_come_for_each_token(client: EngineClient) -> None:
    events = await collect(client, Generate(prompt=PROMPT, n_generate=5, n_logprobs=3, ignore_eos=True))
    logprobs = [event for event in events if isinstance(event, Logprobs)]
    assert [event.index for event in logprobs] == list(range(5))
    assert [event.entries[0][0] for event in logprobs] == tokens_of(events)


async def test_many_at_once_do_not_mix(client: EngineClient) -> None:
    seeds = range(12)  # more than there are lanes
    commands = [
        Generate(
            prompt=PROMPT,
            n_generate=24,
            ignore_eos=True,
            n_logprobs=4,
            sampling=SamplingArgs(temperature=1.0, seed=seed),
        )
        for seed in seeds
    ]
    alone = [await collect(client, command) for command in commands]
    together = await asyncio.gather(*(collect(client, command) for command in commands))
    comparison = SampledComparison(NOISE_BATCHING)
    for seed, got, expected in zip(seeds, together, alone, strict=True):
        entries = [logprobs_of(events) for events in (got, expected)]
        comparison.check(f"seed {seed}", tokens_of(got), tokens_of(expected), *entries)
    comparison.finish()
    assert len({tuple(tokens_of(events)) for events in alone}) > 1


async def test_a_refused_request_raises_and_the_next_one_works(client: EngineClient) -> None:
    with pytest.raises(EngineError) as refused:
        await collect(client, Generate(prompt=(10**6,), n_generate=1))
    assert refused.value.code is ErrorCode.TOKEN_OUT_OF_RANGE
    assert len(tokens_of(await collect(client, Generate(prompt=PROMPT, n_generate=3, ignore_eos=True)))) == 3


@pytest.fixture
def temporary_dir(own_temporary_dir: Path) -> Iterator[Path]:
    """An empty folder for temporary files; nothing of ours may be in it in the end."""
    yield own_temporary_dir
    assert list(own_temporary_dir.iterdir()) == []


def n_prompt_files() -> int:
    """Files in memory that this process holds open for an engine."""
    links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return sum("memfd:luce-prompt" in str(link.readlink()) for link in links if link.is_symlink())


@pytest.mark.usefixtures("temporary_dir")
async def test_a_prompt_that_no_line_holds_is_refused_by_the_daemon(client: EngineClient) -> None:
    with pytest.raises(EngineError) as refused:
        await collect(client, Generate(prompt=(5000,) * 4_000_000, n_generate=1))  # 20 MB of decimal numbers
    assert refused.value.code is ErrorCode.PROMPT_TOO_LONG
    assert n_prompt_files() == 0


@pytest.mark.usefixtures("temporary_dir")
async def test_a_long_prompt_goes_by_a_file(client: EngineClient, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Generate(prompt=PROMPT, n_generate=12, ignore_eos=True)
    inline = tokens_of(await collect(client, command))
    monkeypatch.setattr("luce.supervisor.engine.client.MAX_INLINE_IDS", 2)
    async with asyncio.timeout(DEADLINE_S), await client.generate(command) as generation:
        assert n_prompt_files() == 1
        assert tokens_of([event async for event in generation]) == inline
    assert n_prompt_files() == 0
    with pytest.raises(LocalProtocolError, match="outside"):
        await client.generate(Generate(prompt=(1, 2, 3, 2**31), n_generate=1))
    assert n_prompt_files() == 0


@pytest.mark.usefixtures("temporary_dir")
async def test_the_prompts_file_goes_with_the_engine(
    client: EngineClient, process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("luce.supervisor.engine.client.MAX_INLINE_IDS", 2)
    generation = await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True))
    await anext(generation)
    assert n_prompt_files() == 1
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        async with asyncio.timeout(DEADLINE_S):
            await anext_until_end(generation)
    assert n_prompt_files() == 0


async def test_a_command_that_no_line_holds_is_not_sent(client: EngineClient) -> None:
    grammar = 'root ::= "' + "x" * (16 << 20) + '"'
    with pytest.raises(LocalProtocolError, match="16,777,216 at most"):
        await collect(client, Generate(prompt=PROMPT, n_generate=1, constraint=ConstraintArgs(grammar=grammar)))
    assert len(tokens_of(await collect(client, Generate(prompt=PROMPT, n_generate=3, ignore_eos=True)))) == 3


async def test_cancel_ends_a_request_with_its_final_event(client: EngineClient) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async with await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True)) as generation:
            events = [await anext(generation)]
            await generation.cancel()
            events += [event async for event in generation]
    final = final_of(events)
    assert final.stop is StopReason.CANCEL
    assert final.n_generated == len(tokens_of(events)) < N_LONG


async def test_leaving_a_generation_cancels_it(client: EngineClient) -> None:
    for _ in range(8):  # twice the lanes: none of them may stay taken
        async with asyncio.timeout(DEADLINE_S):
            async with await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True)) as generation:
                await anext(generation)
    assert len(tokens_of(await collect(client, Generate(prompt=PROMPT, n_generate=3, ignore_eos=True)))) == 3


async def test_ping_and_status_are_answered_while_generating(client: EngineClient) -> None:
    async with await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True)) as generation:
        await anext(generation)
        await client.ping(timeout_s=DEADLINE_S)
        fields = dict((await client.status(timeout_s=DEADLINE_S)).fields)
        assert not generation.done
    assert fields["lanes"] == "4"


async def test_death_of_the_engine_reaches_every_waiter(client: EngineClient, process: EngineProcess) -> None:
    generations = [await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True)) for _ in range(6)]
    await anext(generations[0])
    os.kill(process.pid, signal.SIGSTOP)  # so that the answers below cannot come before the end does
    waiting = [asyncio.ensure_future(client.ping(DEADLINE_S)), asyncio.ensure_future(client.status(DEADLINE_S))]
    waiting += [asyncio.ensure_future(anext_until_end(generation)) for generation in generations]
    await asyncio.sleep(0)
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [EngineDied] * 8
    assert "SIGKILL" in str(results[0])
    with pytest.raises(EngineDied):
        await client.generate(Generate(prompt=PROMPT, n_generate=1))
    with pytest.raises(EngineDied):
        await client.ping(timeout_s=1)


async def anext_until_end(generation: object) -> None:
    async for _ in generation:  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize("is_text", [True, False])
async def test_what_finds_the_engines_input_closed_says_that_it_has_died(
    client: EngineClient, process: EngineProcess, is_text: bool
) -> None:
    assert process._stdin is not None
    process._stdin.abort()  # as where it has died, and the pipe notices first
    with pytest.raises(EngineDied, match="standard input"):
        client.post_embed(Embed(prompt=PROMPT)) if is_text else client.post_call(FreeSlot(0))


async def test_a_ping_that_is_not_answered_times_out(client: EngineClient, process: EngineProcess) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await client.ping(timeout_s=0.2)
    os.kill(process.pid, signal.SIGCONT)
    await client.ping(timeout_s=DEADLINE_S)


async def test_a_closed_client_ends_its_generations(process: EngineProcess) -> None:
    async with EngineClient(process) as client:
        generation = await client.generate(Generate(prompt=PROMPT, n_generate=N_LONG, ignore_eos=True))
        await anext(generation)
    with pytest.raises(EngineDied):
        await anext_until_end(generation)
