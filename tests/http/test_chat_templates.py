"""Servers with templates that do not take every conversation: what agents send in any dialect is answered, streamed and
not, and what cannot be done is said in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from scripts.clients.streamed_answer import answer_of
from tests.http.asking import CHAT, MESSAGES, RESPONSES, answered, ask, in_each_talking_api
from tests.http.asking import TALKING as PATHS
from tests.http.serving import Server
from tests.http.test_grammar_beside_tools import events_of

ServerWith = Callable[[str], Server]

NEMO, SMALL = "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"
MINISTRAL, LLAMA = "mistralai-Ministral-3-14B-Reasoning-2512", "meta-llama-Llama-3.1-8B-Instruct"
GPT_OSS = "openai-gpt-oss-120b"
GEMMA_2, DEEPSEEK, SMOLLM = "google-gemma-2-2b-it", "deepseek-ai-DeepSeek-V3.1", "HuggingFaceTB-SmolLM3-3B"
DEEPSEEK_4 = "deepseek-ai-DeepSeek-V4"
BARE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
REFUSAL = "The chat template does not take these messages"

PARAMETERS = {"type": "object", "properties": {"path": {"enum": ["README.md", "docs"]}}, "required": ["path"]}
TOOLS: dict[str, Any] = {
    CHAT: [{"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}],
    RESPONSES: [{"type": "function", "name": "read_file", "parameters": PARAMETERS}],
    MESSAGES: [{"name": "read_file", "input_schema": PARAMETERS}],
}
MUST_CALL: dict[str, Any] = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}
MUST_CALL_IT: dict[str, Any] = {
    CHAT: {"type": "function", "function": {"name": "read_file"}},
    RESPONSES: {"type": "function", "name": "read_file"},
    MESSAGES: {"type": "tool", "name": "read_file"},
}
ASKED = {"role": "user", "content": "What do the files say?"}


@pytest.fixture(scope="module")
def server_with(
    tiny_model: Path, llama_templates_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerWith]:
    """With one of llama.cpp's templates, or one that this is the text of."""
    running: dict[str, Server] = {}

    def start(template: str) -> Server:
        if template not in running:
            path = llama_templates_dir / f"{template}.jinja"
            if "{" in template:
                path = tmp_path_factory.mktemp("templates") / "own.jinja"
                path.write_text(template)
            running[template] = Server(tiny_model, {"chat_template": path}).start()
        return running[template]

    yield start
    for server in running.values():
        server.stop()


def body_of(path: str, history: list[Any], **fields: Any) -> dict[str, Any]:
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    return {("input" if path == RESPONSES else "messages"): history, "temperature": 0, limit: 200, **fields}


def short(path: str, history: list[Any], **fields: Any) -> dict[str, Any]:
    return {**body_of(path, history, **fields), "max_output_tokens" if path == RESPONSES else "max_tokens": 4}


def calls_of(path: str, answer: list[dict[str, Any]]) -> list[str]:
    """Their ids."""
    if path == CHAT:
        return [call["id"] for call in answer[0].get("tool_calls", ())]
    if path == RESPONSES:
        return [item["call_id"] for item in answer if item["type"] == "function_call"]
    return [block["id"] for block in answer[0]["content"] if block["type"] == "tool_use"]


def results_of(path: str, ids: list[str], text: str = "") -> list[dict[str, Any]]:
    """And what the user says behind them."""
    said = [{"role": "user", "content": text}] if text else []
    if path == CHAT:
        return [*({"role": "tool", "tool_call_id": id_, "content": f"Text of {id_}."} for id_ in ids), *said]
    if path == RESPONSES:
        return [*({"type": "function_call_output", "call_id": id_, "output": f"Text of {id_}."} for id_ in ids), *said]
    blocks: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": id_, "content": f"Text of {id_}."} for id_ in ids
    ]
    return [{"role": "user", "content": [*blocks, *([{"type": "text", "text": text}] if text else [])]}]


