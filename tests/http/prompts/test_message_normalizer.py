"""The normaliser on what clients send (tests/data/clients), in the neutral shape that dialects make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.prompts.message_normalizer import (
    UnreadableContentError,
    normalise_messages,
    normalise_schema,
    normalise_tools,
)

CLAUDE_CODE = Path(__file__).parents[2] / "data" / "clients" / "claude_code.json"
HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=sdk-cli;"


def system(*texts: str) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": "text", "text": text} for text in texts]}


def recorded_system_parts() -> list[list[dict[str, Any]]]:
    requests = json.loads(CLAUDE_CODE.read_text())["requests"]
    return [request["body"]["system"] for request in requests if isinstance(request["body"].get("system"), list)]


def test_recorded_sessions_have_one_beginning() -> None:
    parts = recorded_system_parts()
    assert len(parts) > 1
    assert all(any("billing-header" in part["text"] for part in each) for each in parts), "nothing to normalise"
    normal = [normalise_messages([{"role": "system", "content": each}]) for each in parts]
    assert all("billing-header" not in message["content"] for each in normal for message in each)
    assert all(each == normal[0] for each in normal)
    assert len(normal[0][0]["content"]) > 1000


@pytest.mark.parametrize("suffix", ["699", "dc7", "cca"])
def test_the_volatile_header_does_not_show(suffix: str) -> None:
    expected = [{"role": "system", "content": "Be brief."}]
    header = HEADER.format(suffix)
    assert normalise_messages([system(header, "Be brief.")]) == expected
    assert normalise_messages([{"role": "system", "content": f"{header}\nBe brief."}]) == expected
    assert normalise_messages([{"role": "developer", "content": f"{header}\n\nBe brief."}])[0]["content"] == "Be brief."
    assert normalise_messages([system(header), {"role": "user", "content": "Hello"}]) == [
        {"role": "user", "content": "Hello"}
    ]


def test_what_users_write_is_left_alone() -> None:
    text = HEADER.format("699") + "\nwhat is this line?"
    assert normalise_messages([{"role": "user", "content": text}])[0]["content"] == text
    inside = "A proxy may see x-anthropic-billing-header: 1\nin requests."
    assert normalise_messages([{"role": "system", "content": inside}])[0]["content"] == inside


def test_a_text_and_its_parts_are_the_same() -> None:
    part = {"type": "text", "text": "One", "cache_control": {"type": "ephemeral"}}
    for role in ("system", "user", "assistant", "tool"):
        as_text = normalise_messages([{"role": role, "content": "One"}])
        assert normalise_messages([{"role": role, "content": [part]}]) == as_text
    two = normalise_messages([{"role": "user", "content": [part, {"type": "text", "text": "Two"}]}])
    assert two == [{"role": "user", "content": "One\nTwo"}]


def test_marks_and_empty_fields_do_not_show() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "cache_control": {}}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "cache_control": {},
        "refusal": None,
    }
    (normal,) = normalise_messages([message])
    assert normal["content"] == ""
    assert normal["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    assert "cache_control" not in normal
    assert "tool_calls" not in normalise_messages([{"role": "assistant", "content": "a", "tool_calls": []}])[0]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    marked = {**tool, "cache_control": {"type": "ephemeral"}, "strict": True}
    assert normalise_tools([marked]) == normalise_tools([tool]) == [tool]


def test_it_is_idempotent_and_changes_nothing_of_the_callers() -> None:
    messages = [system(HEADER.format("1"), "Rules"), {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    before = json.dumps(messages)
    once = normalise_messages(messages)
    assert normalise_messages(once) == once
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    "content", [[{"type": "image_url"}], [{"type": "text"}], ["text"], [None], 7, {"type": "text"}]
)
def test_what_is_no_text_is_refused(content: object) -> None:
    with pytest.raises(UnreadableContentError):
        normalise_messages([{"role": "user", "content": content}])


def test_booleans_in_the_place_of_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {
            "any": True,
            "none": False,
            "list": {"type": "array", "items": True},
            "default": {"default": True},
        },
        "anyOf": [True, {"required": ["any"]}],
        "$defs": {"X": True},
        "additionalProperties": False,
    }
    assert normalise_schema(schema) == {
        "type": "object",
        "properties": {
            "any": {},
            "none": {"not": {}},
            "list": {"type": "array", "items": {}},
            "default": {"default": True},
        },
        "anyOf": [{}, {"required": ["any"]}],
        "$defs": {"X": {}},
        "additionalProperties": False,
    }
    assert list(normalise_schema(schema)) == list(schema)
    for odd in ({"properties": [1]}, {"anyOf": 3}, {"items": "x"}):
        assert normalise_schema(odd) == odd
