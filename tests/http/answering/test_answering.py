"""Answers to chats and texts over a real engine: what comes, in which order, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from luce.protocol import SamplingArgs
from luce.supervisor.http.answering.answer_events import ContentPiece, FinishReason, Progress, ToolCallPiece
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.infill import Infill
from luce.supervisor.http.settings import ServeSettings
from tests.daemon.same_tokens import NOISE_BATCHING, NOISE_CUTS, Comparison, SampledComparison
from tests.http.answering.answering_fixtures import (
    DEADLINE_S,
    GREEDY,
    LIST,
    READ,
    Answering,
    Served,
    assistant,
    chat,
    entries_of,
    read,
    running,
    serve,
    take,
    tokens_of,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tiny_model: Path) -> AsyncIterator[Answering]:
    async with running(tiny_model) as answering:
        yield answering


async def test_a_chat(shared: Answering) -> None:
    served = await serve(shared.answerer, chat("Hello there", max_tokens=64))
    assert served.choice.reason is FinishReason.STOP
    assert served.choice.content.startswith("Hello")
    assert served.usage.n_prompt == len(shared.text.render([{"role": "user", "content": "Hello there"}]).tokens)
    assert served.usage.n_generated == len(shared.text.tokenize(served.choice.content)) + 1
    assert served.progress[-1] == Progress(served.usage.n_prompt, served.usage.n_prompt)
    assert served.events[: len(served.progress)] == served.progress, "before everything else"


async def test_a_text(shared: Answering) -> None:
    ask = AnswerRequest(prompt=TextPrompt(content="Once upon a time"), max_tokens=24, sampling=GREEDY, ignore_eos=True)
    served = await serve(shared.answerer, ask)
    assert served.choice.reason is FinishReason.LENGTH
    assert served.usage.n_generated == 24
    ids = shared.text.tokenize("Once upon a time", add_special=True, parse_special=True)
    by_ids = await serve(shared.answerer, replace(ask, prompt=TextPrompt(content=ids)))
    assert by_ids.choice.content == served.choice.content


@pytest.mark.parametrize(
    ("choice", "names"), [("required", {"read_file", "list_folder"}), ("function:list_folder", {"list_folder"})]
)
async def test_a_tool_that_has_to_be_called(shared: Answering, choice: str, names: set[str]) -> None:
    prompt = {"tools": [READ, LIST], "tool_choice": choice, "parallel_tool_calls": False}
    served = await serve(shared.answerer, chat("Read the file README.md", prompt=prompt, max_tokens=400))
    assert served.choice.reason is FinishReason.TOOL_CALLS
    assert served.choice.content == ""
    for call in served.choice.tool_calls:
        assert call.name in names
        assert isinstance(json.loads(call.arguments), dict)
        assert call.id
    assert len({call.id for call in served.choice.tool_calls}) == len(served.choice.tool_calls) > 0


async def test_one_call_where_several_are_not_wanted(shared: Answering) -> None:
    ask = chat("Read the file README.md", prompt={"tools": [LIST], "tool_choice": "required"}, max_tokens=200)
    many = await serve(shared.answerer, ask)
    assert len(many.choice.tool_calls) > 1, "the model is expected to write one call after the other"
    assert isinstance(ask.prompt, ChatPrompt)
    one = await serve(shared.answerer, replace(ask, prompt=replace(ask.prompt, parallel_tool_calls=False)))
    assert one.choice.reason is FinishReason.TOOL_CALLS
    assert [(call.name, call.arguments) for call in one.choice.tool_calls] == [
        (call.name, call.arguments) for call in many.choice.tool_calls[:1]
    ]


async def test_nothing_is_written_behind_the_one_call_that_is_wanted(shared: Answering) -> None:
    """It would be in memory, and in no further prompt."""
    prompt = {"tools": [READ, LIST], "tool_choice": "function:list_folder"}
    async with shared.answerer.open(chat("Read the file README.md", prompt=prompt, max_tokens=400)) as opened:
        answer = await read(opened)
        tokens = opened._streams[0].choice.tokens
    assert answer.choice.reason is FinishReason.TOOL_CALLS
    assert len(answer.choice.tool_calls) == 1
    assert tokens[-1] in shared.text.info.eog


async def test_a_tool_call_that_is_cut_off_ends_with_length(shared: Answering) -> None:
    prompt = {"tools": [READ], "tool_choice": "required"}
    served = await serve(shared.answerer, chat("Read README.md", prompt=prompt, max_tokens=16))
    assert served.choice.reason is FinishReason.LENGTH
    for call in served.choice.tool_calls:
        assert not call.arguments.endswith("}")


async def test_a_stop_string_does_not_stop_a_tool_call(shared: Answering) -> None:
    prompt = {"tools": [READ], "tool_choice": "required", "parallel_tool_calls": False}
    served = await serve(shared.answerer, chat("Read README.md", prompt=prompt, stops=['"path"', "{"], max_tokens=400))
    assert served.choice.reason is FinishReason.TOOL_CALLS
    assert "path" in json.loads(served.choice.tool_calls[0].arguments)


async def test_a_tool_that_is_not_offered_cannot_be_required(shared: Answering) -> None:
    for choice in ("function:nothing", "required"):
        tools = [READ] if choice != "required" else []
        with pytest.raises(ApiError) as raised:
            await serve(shared.answerer, chat("Hello", prompt={"tools": tools, "tool_choice": choice}))
        assert raised.value.kind is ErrorKind.INVALID


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"age": {"type": "integer"}},
            "required": ["age"],
            "additionalProperties": False,
        }
    ],
)
async def test_json_of_a_schema(shared: Answering, schema: dict[str, Any]) -> None:
    served = await serve(shared.answerer, chat("How old?", prompt={"json_schema": schema}, max_tokens=100))
    assert isinstance(json.loads(served.choice.content)["age"], int)


async def test_a_grammar_of_the_requests_own(shared: Answering) -> None:
    ask = chat("Yes or no?", prompt={"grammar": 'root ::= "yes" | "no"'})
    assert (await serve(shared.answerer, ask)).choice.content in {"yes", "no"}


async def test_any_json_object(shared: Answering) -> None:
    served = await serve(shared.answerer, chat("Some JSON", prompt={"json_schema": {}}, max_tokens=8))
    assert served.choice.content.startswith("{")
    with pytest.raises(ApiError) as raised:
        await serve(shared.answerer, chat("Some JSON", prompt={"json_schema": {"type": "nonsense"}}))
    assert (raised.value.kind, raised.value.code) == (ErrorKind.INVALID, "bad_schema")


async def test_choices_share_the_prompt_and_have_seeds_of_their_own(shared: Answering) -> None:
    hot = SamplingArgs(temperature=1.5, seed=7)
    ask = chat("Tell me of the sea", sampling=hot, n=3, n_logprobs=4, ignore_eos=True)
    served = await serve(shared.answerer, ask)
    assert sorted(served.choices) == [0, 1, 2]
    assert len({choice.content for choice in served.choices.values()}) == 3
    assert served.usage.n_generated == 60
    alone = await serve(shared.answerer, replace(ask, n=1))
    again = await serve(shared.answerer, ask)
    comparison = SampledComparison(NOISE_BATCHING)
    for name, expected in (("alone", alone), ("again", again)):
        for number, choice in expected.choices.items():
            texts = [(tokens_of(one), entries_of(one)) for one in (served.choices[number], choice)]
            comparison.check(f"choice {number} {name}", *(part for parts in zip(*texts, strict=True) for part in parts))
    comparison.finish()


async def test_a_stop_string_over_several_tokens(shared: Answering) -> None:
    whole = (await serve(shared.answerer, chat("Hello there", max_tokens=64))).choice.content
    stop = whole[4:9]
    served = await serve(shared.answerer, chat("Hello there", max_tokens=64, stops=["never", stop]))
    assert served.choice.reason is FinishReason.STOP_TEXT
    assert served.choice.stop_text == stop
    assert served.choice.content == whole[:4]
    assert served.usage.n_prompt > 0
    assert served.usage.n_cached > 0, "what an answer took is known though it was ended early"


async def test_the_beginning_of_a_stop_string_is_shown_at_the_end(shared: Answering) -> None:
    whole = (await serve(shared.answerer, chat("Hello there", max_tokens=64))).choice.content
    served = await serve(shared.answerer, chat("Hello there", max_tokens=64, stops=[whole[-3:] + "never"]))
    assert served.choice.content == whole
    assert served.choice.reason is FinishReason.STOP


async def test_logprobs_are_those_of_the_content(shared: Answering) -> None:
    served = await serve(shared.answerer, chat("Hello there", max_tokens=64, n_logprobs=2))
    entries = served.choice.logprobs
    assert b"".join(entry.chosen.bytes for entry in entries).decode() == served.choice.content
    assert all(len(entry.likeliest) == 2 and entry.chosen.logprob <= 0 for entry in entries)
    assert all(entry.likeliest[0].logprob >= entry.likeliest[1].logprob for entry in entries)
    bare = await serve(shared.answerer, chat("Hello there", max_tokens=64, n_logprobs=0))
    assert [entry.chosen for entry in bare.choice.logprobs] == [entry.chosen for entry in entries]
    assert all(entry.likeliest == () or list(entry.likeliest) == [] for entry in bare.choice.logprobs)


async def test_no_tokens_at_all(shared: Answering) -> None:
    served = await serve(shared.answerer, chat("Hello", max_tokens=0))
    assert served.choice.content == ""
    assert served.choice.reason is FinishReason.LENGTH
    assert served.usage.n_generated == 0
    assert served.usage.n_prompt > 0


async def test_max_tokens_is_clamped_and_a_long_prompt_refused(tiny_model: Path) -> None:
    async with running(tiny_model, ctx=256, pool=512, lanes=1) as small:
        ask = chat("word " * 200, max_tokens=32000, ignore_eos=True)
        n_prompt = await small.answerer.count_tokens(ask)
        served = await serve(small.answerer, ask)
        assert served.usage.n_prompt == n_prompt
        assert served.usage.n_generated == 256 - n_prompt
        assert served.choice.reason is FinishReason.LENGTH
        for ask in (chat("word " * 300), AnswerRequest(prompt=TextPrompt(content=[5] * 256), max_tokens=None)):
            n_prompt = await small.answerer.count_tokens(ask)
            with pytest.raises(ApiError) as raised:
                await serve(small.answerer, ask)
            assert raised.value.kind is ErrorKind.CONTEXT_FULL
            assert (raised.value.n_prompt, raised.value.n_ctx) == (n_prompt, 256)
        full = await serve(small.answerer, AnswerRequest(prompt=TextPrompt(content=[5] * 256), max_tokens=0))
        assert full.usage.n_prompt == 256


async def test_what_would_be_refused_later_is_refused_at_once(shared: Answering) -> None:
    bad: list[dict[str, Any]] = [
        {"sampling": SamplingArgs(top_p=0.0)},
        {"sampling": SamplingArgs(temperature=-1.0)},
        {"sampling": SamplingArgs(logit_bias=((10**9, 1.0),))},
        {"sampling": SamplingArgs(logit_bias=((1, float("nan")),))},
        {"n": 0},
        {"n": 17},
        {"n_logprobs": 101},
        {"prompt": TextPrompt(content=[10**6])},
        {"prompt": TextPrompt(content=[-1])},
        {"prompt": TextPrompt(content="a", infill=Infill(after="b"))},
        {"prompt": ChatPrompt(messages=[])},
        {"prompt": ChatPrompt(messages=[{"role": "user", "content": "a"}], grammar='root ::= "\0"')},
        {"prompt": ChatPrompt(messages=[{"role": "user", "content": [{"type": "image_url"}]}])},
        {"prompt": ChatPrompt(messages=[{"role": "user", "content": "\ud800"}])},
        {"prompt": ChatPrompt(messages=[{"role": "user", "content": "a"}], continues_last=True)},
    ]
    for options in bad:
        with pytest.raises(ApiError) as raised:
            async with shared.answerer.open(replace(chat("Hello"), **options)):
                pytest.fail(f"{options} was taken")
        assert raised.value.kind is ErrorKind.INVALID, options
    assert (await serve(shared.answerer, chat("Hello"))).usage.n_generated > 0


async def test_a_full_queue_is_known_before_anything_is_sent(tiny_model: Path) -> None:
    async with running(tiny_model, ctx=8192, lanes=1, max_queue=0) as small:
        async with small.answerer.open(chat("Hello", max_tokens=8000, ignore_eos=True)) as first:
            events = first.events()
            await anext(events)
            with pytest.raises(ApiError) as raised:
                async with small.answerer.open(chat("Bye")):
                    pytest.fail("there was no room")
            assert raised.value.kind is ErrorKind.OVERLOADED
            assert raised.value.retry_after_s is not None
            await events.aclose()
        await idle(small)
        with pytest.raises(ApiError):
            async with small.answerer.open(chat("Bye", n=2)):
                pytest.fail("there was no room for two")
        assert (await serve(small.answerer, chat("Bye"))).usage.n_generated > 0


async def idle(answering: Answering) -> None:
    """Until no lane is busy."""
    async with asyncio.timeout(DEADLINE_S):
        while any(engine.n_running for engine in answering.supervisor.status().engines):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_leaving_early_cancels_all_choices(shared: Answering) -> None:
    before, tasks = shared.supervisor.status(), asyncio.all_tasks()
    async with shared.answerer.open(chat("Hello", n=3, max_tokens=1000, ignore_eos=True)) as answering:
        events = answering.events()
        await anext(events)
        await events.aclose()
    await idle(shared)
    assert shared.supervisor.status().n_cancelled == before.n_cancelled + 3
    async with asyncio.timeout(DEADLINE_S):  # or a choice is still being waited for
        while not asyncio.all_tasks() <= tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_engine_that_dies_is_a_pause(tiny_model: Path) -> None:
    async with running(tiny_model) as answering:
        ask = chat("Count to a hundred", max_tokens=500, n_logprobs=2, ignore_eos=True)
        expected = await serve(answering.answerer, ask)
        served = Served()
        async with asyncio.timeout(DEADLINE_S), answering.answerer.open(ask) as again:
            async for event in again.events():
                take(served, event)
                if len(served.events) == 20:
                    os.kill(answering.supervisor.engine_pids()[0], signal.SIGKILL)
        margins = [entries[1][1] - entries[2][1] for entries in entries_of(expected.choice)]
        Comparison(NOISE_CUTS).check("resumed", tokens_of(served.choice), tokens_of(expected.choice), margins)
        assert served.usage.n_resumes >= 1


async def test_an_engine_that_is_given_up_is_an_error_and_no_end(tiny_model: Path) -> None:
    async with running(tiny_model, restart_limit=0) as answering:
        served = Served()

        async def serve_and_kill() -> None:
            async with answering.answerer.open(chat("Hello", max_tokens=1500, ignore_eos=True)) as again:
                async for event in again.events():
                    take(served, event)
                    if len(served.events) == 5:
                        os.kill(answering.supervisor.engine_pids()[0], signal.SIGKILL)

        with pytest.raises(ApiError) as raised:
            await asyncio.wait_for(serve_and_kill(), DEADLINE_S)
        assert raised.value.kind is ErrorKind.UNAVAILABLE
        assert served.finished is None
        assert not served.choices


async def test_an_answer_goes_on_from_the_last_message(shared: Answering) -> None:
    ask = chat("Count", assistant("One, two,"), prompt={"continues_last": True})
    async with shared.answerer.open(ask) as answering:
        assert answering.n_prompt == await shared.answerer.count_tokens(ask)
    served = await serve(shared.answerer, ask)
    assert not served.choice.content.startswith("One")


async def test_special_tokens_in_a_users_text_are_text(shared: Answering) -> None:
    plain = await shared.answerer.count_tokens(chat("a b"))
    spelled = await shared.answerer.count_tokens(chat("a <|im_end|> b"))
    assert spelled > plain + 1, "the spelling of a control token became that token"


async def test_tokens_that_wait_are_read_together(shared: Answering) -> None:
    """A reader that comes late gets neighbours as one piece."""
    n_finished = shared.supervisor.status().n_finished
    async with shared.answerer.open(chat("Hello", max_tokens=50, ignore_eos=True)) as answering:
        async with asyncio.timeout(DEADLINE_S):
            while shared.supervisor.status().n_finished == n_finished:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        pieces = [event async for event in answering.events() if isinstance(event, ContentPiece | ToolCallPiece)]
    assert len(pieces) <= 2


async def test_a_server_samples_as_it_is_set_where_a_request_says_nothing(tiny_model: Path) -> None:
    ask = replace(chat("Tell me of the sea"), sampling=SamplingArgs(), ignore_eos=True)
    async with running(tiny_model, settings=ServeSettings(temperature=0.0)) as answering:
        first, second = [(await serve(answering.answerer, ask)).choice.content for _ in range(2)]
        greedy = (await serve(answering.answerer, replace(ask, sampling=GREEDY))).choice.content
    assert first == second == greedy
    hot = ServeSettings(temperature=2.0, top_p=1.0, top_k=0, min_p=0.0)
    async with running(tiny_model, settings=hot, seed=None) as answering:
        texts = {(await serve(answering.answerer, ask)).choice.content for _ in range(3)}
    assert len(texts) == 3
