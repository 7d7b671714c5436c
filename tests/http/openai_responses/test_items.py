"""Input items as messages: what one turn of the model became is one message again. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.openai_responses.items import messages_of, offered_name, pack_reasoning, unpack_reasoning
from luce.supervisor.http.prompts.message_images import without_images
from luce.supervisor.http.prompts.message_normalizer import normalise_messages

USER = {"role": "user", "content": "hi"}


def reasoning(text: str = "hm", **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(number: int, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": "run", "arguments": f"[{number}]", **more}


def output(number: int, value: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": value}


def tool_call(number: int, name: str = "run", arguments: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": f"[{number}]" if arguments is None else arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def test_a_text_is_the_users() -> None:
    assert messages_of("hi") == [USER]


def test_one_turn_is_one_message() -> None:
    items = [USER, reasoning(), said("well"), call(1), call(2), output(1), output(2), said("so")]
    assert messages_of(items) == [
        USER,
        {
            "role": "assistant",
            "content": "well",
            "reasoning_content": "hm",
            "tool_calls": [tool_call(1), tool_call(2)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        {"role": "tool", "tool_call_id": "call_2", "content": "done"},
        {"role": "assistant", "content": "so"},
    ]


def test_turns_after_each_other_stay_apart() -> None:
    """A turn reasons first, and speaks once at a time: what begins again is the next one."""
    assert [message["content"] for message in messages_of([said("a"), said("b")])] == ["a", "b"]
    messages = messages_of([reasoning("1"), said("a"), reasoning("2"), said("b"), call(1)])
    assert [message["reasoning_content"] for message in messages] == ["1", "2"]
    assert messages_of([call(1), output(1), call(2), output(2)])[2]["tool_calls"] == [tool_call(2)]


def test_text_on_both_sides_of_a_call_is_one_turns() -> None:
    (message,) = messages_of([said("a"), call(1), said("b")])
    assert message == {"role": "assistant", "content": "ab", "tool_calls": [tool_call(1)]}


def test_reasoning_comes_from_where_it_is() -> None:
    packed = pack_reasoning("dächte ich\n")
    assert messages_of([reasoning("x", encrypted_content=packed), said("")])[0]["reasoning_content"] == "x"
    bare = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}]}
    assert messages_of([bare | {"encrypted_content": packed}, said("")])[0]["reasoning_content"] == "dächte ich\n"
    assert messages_of([bare | {"encrypted_content": "gAAAA…"}, said("")])[0]["reasoning_content"] == "in short"
    assert messages_of([{"type": "reasoning", "encrypted_content": "gAAAA"}, said("a")]) == [
        {"role": "assistant", "content": "a"}
    ]
    assert messages_of([{"type": "reasoning", "summary": None, "content": 5}]) == []


@given(st.text())
def test_packed_reasoning_comes_back(text: str) -> None:
    assert unpack_reasoning(pack_reasoning(text)) == text


@pytest.mark.parametrize("packed", [None, 1, "", "luce-reasoning", "luce-reasoning:%", "luce-reasoning:/w==", "x" * 99])
def test_a_strangers_cipher_is_not_ours(packed: object) -> None:
    assert unpack_reasoning(packed) is None


def test_contents_are_texts_or_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages_of([{"role": "user", "content": parts[:1]}])[0]["content"] == "a"
    assert messages_of([{"role": "developer", "content": parts}]) == [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    refused = {"type": "refusal", "refusal": "no"}
    assert messages_of([{"type": "message", "role": "assistant", "content": [*parts, refused]}])[0]["content"] == "abno"


def test_other_tools_calls_are_calls() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "apply_patch", "input": '*** "é"\n'},
        {"type": "function_call", "call_id": "call_2", "name": "wait", "namespace": "agents", "arguments": ""},
        {"type": "local_shell_call", "call_id": "call_3", "action": {"type": "exec", "command": ["ls"]}, "status": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "local_shell_call_output", "id": "call_3", "output": "README"},
    ]
    turn, patched, listed = messages_of(items)
    assert turn["tool_calls"] == [
        tool_call(1, "apply_patch", '{"input": "*** \\"é\\"\\n"}'),
        tool_call(2, "agents__wait", "{}"),
        tool_call(3, "local_shell", '{"type": "exec", "command": ["ls"]}'),
    ]
    assert (patched["content"], listed["tool_call_id"], listed["content"]) == ("ok", "call_3", "README")


def test_outputs_of_all_shapes() -> None:
    def text_of(value: Any) -> Any:
        return normalise_messages(without_images(messages_of([output(1, value)])))[0]["content"]

    assert text_of(None) == ""
    assert text_of({"ok": True}) == '{"ok": true}'
    assert text_of([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}, "c"]) == "a\nb\nc"
    assert text_of([{"type": "input_image", "image_url": "data:"}]) == "[image left out: the model reads text only]"
    assert text_of([{"stdout": "x", "outcome": {"type": "exit"}}]) == '{"stdout": "x", "outcome": {"type": "exit"}}'


def test_what_the_model_cannot_have_is_left_out() -> None:
    foreign = ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "compaction"]
    items = [{"type": kind, "id": "x"} for kind in [*foreign, "tool_search_call", "made_up_in_2027"]]
    assert messages_of([USER, *items, said("a")]) == [USER, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ("text", "input[0]"),
        ({}, "input[0].type"),
        ({"type": 3}, "input[0].type"),
        ({"role": "wizard", "content": ""}, "input[0].role"),
        ({"role": ["user"], "content": ""}, "input[0].role"),
        ({"role": "user", "content": 7}, "input[0].content"),
        ({"role": "user", "content": [7]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": ["x"]}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "input[0].content[0]"),
        ({"type": "function_call", "name": "f", "arguments": ""}, "input[0].call_id"),
        ({"type": "function_call", "call_id": "c", "name": 4}, "input[0].name"),
        ({"type": "function_call_output", "output": ""}, "input[0].call_id"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, "input[0].input"),
        ({"type": "item_reference", "id": "msg_1"}, "input[0].id"),
        ({"type": "mcp_call"}, "input[0].name"),
    ],
)
def test_mistakes_name_their_place(item: Any, param: str) -> None:
    with pytest.raises(ApiError) as refusal:
        without_images(messages_of([item]))
    assert refusal.value.kind.status == 400
    assert refusal.value.param == param


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_KINDS = st.sampled_from(
    [
        "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
        "local_shell_call", "local_shell_call_output", "computer_call", "computer_call_output", "mcp_call",
        "apply_patch_call", "item_reference", "web_search_call",
    ]
)  # fmt: skip
_FIELDS = st.sampled_from(
    ["role", "content", "summary", "encrypted_content", "call_id", "id", "name", "namespace", "arguments", "input",
     "output", "action", "operation", "error"]
)  # fmt: skip


@given(
    st.lists(st.builds(lambda kind, rest: {**rest, "type": kind}, _KINDS, st.dictionaries(_FIELDS, _JSON)), max_size=6)
)
def test_any_items_give_messages_or_a_refusal(items: list[Any]) -> None:
    try:
        messages = messages_of(items)
    except ApiError as refusal:
        told = (refusal.kind.status, refusal.param is not None)
        messages = []
    else:
        told = (400, True)
    assert told == (400, True)
    for message in messages:
        assert message["role"] in {"user", "assistant", "system", "developer", "tool"}
        assert isinstance(message["content"], str | list)
        for made in message.get("tool_calls", ()):
            assert isinstance(made["function"]["arguments"], str)


def test_names_of_namespaces() -> None:
    assert offered_name(None, "f") == offered_name("", "f") == "f"
    assert offered_name("agents", "f") == "agents__f"
    assert offered_name("mcp__docs__", "f") == "mcp__docs__f"
