"""Whatever a body holds, it becomes an AnswerRequest that the text layer can express, or a refusal: nothing else."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from luce.supervisor.http.anthropic.conversion import request_of_messages
from luce.supervisor.http.anthropic.opaque import signature_of_hidden
from luce.supervisor.http.anthropic.shapes import MessagesRequest
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.message_normalizer import normalise_messages, normalise_tools
from luce.supervisor.http.transport.body import check
from luce.supervisor.http.transport.json_body import parse_object

TEXT = st.text(max_size=12)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def some(fields: dict[str, st.SearchStrategy[Any]], **required: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(required, optional=fields)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


SIGNATURES = TEXT | TEXT.map(signature_of_hidden) | TEXT.map(lambda text: "luce1h." + text)
NAMES = st.sampled_from(["weather", "time", "functions.x:0"])
TOOL = some({"description": TEXT, "type": st.just("custom")}, name=NAMES, input_schema=st.just({"type": "object"}))
SERVERS_TOOL = some({}, name=NAMES, type=st.just("web_search_20250305"))
TEXT_BLOCK = block("text", text=TEXT)
DOCUMENT = block("document", source=block("text", data=TEXT) | block("content", content=TEXT | st.lists(TEXT_BLOCK)))
FOUND = block("search_result", title=TEXT, source=TEXT, content=st.lists(TEXT_BLOCK, max_size=2))
REFERENCE = block("tool_reference", tool_name=NAMES)
PICTURE = block("image", source=st.just({}))
GIVEN = TEXT | st.lists(TEXT_BLOCK | DOCUMENT | FOUND | REFERENCE | PICTURE, max_size=2)
RESULT = block("tool_result", tool_use_id=NAMES, content=GIVEN, is_error=st.booleans())
THINKING = block("thinking", thinking=st.just("") | TEXT, signature=SIGNATURES)
USE = block("tool_use", id=NAMES, name=NAMES, input=st.dictionaries(TEXT, ANYTHING, max_size=2))
ADDITION = block("tool_addition", tool=block("tool_definition", definition=TOOL) | block("tool_reference", name=NAMES))
USER = some({}, role=st.just("user"), content=TEXT | st.lists(TEXT_BLOCK | RESULT | DOCUMENT | FOUND, max_size=3))
ASSISTANT = some(
    {},
    role=st.just("assistant"),
    content=TEXT | st.lists(TEXT_BLOCK | THINKING | USE | block("of_tomorrow") | block("compaction"), max_size=3),
)
SYSTEM_TEXT = TEXT | st.lists(TEXT_BLOCK | ADDITION | block("of_tomorrow"), max_size=2)
SYSTEM = some({"clear_at": st.just("next_user_message")}, role=st.just("system"), content=SYSTEM_TEXT)
BODY = some(
    {
        "system": SYSTEM_TEXT,
        "tools": st.lists(TOOL | SERVERS_TOOL, max_size=3, unique_by=lambda tool: tool["name"]),
        "tool_choice": some({"disable_parallel_tool_use": st.booleans()}, type=st.sampled_from(["auto", "none"])),
        "thinking": some({"budget_tokens": st.integers(0, 9)}, type=st.sampled_from(["disabled", "adaptive"])),
        "output_config": some({"effort": TEXT, "format": block("json_schema", schema=st.just({}))}),
        "metadata": some({"user_id": TEXT | ANYTHING.map(json.dumps)}),
        "stop_sequences": st.lists(st.text(min_size=1, max_size=3), max_size=2),
        "temperature": st.floats(0, 2),
    },
    messages=st.lists(USER | ASSISTANT | SYSTEM, max_size=5),
    max_tokens=st.integers(0, 10),
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in it: its container, and the name or index there."""
    names = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for name in names for place in ((value, name), *places(value[name]))]


@settings(max_examples=250, deadline=None)
@given(data=st.data(), body=BODY, n_spoilt=st.sampled_from([0, 0, 1, 2]))
def test_any_body_is_an_ask_or_a_refusal(data: st.DataObject, body: dict[str, Any], n_spoilt: int) -> None:
    body = json.loads(json.dumps(body))
    for _ in range(n_spoilt):
        container, name = data.draw(st.sampled_from(places(body)))
        container[name] = data.draw(ANYTHING)
    with suppress(ApiError):
        ask = request_of_messages(check(parse_object(json.dumps(body).encode()), MessagesRequest))
        assert isinstance(ask.prompt, ChatPrompt)
        event("an AnswerRequest")
        json.dumps(normalise_messages(ask.prompt.messages), allow_nan=False).encode()
        json.dumps(normalise_tools(ask.prompt.tools), allow_nan=False).encode()
        roles = [message["role"] for message in ask.prompt.messages]
        assert not any(a == b and a in {"user", "assistant"} for a, b in itertools.pairwise(roles))
        # Behind a call, or an answer that says nothing, a new one begins.
        assert not ask.prompt.continues_last or roles[-1] == "assistant"


@settings(max_examples=100, deadline=None)
@given(body=st.dictionaries(TEXT | st.sampled_from(["messages", "max_tokens", "system"]), ANYTHING, max_size=4))
def test_a_body_of_anything_is_read_or_refused(body: dict[str, Any]) -> None:
    with suppress(ApiError):
        request_of_messages(check(parse_object(json.dumps(body).encode()), MessagesRequest))
