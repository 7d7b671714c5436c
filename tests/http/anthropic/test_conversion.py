"""What a request to /v1/messages becomes: an AnswerRequest, or a refusal that says what to change. No server runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.http.anthropic.conversion import hides_thinking, request_of_count, request_of_messages
from luce.supervisor.http.anthropic.opaque import (
    MAX_RESTORED_BYTES,
    call_id_of,
    reasoning_of,
    signature_of_hidden,
    signature_of_shown,
    tool_use_id,
)
from luce.supervisor.http.anthropic.shapes import CountTokensRequest, MessagesRequest
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.http.prompts.message_images import without_images
from luce.supervisor.http.prompts.message_normalizer import normalise_messages
from luce.supervisor.http.transport.body import check

CLAUDE_CODE = Path(__file__).parents[2] / "data" / "clients" / "claude_code.json"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object", "properties": {}}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def ask(**body: Any) -> AnswerRequest:
    return request_of_messages(check({"model": "m", "max_tokens": 10, "messages": HELLO, **body}, MessagesRequest))


def prompt(**body: Any) -> ChatPrompt:
    made = ask(**body).prompt
    assert isinstance(made, ChatPrompt)
    return made


def messages(*given: dict[str, Any], **body: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in prompt(messages=list(given), **body).messages]


def refusal(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(**body)
    assert caught.value.kind is ErrorKind.INVALID
    return caught.value


def call(identifier: str = "toolu_a", **block: Any) -> dict[str, Any]:
    content = [{"type": "tool_use", "id": identifier, "name": "weather", "input": {"city": "Graz"}, **block}]
    return {"role": "assistant", "content": content}


def result(content: Any, **block: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_a", "content": content, **block}


def test_a_text_and_its_parts() -> None:
    assert messages({"role": "user", "content": "hello"}) == [{"role": "user", "content": "hello"}]
    assert messages({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


def test_system_goes_first_and_may_come_again() -> None:
    marked = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
    made = messages(*HELLO, {"role": "system", "content": "today"}, system=[marked])
    assert made == [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "user", "content": "hello"},
        {"role": "system", "content": "today"},
    ]


@pytest.mark.parametrize("empty", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_is_none(empty: Any) -> None:
    assert messages(*HELLO, system=empty) == [{"role": "user", "content": "hello"}]


def test_neighbours_of_one_role_are_one_message() -> None:
    made = messages(
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": "e"},
    )
    assert made == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"},
    ]


def test_results_of_tools_come_before_the_text_of_their_turn() -> None:
    turn = [{"type": "text", "text": "and now?"}, result("sunny"), {"type": "text", "text": "tell"}]
    made = messages(*HELLO, call(), {"role": "user", "content": turn})
    assert made[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Graz"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny", "name": "weather"},
        {"role": "user", "content": [{"type": "text", "text": "and now?"}, {"type": "text", "text": "tell"}]},
    ]


@pytest.mark.parametrize(
    ("content", "options", "text"),
    [
        ("sunny", {}, "sunny"),
        ("", {}, ""),
        (None, {}, ""),
        ([], {}, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {}, "a\nb"),
        ("no such city", {"is_error": True}, "Error: no such city"),
        ("Error: no such city", {"is_error": True}, "Error: no such city"),
        ("fine", {"is_error": False}, "fine"),
        ([{"type": "text", "text": "a"}, PICTURE], {}, "a\n[image left out: the model reads text only]"),
        ([{"type": "tool_reference", "tool_name": "Bash"}], {}, "[the tool Bash is available]"),
        ([{"type": "of_tomorrow"}], {}, "[of_tomorrow left out: the model reads text only]"),
    ],
)
def test_what_a_tool_gave(content: Any, options: dict[str, Any], text: str) -> None:
    made = messages(*HELLO, call(), {"role": "user", "content": [result(content, **options)]})
    assert [message["role"] for message in made] == ["user", "assistant", "tool"]
    assert normalise_messages(without_images(made))[-1]["content"] == text


def test_documents_of_text_are_read() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}}
    found = {"type": "search_result", "title": "S", "source": "u", "content": [{"type": "text", "text": "y"}]}
    (made,) = messages({"role": "user", "content": [plain, blocks, found]})
    assert [part["text"] for part in made["content"]] == ["T\nabc", "x", "S\nu\ny"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="}},
        {"type": "container_upload", "file_id": "f"},
    ],
)
def test_media_from_a_person_is_refused(block: dict[str, Any]) -> None:
    error = refusal(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, block]}])
    assert "input is not supported" in error.text
    assert error.param == "messages.0.content.1"


def test_thinking_is_handed_on() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "from elsewhere"}
    secret = {"type": "redacted_thinking", "data": "xyz"}
    turn = {"role": "assistant", "content": [thought, secret, {"type": "text", "text": "yes"}]}
    made = messages(*HELLO, turn, {"role": "user", "content": "go on"})
    assert made[1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_thinking_that_was_not_shown_comes_back_by_its_signature() -> None:
    thought = {"type": "thinking", "thinking": "", "signature": signature_of_hidden("so näher 🤔")}
    made = messages(*HELLO, {"role": "assistant", "content": [thought, {"type": "text", "text": "yes"}]}, *HELLO)
    assert made[1]["reasoning_content"] == "so näher 🤔"


@pytest.mark.parametrize("signature", ["", "luce1h.", "luce1h.!!", "luce1h.AAAA", "EqQBCkYI", signature_of_shown("a")])
def test_other_signatures_say_nothing(signature: str) -> None:
    assert reasoning_of(signature, MAX_RESTORED_BYTES) == ""


def test_a_cut_off_signature_says_nothing() -> None:
    assert reasoning_of(signature_of_hidden("abc " * 4000)[:-8], MAX_RESTORED_BYTES) == ""


def test_signatures_cannot_blow_a_request_up() -> None:
    bomb = {"type": "thinking", "thinking": "", "signature": signature_of_hidden("a" * (MAX_RESTORED_BYTES // 2))}
    assert len(bomb["signature"]) < 16_000
    turn = {"role": "assistant", "content": [bomb, bomb, bomb, {"type": "text", "text": "x"}]}
    (_, made, _) = messages(*HELLO, turn, *HELLO)
    assert len(made["reasoning_content"]) == MAX_RESTORED_BYTES, "what is above the limit is left out"


@pytest.mark.parametrize(
    "identifier", ["call_ab12", "functions.weather:0", "ümläut", "", "luce_616263", "a b", "x" * 300]
)
def test_ids_of_calls_survive(identifier: str) -> None:
    known = tool_use_id(identifier)
    assert known.startswith("toolu_")
    assert all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in known)
    assert call_id_of(known) == identifier


@pytest.mark.parametrize("identifier", ["toolu_luce_zz", "toolu_luce_ff", "toolu_01AbC", "call_1"])
def test_ids_of_others_are_the_same_in_calls_and_results(identifier: str) -> None:
    turn = {"role": "user", "content": [result("ok", tool_use_id=identifier)]}
    made = messages(*HELLO, call(identifier), turn)
    assert made[1]["tool_calls"][0]["id"] == made[2]["tool_call_id"]
    assert made[2]["name"] == "weather"


def test_prefill_goes_on() -> None:
    made = prompt(messages=[*HELLO, {"role": "assistant", "content": "The answer is ("}])
    assert made.continues_last
    assert made.thinking is False
    assert not prompt(messages=[*HELLO, {"role": "assistant", "content": ""}]).continues_last


def test_behind_a_call_a_new_answer_begins() -> None:
    assert not prompt(messages=[*HELLO, call()]).continues_last


def test_tools() -> None:
    marked = {**WEATHER, "cache_control": {"type": "ephemeral"}, "strict": True, "input_examples": [{}]}
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    custom = {"type": "custom", "name": "other", "input_schema": {}}
    made = prompt(tools=[marked, search, custom])
    assert [tool["function"]["name"] for tool in made.tools] == ["weather", "other"]
    assert made.tools[0] == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a city",
            "parameters": WEATHER["input_schema"],
            "strict": True,
        },
    }


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "weather"}],
        [{"type": "custom", "name": "weather"}],
        [{"input_schema": {}}],
        [{"name": "", "input_schema": {}}],
        [WEATHER, WEATHER],
        [{"name": "weather", "input_schema": "object"}],
        [7],
        {"name": "weather"},
    ],
)
def test_tools_that_are_none(tools: Any) -> None:
    assert "tools" in refusal(tools=tools).text


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "any", "disable_parallel_tool_use": False}, "required", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "weather"}, "function:weather", None),
        ({"type": "none"}, "none", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: str, parallel: bool | None) -> None:
    made = prompt(tools=[WEATHER], tool_choice=choice)
    assert (made.tool_choice, made.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "weather"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}},
        {"tools": [WEATHER], "tool_choice": {"type": "tool"}},
        {"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "tool", "name": "w"}},
        {"tools": [WEATHER], "tool_choice": {"type": "sometimes"}},
        {"tools": [WEATHER], "tool_choice": "auto"},
    ],
)
def test_choices_among_nothing(options: dict[str, Any]) -> None:
    assert "tool_choice" in refusal(**options).text


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, (None, None)),
        ({"type": "enabled", "budget_tokens": 2048}, (True, 2048)),
        ({"type": "enabled", "budget_tokens": 0}, (True, 0)),
        ({"type": "adaptive", "display": "omitted"}, (True, None)),
        ({"type": "disabled"}, (False, None)),
    ],
)
def test_thinking(thinking: Any, expected: tuple[bool | None, int | None]) -> None:
    made = prompt(thinking=thinking)
    assert (made.thinking, made.thinking_budget) == expected


@pytest.mark.parametrize(
    "thinking", [{"type": "enabled"}, {"type": "enabled", "budget_tokens": -1}, {"type": "deep"}, "enabled"]
)
def test_thinking_that_is_none(thinking: Any) -> None:
    assert "thinking" in refusal(thinking=thinking).text


def test_whether_thinking_is_shown() -> None:
    def hides(**thinking: Any) -> bool:
        return hides_thinking(check({"messages": HELLO, "thinking": thinking}, CountTokensRequest))

    assert hides(type="adaptive", display="omitted")
    assert not hides(type="adaptive", display="summarized")
    assert not hides(type="adaptive")


def test_output() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = prompt(output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}})
    assert (made.effort, made.json_schema) == ("high", schema)
    assert prompt(output_format={"type": "json_schema", "schema": {}}).json_schema == {}
    made = prompt(grammar='root ::= "a"')
    assert (made.grammar, made.json_schema) == ('root ::= "a"', None)
    assert refusal(grammar="root ::= x", output_format={"type": "json_schema", "schema": {}}).param == "grammar"
    assert "output_config.format" in refusal(output_config={"format": {"type": "json_schema"}}).text


def test_sampling_and_limits() -> None:
    made = ask(temperature=0, top_p=0.5, top_k=3, max_tokens=0, stop_sequences=["a", "\n"], seed=0)
    assert (made.max_tokens, made.stops) == (0, ("a", "\n"))
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k, made.sampling.seed) == (0, 0.5, 3, 0)
    assert (ask(top_p=0).sampling.top_k, ask(top_p=0).sampling.top_p) == (1, None)
    assert ask().sampling.temperature is None


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": None},
        {"max_tokens": -1},
        {"max_tokens": "10"},
        {"max_tokens": True},
        {"max_tokens": 2**70},
        {"temperature": -0.1},
        {"temperature": 3},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 1.5},
        {"stop_sequences": [""]},
        {"stop_sequences": "a"},
        {"stop_sequences": ["x"] * 1000},
        {"stream": "perhaps"},
        {"stream": "true"},
        {"stream": 1},
        {"temperature": "0.5"},
        {"metadata": {"user_id": 7}},
        {"metadata": "me"},
        {"messages": None},
        {"messages": "hello"},
        {"messages": [None]},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "a"}}]},
        {"messages": [{"role": "user", "content": [{}]}]},
        {"messages": [{"role": "user", "content": [{"type": 7}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
        {"messages": [{"role": "user", "content": [{"type": "banana"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "content"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "search_result", "title": "t", "source": "s"}]}]},
        {"messages": [{"role": "assistant", "content": [result("x")]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
        {"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]},
        {"system": 7},
        {"system": [7]},
        {"system": [{"type": "text"}]},
        {"chat_template_kwargs": [1]},
    ],
)
def test_hostile_bodies_are_refused(options: dict[str, Any]) -> None:
    error = refusal(**options)
    assert error.param is not None
    assert error.param.split(".")[0] in {*options, "stop_sequences"}


@pytest.mark.parametrize(
    "extra",
    [
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"betas": ["a"], "service_tier": "auto", "container": None, "mcp_servers": [], "diagnostics": {"x": None}},
        {"cache_control": {"type": "ephemeral"}, "speed": "fast", "no_such_field": [{}]},
        {
            "tools": None,
            "tool_choice": None,
            "thinking": None,
            "metadata": None,
            "stop_sequences": None,
            "system": None,
        },
    ],
)
def test_unknown_fields_change_nothing(extra: dict[str, Any]) -> None:
    assert ask(**extra) == ask()


def test_blocks_of_servers_tools_are_left_out_of_answers() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    turn = {"role": "assistant", "content": [search, found, {"type": "text", "text": "found"}]}
    assert messages(*HELLO, turn, *HELLO)[1] == {"role": "assistant", "content": "found"}


def test_tools_that_change_in_the_middle() -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {**WEATHER, "name": "late"}}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}}
    told = {"role": "system", "content": [added, gone, {"type": "of_tomorrow"}]}
    made = prompt(messages=[*HELLO, told], tools=[WEATHER])
    assert [tool["function"]["name"] for tool in made.tools] == ["weather", "late"]
    assert [part["text"] for part in made.messages[1]["content"]] == [
        "The tool late is now available.",
        "The tool weather is no longer available.",
    ]


def test_a_system_message_may_be_for_one_turn() -> None:
    passing = {"role": "system", "content": "hurry", "clear_at": "next_user_message"}
    assert [message["role"] for message in messages(*HELLO, passing)] == ["user", "system"]
    assert [
        message["role"] for message in messages(*HELLO, passing, {"role": "assistant", "content": "a"}, *HELLO)
    ] == [
        "user",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    ("user_id", "session"),
    [
        ('{"device_id":"d","account_uuid":"","session_id":"s-1"}', "s-1"),
        ('{"device_id":"d"}', '{"device_id":"d"}'),
        ('{"session_id":7}', '{"session_id":7}'),
        ("{broken", "{broken"),
        ("user_1_session_2", "user_1_session_2"),
        ("", "header"),
        (None, "header"),
    ],
)
def test_session(user_id: str | None, session: str) -> None:
    raw = {"messages": HELLO, "max_tokens": 1, "metadata": {"user_id": user_id}}
    assert request_of_messages(check(raw, MessagesRequest), session="header").session == session


def test_a_long_session_is_shortened() -> None:
    assert 0 < len(ask(metadata={"user_id": "x" * 100_000}).session) <= 256


def test_counting_needs_no_max_tokens() -> None:
    made = request_of_count(check({"model": "m", "messages": HELLO, "tools": [WEATHER]}, CountTokensRequest))
    assert made.prompt == prompt(tools=[WEATHER])


def test_many_small_messages_take_linear_time() -> None:
    n_messages = 60_000
    for role in ("user", "assistant"):
        (made,) = messages(*[{"role": role, "content": "a"}] * n_messages)[-1:]
        content = made["content"]
        assert len(content) == n_messages


def claude_code(step: str) -> AnswerRequest:
    requests = json.loads(CLAUDE_CODE.read_text())["requests"]
    body = next(request["body"] for request in requests if request["step"] == step)
    return request_of_messages(check(body, MessagesRequest))


def test_claude_codes_requests() -> None:
    first, second, third = (claude_code(step) for step in ("first_turn", "second_turn", "second_turn_tool_result"))
    prompts = [made.prompt for made in (first, second, third) if isinstance(made.prompt, ChatPrompt)]
    assert [[message["role"] for message in made.messages] for made in prompts] == [
        ["system", "user", "system"],
        ["system", "user", "system", "assistant", "user"],
        ["system", "user", "system", "assistant", "user", "assistant", "tool"],
    ]
    assert len({len(made.tools) for made in prompts}) == 1
    assert prompts[0].effort == "high"
    assert prompts[0].thinking is True
    assert first.session == second.session == "00000000-0000-4000-8000-000000000001"
    assert claude_code("second_session").session != first.session
    assert first.max_tokens == 32_000
    assert prompts[2].messages[-1] == {"role": "tool", "tool_call_id": "01stub", "content": "luce", "name": "Bash"}
