"""What the prefix cache sees of real conversations: over the answerer, with a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from luce.protocol import SamplingArgs
from luce.supervisor.http.answering.answer_events import Progress
from luce.supervisor.http.keys.api_key import digest_of
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.settings import ServeSettings
from tests.http.answering.answering_fixtures import (
    DEADLINE_S,
    READ,
    Answering,
    assistant,
    chat,
    read,
    running,
    serve,
    system,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

RULES = " ".join(f"Rule {n}: be kind to file number {n * 37 % 101}." for n in range(60))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tiny_model: Path) -> AsyncIterator[Answering]:
    async with running(tiny_model, ctx=4096, pool=16384) as answering:
        yield answering


def n_shared(shared: Answering, *asks: AnswerRequest) -> int:
    """Tokens that the prompts have in common from their start."""
    texts = [shared.answerer._renderer.render(ask.prompt).ids for ask in asks]
    return next((n for n, tokens in enumerate(zip(*texts, strict=False)) if len(set(tokens)) > 1), len(texts[0]))


async def test_the_second_turn_computes_what_is_new(shared: Answering) -> None:
    first = chat(system(RULES + " First."), "Hello")
    answer = await serve(shared.answerer, first)
    second = chat(system(RULES + " First."), "Hello", assistant(answer.choice.content), "And now?")
    served = await serve(shared.answerer, second)
    assert served.usage.n_cached >= answer.usage.n_prompt


async def test_two_sessions_share_what_they_begin_with(shared: Answering) -> None:
    """The header that Claude Code puts before everything has another suffix in each session."""

    def session(suffix: str, question: str) -> AnswerRequest:
        header = f"x-anthropic-billing-header: cc_version=2.1.328.{suffix}; cc_entrypoint=sdk-cli;"
        parts = [
            {"type": "text", "text": header},
            {"type": "text", "text": RULES + " Sessions.", "cache_control": {"type": "ephemeral"}},
        ]
        return chat(system(parts), question, prompt={"tools": [READ]})

    one, other = session("699", "Hello"), session("dc7", "Something else altogether")
    await serve(shared.answerer, one)
    served = await serve(shared.answerer, other)
    assert served.usage.n_cached >= n_shared(shared, one, other) - 64 > 500


async def test_a_message_in_two_shapes_is_one_message(shared: Answering) -> None:
    """Claude Code sends its system message in the middle as a list first and as a text afterwards."""
    as_list = system([{"type": "text", "text": RULES + " Shapes.", "cache_control": {"type": "ephemeral"}}])
    first = chat("Hello", as_list)
    answer = await serve(shared.answerer, first)
    second = chat("Hello", system(RULES + " Shapes."), assistant(answer.choice.content), "Go on")
    served = await serve(shared.answerer, second)
    assert served.usage.n_cached >= answer.usage.n_prompt


async def test_an_answer_is_known_by_its_ids(shared: Answering) -> None:
    """A hot answer is written in other tokens than its text is cut into."""
    for seed in range(20):
        hot = SamplingArgs(temperature=1.8, seed=seed)
        first = chat(system(RULES + " Ids."), "Tell me a story", max_tokens=60, ignore_eos=True, sampling=hot)
        async with shared.answerer.open(first) as answering:
            answer = await read(answering)
            tokens = answering._streams[0].choice.tokens
        text = answer.choice.content
        is_plain = shared.text.tokenize(text) == tokens
        if is_plain or any(token in {t.id for t in shared.text.info.special} for token in tokens):
            continue
        second = chat(system(RULES + " Ids."), "Tell me a story", assistant(text), "Go on")
        if not shared.text.render(second.prompt.messages).prompt.count(text):  # type: ignore[union-attr]
            continue
        served = await serve(shared.answerer, second)
        # All but the last token of an answer has been computed.
        assert served.usage.n_cached >= answer.usage.n_prompt + len(tokens) - 1
        return
    pytest.fail("no answer was written in tokens of its own")


async def test_stripped_reasoning_costs_one_turn(shared: Answering) -> None:
    """What the client leaves out of an answer is lost from that answer's prefix on, and not before."""
    question = "What do you think? " * 40
    answer = await serve(shared.answerer, chat(system(RULES + " Strip."), question, max_tokens=60, ignore_eos=True))
    stripped = assistant(answer.choice.content[40:])
    served = await serve(shared.answerer, chat(system(RULES + " Strip."), question, stripped, "And?"))
    assert served.usage.n_cached >= answer.usage.n_prompt - 8, "the boundary before the answer was not kept"