def calls(path: str, *ids: str) -> list[dict[str, Any]]:
    """An answer that another server gave."""
    arguments = '{"path": "docs"}'
    if path == CHAT:
        function = {"name": "read_file", "arguments": arguments}
        made = [{"id": id_, "type": "function", "function": function} for id_ in ids]
        return [{"role": "assistant", "content": None, "tool_calls": made}]
    if path == RESPONSES:
        return [{"type": "function_call", "call_id": id_, "name": "read_file", "arguments": arguments} for id_ in ids]
    blocks = [{"type": "tool_use", "id": id_, "name": "read_file", "input": {"path": "docs"}} for id_ in ids]
    return [{"role": "assistant", "content": blocks}]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [NEMO, SMALL, LLAMA])
def test_calls_and_their_results_go_back(
    server_with: ServerWith, full: bool, name: str, path: str, *, streams: bool
) -> None:
    """The client keeps the ids that it was given. It may speak right behind a result, and go on after that."""
    skip_like(full, name)
    server = server_with(name)
    fields = {"tools": TOOLS[path], "stream": streams}
    answer = answer_of(events_of(server, path, body_of(path, [ASKED], tool_choice=MUST_CALL[path], **fields)))
    ids = calls_of(path, answer)
    history = [ASKED, *answer, *results_of(path, ids)]
    assert answer_of(events_of(server, path, short(path, history, **fields)))
    history = [ASKED, *answer, *results_of(path, ids, "And now?")]
    again = answer_of(events_of(server, path, body_of(path, history, tool_choice=MUST_CALL[path], **fields)))
    others = calls_of(path, again)
    assert ids
    assert others
    assert set(ids).isdisjoint(others)
    history += [*again, *results_of(path, others)]
    assert answer_of(events_of(server, path, short(path, history, **fields)))


@pytest.mark.parametrize("path", PATHS)
def test_marks_in_an_answer(server_with: ServerWith, path: str) -> None:
    """gpt-oss' template refuses them; calls and results beside them stay calls and results."""
    server = server_with(GPT_OSS)
    said = {"role": "assistant", "content": "<|channel|>final<|message|>It is <|channel|>analysis<|message|>."}
    history = [ASKED, *calls(path, "a"), *results_of(path, ["a"]), said, ASKED]
    for streams in (False, True):
        assert answer_of(events_of(server, path, short(path, history, tools=TOOLS[path], stream=streams)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [NEMO, SMALL, MINISTRAL, GEMMA_2, LLAMA])
def test_histories_that_templates_refuse(server_with: ServerWith, full: bool, name: str, path: str) -> None:
    skip_like(full, name)
    user, said = ASKED, {"role": "assistant", "content": "Little."}
    two = [*calls(path, "a", "b"), *results_of(path, ["b", "a"])]
    histories = [
        [said, user],
        [user, said, said, user],
        [user, *two, user],
        [user, *two, said, user],
        [user, *calls(path, "a"), *results_of(path, ["a"], "Go on.")],
        [user, said, *calls(path, "a"), *results_of(path, ["a"]), said, user],
    ]
    if path != MESSAGES:
        system = [{"role": role, "content": f"Be {role}."} for role in ("developer", "system")]
        histories += [[user, user], [system[0], user, system[1]]]
    for number, history in enumerate(histories):
        for streams in (False, True) if full else (number % 2 == 0,):
            assert events_of(server_with(name), path, short(path, history, tools=TOOLS[path], stream=streams))


def skip_like(full: bool, name: str) -> None:
    if name in {SMALL, MINISTRAL} and not full:
        pytest.skip("another of Mistral's: with --full")


@in_each_talking_api
def test_one_call_at_once_where_the_template_has_one(server_with: ServerWith, path: str, streams: bool) -> None:
    body = body_of(path, [ASKED], tools=TOOLS[path], tool_choice=MUST_CALL[path], seed=3)
    answer = answered(server_with(LLAMA).url, path, {**body, "temperature": 2.0}, streams=streams)
    assert len(answer.calls) == 1


@in_each_talking_api
def test_results_are_put_in_the_order_of_their_calls(server: Server, path: str, streams: bool) -> None:
    """This template shows no ids: the prompt is that of results in order."""
    made = calls(path, "first", "second")
    orders = [results_of(path, ["first", "second"]), results_of(path, ["second", "first"])]
    bodies = [short(path, [ASKED, *made, *results]) for results in orders]
    ordered, other = (answered(server.url, path, body, streams=streams) for body in bodies)
    assert (other.n_prompt, other.content) == (ordered.n_prompt, ordered.content)
    assert other.n_cached >= ordered.n_prompt - 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [GEMMA_2, SMOLLM])
