"""A replica that is lost in mid-stream: another one goes on from the tokens that were sent, and nobody sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from luce.supervisor import (
    Begun,
    DeadlineError,
    FinishedEvent,
    GenerateRequest,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    Supervisor,
    SupervisorConfig,
    TokenEvent,
)
from luce.supervisor.service import Submission
from tests.ray.conftest import Site

PROMPT = [2 + i % 5000 for i in range(150)]
SAMPLED = GenerateRequest(prompt_ids=PROMPT, max_tokens=120, ignore_eos=True, temperature=0.8, top_k=40, seed=7)
GREEDY = replace(SAMPLED, temperature=0.0)
TIMEOUT_S = 120.0


async def read(
    site: Site, request: GenerateRequest, on_token: Callable[[int], None] = lambda _: None
) -> tuple[list[int], FinishedEvent]:
    """All tokens of an answer; `on_token` hears how many there are."""
    assert request.prompt_ids is not None
    submission = Submission(site.dispatcher, await site.dispatcher.submit(request, request.prompt_ids))
    tokens: list[int] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while items := await submission.take():
                for item in items:
                    if isinstance(item, FinishedEvent):
                        return tokens, item
                    if isinstance(item, int | TokenEvent):
                        tokens.append(item if isinstance(item, int) else item.token)
                        on_token(len(tokens))
    finally:
        submission.close()
    raise AssertionError("an answer ends with FinishedEvent")


async def rest_of(submission: Submission) -> list[object]:
    rest: list[object] = []
    while items := await submission.take():
        rest += items
        if isinstance(items[-1], FinishedEvent):
            break
    return rest


def at(n_tokens: Sequence[int], act: Callable[[], None]) -> Callable[[int], None]:
    return lambda n: act() if n in n_tokens else None


def at_work(site: Site) -> str:
    """The replica that has the only request."""
    [name] = [name for name, one in site.replicas.items() if any(visit.requests for visit in one.door.visits)]
    return name


async def test_an_answer_goes_on_at_another_replica(site: Site) -> None:
    """With a seed, at temperature 0, and with logprobs."""

    def kill() -> None:
        site.replicas.pop(at_work(site)).die()

    for number, request in enumerate((SAMPLED, GREEDY, replace(SAMPLED, n_logprobs=2))):
        undisturbed, _ = await read(site, request)
        assert len(undisturbed) == 120
        tokens, finished = await read(site, request, at([40], kill))
        assert tokens == undisturbed
        assert (finished.n_resumes, finished.n_generated, finished.n_prompt) == (1, 120, 150)
        await site.add(f"after {number}")


async def test_a_replica_that_drains_hands_its_answers_over(site: Site) -> None:
    undisturbed, _ = await read(site, SAMPLED)
    draining: list[asyncio.Task[None]] = []

    def drain() -> None:
        draining.append(asyncio.create_task(site.replicas[at_work(site)].door.drain(drain_s=0)))

    tokens, _ = await read(site, SAMPLED, at([30], drain))
    await draining[0]
    assert tokens == undisturbed
    assert site.dispatcher.n_failovers == 0
    [left] = [one for one in site.replicas.values() if not one.door.is_draining]
    n_before = left.door.supervisor.status().n_requests
    await read(site, replace(SAMPLED, max_tokens=3))  # new ones go elsewhere
    assert left.door.supervisor.status().n_requests == n_before + 1


async def test_what_a_drained_replica_remembered_lies_on_the_disk_that_both_have(
    config: SupervisorConfig, tmp_path: Path
) -> None:
    shared = Site(replace(config, disk_cache=tmp_path))
    async with shared.stack:
        for name in ("a", "b"):
            await shared.add(name)
        begun: list[str] = []
        tokens, _ = await read(shared, SAMPLED, at([1], lambda: begun.append(at_work(shared))))
        await shared.retire(begun[0])
        turn = replace(SAMPLED, prompt_ids=[*PROMPT, *tokens, 5, 6, 7], max_tokens=3)
        _, finished = await read(shared, turn)
        assert (finished.n_prompt, finished.n_reused) == (273, 269)
        shared.close()


async def test_an_answer_waits_for_a_replica_and_no_longer_than_it_is_to(site: Site) -> None:
    undisturbed, _ = await read(site, GREEDY)

    def kill_both() -> None:
        for name in ("a", "b"):
            site.replicas.pop(name).die()
        asyncio.get_running_loop().create_task(add())

    async def add() -> None:
        await site.add("c")

    tokens, _ = await read(site, GREEDY, at([10], kill_both))
    assert tokens == undisturbed
    site.replicas.pop("c").die()
    with pytest.raises(DeadlineError, match="for a replica"):
        await read(site, replace(GREEDY, queue_timeout_s=0.1))
    with pytest.raises(DeadlineError, match="at most"):
        await read(site, replace(GREEDY, timeout_s=0.1))


async def test_errors_are_those_of_one_server(site: Site) -> None:
    with pytest.raises(PromptTooLongError) as told:
        await read(site, replace(GREEDY, prompt_ids=[5] * 5000))
    assert (told.value.n_prompt, told.value.n_ctx) == (5000, 4096)
    with pytest.raises(RequestError, match="empty_prompt"):
        await read(site, replace(GREEDY, prompt_ids=()))


async def test_a_full_replica_is_passed_over_and_full_ones_are_told(config: SupervisorConfig) -> None:
    full = Site(replace(config, lanes=1, max_queue=0))
    async with full.stack:
        for name in ("a", "b"):
            await full.add(name)
        submissions = [
            Submission(full.dispatcher, await full.dispatcher.submit(replace(GREEDY, max_tokens=3000), PROMPT))
            for _ in range(2)
        ]
        assert all(len(visit.requests) == 1 for one in full.replicas.values() for visit in one.door.visits)
        with pytest.raises(QueueFullError) as told:
            await full.dispatcher.submit(GREEDY, PROMPT)
        assert told.value.retry_after_s > 0
        for submission in submissions:
            submission.close()
        full.close()


async def test_a_caller_that_leaves_frees_the_lane_and_one_that_has_enough_gets_its_end(site: Site) -> None:
    endless = replace(GREEDY, max_tokens=3000)
    submission = Submission(site.dispatcher, await site.dispatcher.submit(endless, PROMPT))
    await submission.begun()
    door = site.replicas[at_work(site)].door
    submission.close()
    async with asyncio.timeout(TIMEOUT_S):
        while door.supervisor.status().engines[0].n_running:
            await site.dispatcher.ask(next(iter(site.dispatcher.links)), "engine_status")
    submission = Submission(site.dispatcher, await site.dispatcher.submit(endless, PROMPT))
    await submission.begun()
    submission.end()
    async with asyncio.timeout(TIMEOUT_S):
        assert isinstance((await rest_of(submission))[-1], FinishedEvent)


async def test_a_supervisor_goes_on_with_what_another_has_begun(config: SupervisorConfig) -> None:
    async with Supervisor(config) as supervisor:
        whole = [event async for event in supervisor.generate(SAMPLED)]
        tokens = [event.token for event in whole if isinstance(event, TokenEvent)]
        identity = supervisor.status().engines[0].info
        assert identity is not None
        begun = replace(SAMPLED, begun=Begun(tokens[:50], identity.identity))
        rest = [event async for event in supervisor.generate(begun)]
        assert [event.token for event in rest if isinstance(event, TokenEvent)] == tokens[50:]
        assert isinstance(rest[-1], FinishedEvent)
        assert (rest[-1].n_generated, rest[-1].n_prompt) == (120, 150)
        assert supervisor.status().n_tokens == 120 + 70
        with pytest.raises(RequestError, match="another one"):
            [_ async for _ in supervisor.generate(replace(SAMPLED, begun=Begun(tokens[:50], "another model")))]
    with pytest.raises(ValueError, match="seed"):
        replace(SAMPLED, seed=None, begun=Begun(tokens[:50], "any"))