async def test_side_requests_do_not_push_out_a_long_prefix(tiny_model: Path) -> None:
    async with running(tiny_model, ctx=2048, pool=2048, lanes=2, host_cache=24 << 20) as small:
        long = chat(system(RULES * 2), "Begin", max_tokens=4)
        first = await serve(small.answerer, long)
        assert first.usage.n_prompt > 1500
        for number in range(25):
            side = chat(
                system(f"Write a title for talk {number}. " + "Be short. " * 30), f"Talk {number}", max_tokens=8
            )
            await serve(small.answerer, side)
        again = await serve(small.answerer, replace(long, prompt=chat(system(RULES * 2), "Begin anew").prompt))
        assert again.usage.n_cached > 1400, again.usage


def _key(name: str) -> str:
    """As the application names a client that has a key."""
    return digest_of(name).hex()


async def test_clients_that_are_kept_apart(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "common.txt").write_text("Be brief. " * 100)
    settings = ServeSettings(cache_isolation="key", common_prompts=(tmp_path / "common.txt",))
    async with running(tiny_model, settings=settings, lanes=2) as apart:

        async def n_cached(client: str, *messages: dict[str, Any] | str) -> int:
            return (await serve(apart.answerer, chat(*messages, client=_key(client)))).usage.n_cached

        ask = replace(chat(system(RULES), "Hello"), client=_key("mine"))
        first = await serve(apart.answerer, ask)
        n_prompt = first.usage.n_prompt
        assert await n_cached("mine", system(RULES), "Hello") >= n_prompt - 1
        strange = await serve(apart.answerer, replace(ask, client=_key("theirs")))
        assert strange.usage.n_cached == 0
        assert strange.choice.content == first.choice.content
        assert await n_cached("theirs", system(RULES), "Hello") >= n_prompt - 1
        # What another has asked behind the same beginning is as far away as what nobody has asked.
        question = "What did they ask? " * 30
        await n_cached("mine", system(RULES), question)
        known_to_others = await serve(apart.answerer, replace(chat(system(RULES), question), client=_key("theirs")))
        unknown = await serve(apart.answerer, replace(chat(system(RULES), question[::-1]), client=_key("theirs")))
        assert known_to_others.usage.n_cached == unknown.usage.n_cached > 0
        assert known_to_others.usage.cache_miss == unknown.usage.cache_miss
        # What was answered to one client is no prefix for another.
        both = (system(RULES), "Hello", assistant(first.choice.content), "Go on")
        assert await n_cached("mine", *both) > n_prompt
        assert await n_cached("other", *both) == 0
        # What is said to be common is.
        common = system("Be brief. " * 100)
        assert await n_cached("mine", common, "Hello") == 0
        assert await n_cached("theirs", common, "What else?") > 200


async def test_clients_that_are_kept_apart_find_their_own_on_disk_and_nobody_elses(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings, ask = ServeSettings(cache_isolation="key"), replace(chat(system(RULES), "Hello"), client=_key("mine"))
    for is_known in (False, True):
        async with running(tiny_model, settings=settings, disk_cache=tmp_path / "cache") as apart:
            strange = (await serve(apart.answerer, replace(ask, client=_key(f"other {is_known}")))).usage
            assert (strange.n_cached, strange.cache_tier) == (0, "none")
            assert ((await serve(apart.answerer, ask)).usage.n_cached > 0) == is_known


async def test_an_abandoned_prompt_goes_on_where_it_stopped(tiny_model: Path) -> None:
    async with running(tiny_model, ctx=4096, pool=8192, lanes=1, ubatch=64) as slow:
        ask = chat(system(RULES * 3), "Hello", max_tokens=4)
        async with asyncio.timeout(DEADLINE_S), slow.answerer.open(ask) as answering:
            n_done = 0
            async for event in answering.events():
                assert isinstance(event, Progress), "the prompt was to be long"
                n_done = event.n_done
                if n_done > 300:
                    break
        served = await serve(slow.answerer, ask)
        assert served.usage.n_cached >= n_done