def test_a_call_cannot_be_demanded_without_a_format_for_it(server_with: ServerWith, name: str, path: str) -> None:
    for choice in (MUST_CALL[path], MUST_CALL_IT[path]):
        for streams in (False, True):
            body = body_of(path, [ASKED], tools=TOOLS[path], tool_choice=choice, stream=streams)
            answer = httpx.post(server_with(name).url + path, json=body, timeout=60)
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert "no format for tool calls" in error["message"]
            if path != MESSAGES:
                assert (error["code"], error["param"]) == ("tools_unsupported", "tool_choice")


@in_each_talking_api
def test_tools_that_are_not_shown_are_said_once(
    server_with: ServerWith, caplog: pytest.LogCaptureFixture, path: str, streams: bool
) -> None:
    """Of templates that are the same but for their name, each says it once."""
    server = server_with(f"{{# {path} {streams} #}}" + BARE)
    with caplog.at_level(logging.WARNING, "luce.http.answering"):
        for fields in ({"tools": TOOLS[path]}, {"tools": TOOLS[path]}, {}):
            answered(server.url, path, short(path, [ASKED], **fields), streams=streams)
    said = [record.getMessage() for record in caplog.records if "tools" in record.getMessage()]
    assert len(said) == 1
    assert "does not show the tools" in said[0]


@in_each_talking_api
def test_calls_can_be_demanded_where_only_the_tools_are_not_shown(
    server_with: ServerWith, path: str, streams: bool
) -> None:
    """DeepSeek V3.1's template has a format for calls, and leaves the tools to the client."""
    body = body_of(path, [ASKED], tools=TOOLS[path], tool_choice=MUST_CALL[path])
    body["chat_template_kwargs"] = {"enable_thinking": False}
    assert len(answered(server_with(DEEPSEEK).url, path, body, streams=streams).calls) >= 1


@in_each_talking_api
@pytest.mark.parametrize("name", [DEEPSEEK, DEEPSEEK_4])
def test_a_system_message_in_the_middle_leaves_the_rest_in_place(
    server_with: ServerWith, name: str, path: str, streams: bool
) -> None:
    """DeepSeek's templates move them to the front."""
    server = server_with(name)
    system, said = {"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Something long."}
    history = [{"role": "user", "content": "Say something long. " * 40}, said, ASKED]
    history = history if path == MESSAGES else [system, *history]
    fields = {"system": "Be brief."} if path == MESSAGES else {}
    first = answered(server.url, path, short(path, history, **fields), streams=streams)
    note = {"role": "system", "content": "It is Monday now."}
    longer = [*history, {"role": "assistant", "content": first.content or "Little."}, note, ASKED]
    second = answered(server.url, path, short(path, longer, **fields), streams=streams)
    assert second.n_cached >= first.n_prompt - 16, "but for what opens an answer"


@in_each_talking_api
def test_a_refusal_is_one_sentence(server_with: ServerWith, path: str, streams: bool) -> None:
    picky = (
        "{% for m in messages %}{% if 'dog' in m.content %}{{ raise_exception('Only cats, please') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    answer = ask(server_with(picky).url, path, body_of(path, [{"role": "user", "content": "A dog."}]), streams=streams)
    assert answer.status == 400
    told = {"type": "invalid_request_error", "message": f"{REFUSAL}: Only cats, please."}
    if path != MESSAGES:
        told |= {"code": "bad_messages", "param": "messages"}
    assert answer.error == told
