"""What a body of the Responses API asks for, and what is kept of an answer. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_responses.request import (
    Caller,
    ParsedResponses,
    ResponsesBody,
    read_request,
)
from luce.supervisor.http.openai_responses.response_store import KeptResponse, KeptResponses, encode_items
from luce.supervisor.http.openai_responses.tools import OfferedTool, Tools, choose, read_tools
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.transport.body import check

CODEX = Path(__file__).parents[2] / "data" / "clients" / "codex.json"
RUN = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: hunk+"},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "…",
    "tools": [{"type": "function", "name": "wait", "description": "Waits."}, {**PATCH, "name": "tell"}],
}


class NoVocabulary:
    n_vocab = 100

    def tokenize(self, text: str | bytes) -> list[int]:
        return [len(text)]

    def detokenize(self, tokens: Sequence[int], *, unparse_special: bool = False) -> bytes:
        return b"?" * len(tokens) if unparse_special else b""


def read(raw: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, earlier: Any = ()) -> ParsedResponses:
    caller = Caller(headers or {}, "key")
    body = check(raw, ResponsesBody)
    return read_request(body, earlier, model="luce", vocabulary=NoVocabulary(), caller=caller)


def prompt_of(raw: Mapping[str, Any], **more: Any) -> ChatPrompt:
    prompt = read(raw, **more).answer_request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def refused(raw: Mapping[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as refusal:
        read(raw)
    assert refusal.value.kind.status == 400
    return refusal.value


def test_a_text() -> None:
    asked = read({"input": "hi"})
    assert asked.answer_request.prompt == ChatPrompt(messages=[{"role": "user", "content": "hi"}], tools=[])
    assert (asked.answer_request.max_tokens, asked.answer_request.n_logprobs, asked.answer_request.client) == (
        None,
        None,
        "key",
    )
    assert asked.form.echoed["store"] is True


def test_instructions_come_first() -> None:
    earlier = [{"role": "user", "content": "one"}]
    messages = prompt_of({"input": "two", "instructions": "Be brief."}, earlier=earlier).messages
    assert [message["content"] for message in messages] == ["Be brief.", "one", "two"]
    assert prompt_of({"instructions": "Begin."}).messages == [{"role": "system", "content": "Begin."}]


def test_zero_is_a_value() -> None:
    asked = read({"input": "hi", "max_output_tokens": 0, "temperature": 0, "top_logprobs": 0, "seed": 0})
    assert (
        asked.answer_request.max_tokens,
        asked.answer_request.sampling.temperature,
        asked.answer_request.sampling.seed,
    ) == (0, 0, 0)
    assert asked.answer_request.n_logprobs is None


def test_logprobs_are_asked_for_in_either_way() -> None:
    include = ["message.output_text.logprobs", "something.newer"]
    assert read({"input": "hi", "include": include}).answer_request.n_logprobs == 0
    assert read({"input": "hi", "include": include, "top_logprobs": 3}).answer_request.n_logprobs == 3
    assert read({"input": "hi", "top_logprobs": 2}).form.with_logprobs


def test_formats() -> None:
    schema = {"type": "object"}

    def format_of(form: Any) -> Any:
        return prompt_of({"input": "hi", "text": {"format": form}}).json_schema

    assert format_of(None) is None
    assert format_of({"type": "text"}) is None
    assert format_of({"type": "json_object"}) == {}
    assert format_of({"type": "json_schema", "name": "a", "schema": schema, "strict": True}) == schema
    assert format_of({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}) == schema


def test_reasoning() -> None:
    def parsed(reasoning: Any, **more: Any) -> tuple[Any, ...]:
        prompt = prompt_of({"input": "hi", "reasoning": reasoning, **more})
        return prompt.thinking, prompt.thinking_budget, prompt.effort

    assert parsed(None) == parsed({"summary": "auto"}) == (None, None, None)
    assert parsed({"effort": "high"}) == (None, None, "high")
    assert parsed({"effort": "none"}) == parsed({"enabled": False}) == (False, None, None)
    assert parsed({"max_tokens": 0}) == (None, 0, None)
    assert parsed({"enabled": True}) == (True, None, None)
    assert parsed({}, chat_template_kwargs={"enable_thinking": False}) == (False, None, None)
    assert prompt_of({"input": "hi", "chat_template_kwargs": {"x": 1}}).template_arguments == {"x": 1}


def test_sessions() -> None:
    assert read({"input": "hi", "prompt_cache_key": "thread"}).answer_request.session == "thread"
    assert read({"input": "hi"}, headers={"Session-Id": "other"}).answer_request.session == "other"


def test_unknown_fields_and_nulls_are_tolerated() -> None:
    nulls = dict.fromkeys(ResponsesBody.model_fields, None)
    body = {**nulls, "input": "hi", "stream_options": {"include_obfuscation": False}, "new": {"x": [1]}}
    assert read(body).answer_request == read({"input": "hi"}).answer_request


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("input", None, "input"),
        ("input", 5, "input"),
        ("input", {"role": "user"}, "input"),
        ("input", [], "input"),
        ("input", [[]], "input[0]"),
        ("conversation", "conv_1", "conversation"),
        ("prompt", {"id": "pmpt_1"}, "prompt"),
        ("truncation", "always", "truncation"),
        ("metadata", [1], "metadata"),
        ("metadata", {"a": 1}, "metadata"),
        ("max_output_tokens", -1, "max_output_tokens"),
        ("max_output_tokens", "5", "max_output_tokens"),
        ("max_output_tokens", True, "max_output_tokens"),
        ("temperature", 5, "temperature"),
        ("temperature", "hot", "temperature"),
        ("top_p", 2, "top_p"),
        ("top_logprobs", 21, "top_logprobs"),
        ("stream", "yes", "stream"),
        ("store", 1, "store"),
        ("include", "all", "include"),
        ("reasoning", {"effort": "vast"}, "reasoning.effort"),
        ("reasoning", {"effort": ["low"]}, "reasoning.effort"),
        ("reasoning", {"max_tokens": -1}, "reasoning.max_tokens"),
        ("reasoning", "high", "reasoning"),
        ("text", {"format": "json"}, "text.format"),
        ("text", {"format": {"type": "xml"}}, "text.format.type"),
        ("text", {"format": {"type": "json_schema", "schema": True}}, "text.format.schema"),
        ("tools", {"type": "function"}, "tools"),
        ("tools", [{"type": "function"}], "tools[0].name"),
        ("tools", [{"type": "function", "name": 3}], "tools[0].name"),
        ("tools", [{"type": "function", "name": "f", "parameters": "none"}], "tools[0].parameters"),
        ("tools", [{"type": "function", "name": "f", "description": 1}], "tools[0].description"),
        ("tools", [{"type": "custom"}], "tools[0].name"),
        ("tools", [{"type": "custom", "name": "p", "format": {"type": "grammar"}}], "tools[0].format.definition"),
        ("tools", [{"type": "namespace", "name": "n"}], "tools[0].tools"),
        ("tools", [{"type": "namespace", "name": "n", "tools": [3]}], "tools[0].tools[0]"),
        ("tool_choice", "maybe", "tool_choice"),
        ("tool_choice", 5, "tool_choice"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "gone"}, "tool_choice"),
        ("tool_choice", {"type": "function"}, "tool_choice.name"),
        ("tool_choice", {"type": "web_search"}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "mode": "auto"}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "mode": ["auto"], "tools": []}, "tool_choice"),
        ("tool_choice", {"type": ["function"]}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "mode": "required", "tools": [{"type": []}, 3]}, "tool_choice"),
        ("stop", [1], "stop"),
    ],
)
def test_mistakes_name_their_field(field: str, value: Any, param: str) -> None:
    assert (refused({"input": "hi", field: value}).param or "").split("[str]")[0] == param


def test_tools() -> None:
    tools = read_tools([RUN, {"type": "web_search"}, PATCH, AGENTS, RUN, {"type": "made_up"}, {}])
    names = [tool["function"]["name"] for tool in tools.definitions]
    assert names == ["run", "apply_patch", "agents__wait", "agents__tell"]
    assert tools.definitions[0]["function"]["parameters"] == RUN["parameters"]
    assert tools.definitions[2]["function"] == {
        "name": "agents__wait",
        "description": "Waits.",
        "parameters": {"type": "object", "properties": {}},
    }
    patch = tools.definitions[1]["function"]
    assert patch["parameters"]["required"] == ["input"]
    assert patch["description"] == "Changes files.\n\nThe input has to follow this lark grammar:\nstart: hunk+"
    assert tools.called("agents__tell") == OfferedTool("tell", "agents", is_custom=True)
    assert tools.called("never_offered") == OfferedTool("never_offered")


def test_tools_in_the_shape_of_chat_completions() -> None:
    assert read_tools([{"type": "function", "function": {**RUN}}]).offered == {"run": OfferedTool("run")}


@pytest.mark.parametrize(
    ("choice", "said", "n_left"),
    [
        (None, "auto", 4),
        ("auto", "auto", 4),
        ("none", "none", 4),
        ("required", "required", 4),
        ({"type": "function", "name": "run"}, "function:run", 4),
        ({"type": "function", "function": {"name": "run"}}, "function:run", 4),
        ({"type": "function", "name": "wait"}, "function:agents__wait", 4),
        ({"type": "function", "name": "wait", "namespace": "agents"}, "function:agents__wait", 4),
        ({"type": "custom", "name": "apply_patch"}, "function:apply_patch", 4),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "run"}]}, "auto", 1),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
         "function:apply_patch", 4),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, "none", 4),
    ],
)  # fmt: skip
def test_tool_choices(choice: Any, said: str, n_left: int) -> None:
    left, chosen = choose(read_tools([RUN, PATCH, AGENTS]), choice)
    assert (chosen, len(left.definitions), len(left.offered)) == (said, n_left, n_left)


def test_several_allowed_tools_are_required_among_themselves() -> None:
    allowed = [{"type": "function", "name": "run"}, {"type": "custom", "name": "apply_patch"}]
    left, chosen = choose(
        read_tools([RUN, PATCH, AGENTS]), {"type": "allowed_tools", "mode": "required", "tools": allowed}
    )
    assert (chosen, list(left.offered)) == ("required", ["run", "apply_patch"])
    with pytest.raises(ApiError):
        choose(Tools(), {"type": "allowed_tools", "mode": "required", "tools": []})


def codex(step: str) -> dict[str, Any]:
    requests = json.loads(CODEX.read_text())["requests"]
    body: dict[str, Any] = next(request["body"] for request in requests if request["step"] == step)
    return body


def test_codex_offers_its_agents_and_names_its_thread() -> None:
    asked = read(codex("first_turn"))
    assert isinstance(asked.answer_request.prompt, ChatPrompt)
    names = [tool["function"]["name"] for tool in asked.answer_request.prompt.tools]
    assert {"exec_command", "multi_agent_v1__spawn_agent"} <= set(names)
    assert asked.form.tools.called("multi_agent_v1__spawn_agent") == OfferedTool("spawn_agent", "multi_agent_v1")
    assert asked.answer_request.session == codex("second_turn")["prompt_cache_key"]
    assert asked.form.packs_reasoning
    assert asked.form.echoed["store"] is False


def test_what_codex_said_stays_the_beginning_of_what_it_says_next() -> None:
    first, second, result = (
        list(prompt_of(codex(step)).messages) for step in ("first_turn", "second_turn", "second_turn_tool_result")
    )
    assert second[: len(first)] == first
    assert second[len(first)]["role"] == "assistant"
    assert result[: len(second)] == second
    turn, output = result[len(second) :][:2]
    assert (turn["role"], output["role"]) == ("assistant", "tool")
    assert turn["tool_calls"][0]["id"] == output["tool_call_id"]


def kept(name: str, *, previous: str | None = None, client: str = "", text: str = "hi") -> KeptResponse:
    items = encode_items([{"role": "user", "content": text}])
    return KeptResponse(name, client, previous, items, json.dumps({"output": [{"id": name}]}).encode())


def test_a_chain_is_a_conversation() -> None:
    store = KeptResponses()
    for name, previous in (("a", None), ("b", "a"), ("c", "b")):
        store.keep(kept(name, previous=previous, text=name.upper()), limit_bytes=1 << 20)
    items = store.conversation("c", "") or []
    assert [item.get("content", item["id"]) for item in items] == ["A", "a", "B", "b", "C", "c"]
    assert store.conversation("a", "") == items[:2]
    store.drop("a")
    assert store.conversation("c", "") is None


def test_what_is_kept_is_bounded_and_the_longest_unused_goes_first() -> None:
    size = kept("a").n_bytes
    store = KeptResponses()
    for name in "abc":
        store.keep(kept(name), limit_bytes=3 * size)
    assert store.find("a", "") is not None
    store.keep(kept("d"), limit_bytes=3 * size)
    assert [store.find(name, "") is not None for name in "abcd"] == [True, False, True, True]
    assert store.n_bytes == 3 * size
    store.keep(kept("e", text="x" * 4 * size), limit_bytes=3 * size)
    assert store.find("e", "") is None
    assert store.find("d", "") is not None
    for name in "acd":
        store.drop(name)
    store.drop("never")
    assert store.n_bytes == 0


def test_who_keeps_much_makes_no_room_of_anothers() -> None:
    size = kept("a").n_bytes
    store = KeptResponses()
    store.keep(kept("a", client="me"), limit_bytes=3 * size)
    for name in "bcdef":
        store.keep(kept(name, client="you"), limit_bytes=3 * size)
    assert store.find("a", "me") is not None
    assert [store.find(name, "you") is not None for name in "bcdef"] == [False, False, False, True, True]


def test_nothing_is_kept_without_room() -> None:
    store = KeptResponses()
    store.keep(kept("a"), limit_bytes=0)
    assert store.find("a", "") is None


def test_items_are_found_by_reference() -> None:
    store = KeptResponses()
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "hi"}
    made = KeptResponse("a", "one", None, b"[]", json.dumps({"output": [item]}).encode(), ("msg_1",))
    store.keep(made, limit_bytes=1 << 20)
    reference = {"type": "item_reference", "id": "msg_1"}
    others = [{"role": "user", "content": ""}, "x", {"type": "item_reference", "id": ["msg_1"]}]
    assert store.referred([reference, *others], "one") == [item, *others]
    assert store.referred([reference], "two") == [reference]
    store.drop("a")
    assert store.referred([reference], "one") == [reference]


def test_others_keys_see_nothing() -> None:
    store = KeptResponses()
    store.keep(kept("a", client="one"), limit_bytes=1 << 20)
    assert store.find("a", "two") is None
    assert store.conversation("a", "two") is None
    assert store.conversation("a", "one") is not None
