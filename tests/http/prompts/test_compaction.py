"""Compaction: a request that summarises a conversation which is in memory. Behind the same head its prefix is there;
behind another head only where the server is told to answer from the conversation itself, and only if it is that one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.compaction import LiveConversations
from tests.http.answering.answering_fixtures import READ
from tests.http.serving import CALL_S, Server

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "You are a coding agent."}
OTHER: Message = {"role": "system", "content": "You write summaries."}
PLANNER: Message = {"role": "system", "content": "You make plans. " * 40 + "End with a summary."}
ASKED: Message = {"role": "user", "content": "Summarise the conversation above."}


def call(id_: str) -> Message:
    return {"id": id_, "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}


TALK: list[Message] = [
    {"role": "user", "content": "Look at a."},
    {"role": "assistant", "content": "", "tool_calls": [call("c1")]},
    {"role": "tool", "tool_call_id": "c1", "content": "Text of a."},
]
ANSWER: Message = {"role": "assistant", "content": "It is a text."}
LIVE = ChatPrompt(messages=[SYSTEM, *TALK], tools=(READ,), effort="high", thinking=True)
SUMMARY = ChatPrompt(messages=[OTHER, *TALK, ANSWER, ASKED], thinking=False)


def found(prompt: ChatPrompt, live: ChatPrompt = LIVE, client: str = "a") -> ChatPrompt | None:
    conversations = LiveConversations()
    conversations.note("a", live)
    return conversations.find(client, prompt)


def test_a_summary_is_asked_for_behind_the_conversation() -> None:
    live = found(SUMMARY)
    assert live is not None
    asked = {"role": "user", "content": f"{OTHER['content']}\n\n{ASKED['content']}"}
    assert list(live.messages) == [SYSTEM, *TALK, ANSWER, asked]
    assert (live.tools, live.tool_choice, live.effort, live.thinking) == (LIVE.tools, "none", "high", False)


@pytest.mark.parametrize(
    "messages",
    [
        [OTHER, *TALK, ASKED],  # before it was answered
        [OTHER, *TALK[:-1], ASKED],  # the last one replaced, or what came first only
        [OTHER, *TALK, {**ANSWER, "tool_calls": [call("c2")]}, {**TALK[2], "tool_call_id": "c2"}, ASKED],
        [*TALK, ANSWER, ASKED],  # no system text at all
        [{"role": "system", "content": "Compact it."}, *TALK, ANSWER, {"role": "user", "content": "Go on."}],
        # Another spelling of the same.
        [
            OTHER,
            TALK[0],
            {**TALK[1], "tool_calls": [{**call("x"), "function": {"name": "read_file", "arguments": '{"path":"a"}'}}]},
            {**TALK[2], "tool_call_id": "x"},
            ASKED,
        ],
    ],
)
def test_any_form_of_it_is_recognised(messages: list[Message]) -> None:
    assert found(replace(SUMMARY, messages=messages)) is not None


@pytest.mark.parametrize(
    "prompt",
    [
        replace(SUMMARY, tools=(READ,)),  # another agent that goes on with it
        replace(SUMMARY, messages=[PLANNER, *TALK, ANSWER, {"role": "user", "content": "Now look at b."}]),
        replace(SUMMARY, messages=[OTHER, *TALK, ANSWER]),
        replace(SUMMARY, messages=[OTHER, TALK[0], ASKED]),  # a title
        replace(SUMMARY, messages=[OTHER, {**TALK[0], "content": "Look at b."}, *TALK[1:], ANSWER, ASKED]),
        replace(SUMMARY, messages=[OTHER, TALK[0], TALK[1], {**TALK[2], "content": "Text"}, ANSWER, ASKED]),
        replace(SUMMARY, messages=[OTHER, *TALK, ANSWER, ASKED, ANSWER, ASKED]),  # it has gone on elsewhere
        replace(SUMMARY, messages=[OTHER, *TALK[1:], ANSWER, ASKED]),
        replace(SUMMARY, messages=[OTHER]),
        replace(SUMMARY, json_schema={}),
        replace(SUMMARY, grammar='root ::= "a"'),
        replace(SUMMARY, continues_last=True),
        replace(SUMMARY, messages=[OTHER, {"role": "user", "content": [{"type": "image"}]}, ASKED]),
    ],
)
def test_whatever_is_in_doubt_is_no_summary(prompt: ChatPrompt) -> None:
    assert found(prompt) is None


def test_conversations_are_their_clients_own() -> None:
    assert found(SUMMARY, client="b") is None


def test_behind_the_same_head_nothing_is_changed() -> None:
    plain = replace(LIVE, tools=())
    assert found(replace(SUMMARY, messages=[SYSTEM, *TALK, ANSWER, ASKED]), plain) is None
    assert found(replace(SUMMARY, messages=[SYSTEM, *TALK, ANSWER, ASKED])) is not None  # the tools are missing


def test_a_title_does_not_displace_the_conversation_and_old_ones_leave() -> None:
    conversations = LiveConversations()
    conversations.note("a", LIVE)
    conversations.note("a", ChatPrompt(messages=[{"role": "system", "content": "A title."}, TALK[0]]))
    assert conversations.find("a", SUMMARY) is not None
    for number in range(100):
        conversations.note("a", ChatPrompt(messages=[{"role": "user", "content": str(number)}]))
    assert conversations.find("a", SUMMARY) is None


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(("file", "line", "code", "test", "path", "name", "value", "loop")) for _ in range(n))


@pytest.mark.parametrize(("family", "compaction"), [("qwen35", "live"), ("qwen35", "off"), ("qwen3", "live")])
def test_the_engine_goes_on_from_the_conversation(test_models: Path, family: str, compaction: str) -> None:
    server = Server(test_models / f"{family}.gguf", {"lanes": 1, "ubatch": 256, "compaction": compaction}).start()

    def ask(*messages: Message, tools: tuple[Message, ...] = ()) -> tuple[Message, int, int, Message]:
        body = {"messages": messages, "max_tokens": 8, "temperature": 0} | ({"tools": tools} if tools else {})
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=CALL_S)
        answer.raise_for_status()
        usage = answer.json()["usage"]
        said = answer.json()["choices"][0]["message"]
        shown = {"role": "assistant", "content": said["content"]}
        return shown, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["luce"]

    rng = random.Random(7)
    system = {"role": "system", "content": words(rng, 200)}
    talk = [TALK[0], TALK[1], {**TALK[2], "content": words(rng, 600)}, {"role": "user", "content": words(rng, 100)}]
    try:
        answer, n_live, _, _ = ask(system, *talk, tools=(READ,))
        # The same head: its pages are shared, the last message replaced or another one appended.
        _, _, n_replaced, same = ask(system, *talk[:-1], ASKED, tools=(READ,))
        _, _, n_appended, _ = ask(system, *talk, answer, ASKED, tools=(READ,))
        # Another one.
        _, _, n_other, other = ask(OTHER, *talk, answer, ASKED)
    finally:
        server.stop()
    assert n_replaced >= n_live - 120
    assert n_appended >= n_live - 8
    assert same["compaction"] is None
    if compaction == "off":
        assert other["compaction"] is None
        assert n_other < 64
    else:
        assert other["compaction"] == "live"
        assert n_other >= n_live - 8


def test_where_the_conversation_leaves_no_room_the_request_is_answered_as_it_stands(test_models: Path) -> None:
    server = Server(test_models / "qwen3.gguf", {"lanes": 1, "ctx": 1024, "pool": 4096, "compaction": "live"}).start()
    try:
        for n_words in (100, 880):
            system = {"role": "system", "content": words(random.Random(8), n_words)}
            url = f"{server.url}/v1/chat/completions"
            talk = [{"role": "user", "content": f"Look at {n_words}."}, ANSWER, {"role": "user", "content": "And b?"}]
            live = httpx.post(url, json={"messages": [system, *talk], "max_tokens": 8}, timeout=CALL_S)
            assert live.json()["usage"]["prompt_tokens"] > n_words
            body = {"messages": [OTHER, *talk, ANSWER, ASKED], "max_tokens": 100}
            answer = httpx.post(url, json=body, timeout=CALL_S)
            answer.raise_for_status()
            assert answer.json()["usage"]["luce"]["compaction"] == ("live" if n_words == 100 else None)
    finally:
        server.stop()
