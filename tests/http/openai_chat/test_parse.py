"""From a chat completion's body to its AnswerRequest: what each field means, and which fields are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.parse import ParsedRequest, read_chat
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.transport.body import check

HELLO = [{"role": "user", "content": "Hello"}]
READ = {
    "type": "function",
    "function": {"name": "read", "description": "Reads", "parameters": {"type": "object", "properties": {}}},
}
WRITE = {"type": "function", "function": {"name": "write"}}


class Letters:
    """A vocabulary of one token a letter."""

    n_vocab = 128

    def tokenize(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def detokenize(self, tokens: Sequence[int], *, unparse_special: bool = False) -> bytes:
        del unparse_special
        return bytes(tokens)


def read(headers: dict[str, str] | None = None, **fields: Any) -> ParsedRequest:
    body = check({"messages": HELLO, **fields}, ChatBody)
    return read_chat(body, Letters(), max_choices=4, headers=headers or {}, client="me")


def prompt_of(**fields: Any) -> ChatPrompt:
    prompt = read(**fields).answer_request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.kind is ErrorKind.INVALID
    assert caught.value.param
    return caught.value


def test_least_body() -> None:
    parsed = read()
    assert not parsed.streams
    assert not parsed.includes_usage
    assert parsed.answer_request.max_tokens is None
    assert parsed.answer_request.n == 1
    assert parsed.answer_request.n_logprobs is None
    assert parsed.answer_request.sampling.temperature is None
    assert parsed.answer_request.session == ""
    prompt = prompt_of()
    assert prompt.messages == HELLO
    assert prompt.tool_choice == "auto"
    assert prompt.thinking is None
    assert prompt.json_schema is None


def test_nulls_are_absent_and_unknown_fields_tolerated() -> None:
    nulls = {name: None for name in ChatBody.model_fields if name != "messages"}
    assert read(**nulls) == read()
    assert read(store=True, metadata={"a": "b"}, service_tier="auto", prediction={"x": 1}, made_up=[1]) == read()


def test_roles() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "U", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "R",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": {"b": 2}}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "T"}]},
        {"role": "tool", "tool_call_id": "c2", "content": None},
        {"role": "assistant", "content": "A", "refusal": None, "audio": None, "annotations": []},
        {"role": "user", "content": "V"},
    ]
    assert prompt_of(messages=messages).messages == [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": [{"type": "text", "text": "D"}]},
        {"role": "user", "content": "U", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "R",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": '{"b": 2}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "T"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"},
    ]


def test_legacy_functions() -> None:
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "function_call": {"name": "read", "arguments": "{}"}},
        {"role": "function", "name": "read", "content": "text"},
    ]
    parsed = read(messages=messages, functions=[READ["function"]], function_call={"name": "read"})
    assert parsed.is_legacy
    prompt = parsed.answer_request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tool_choice == "function:read"
    assert [tool["function"]["name"] for tool in prompt.tools] == ["read"]
    assert prompt.messages[1]["tool_calls"][0]["id"] == prompt.messages[2]["tool_call_id"]
    assert prompt.messages[2]["role"] == "tool"
    assert not prompt.parallel_tool_calls


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("string", "messages"),
        ([], "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": 123}], "messages[0].role"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "system", "content": 123}], "messages[0].content"),
        ([{"role": "system", "content": "test"}, {}], "messages[1].role"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type"),
        ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [3]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
    ],
)
def test_bad_messages(messages: Any, param: str) -> None:
    assert refused(messages=messages).param == param


def test_missing_messages() -> None:
    with pytest.raises(ApiError) as caught:
        check({"model": "m"}, ChatBody)
    assert caught.value.param == "messages"


def test_reasoning_among_the_parts_of_an_answer() -> None:
    parts = [{"type": "thinking", "thinking": "R", "signature": "s"}, {"type": "text", "text": "A"}]
    said = [*HELLO, {"role": "assistant", "content": parts}, *HELLO]
    assert prompt_of(messages=said).messages[1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "A"}],
        "reasoning_content": "R",
    }
    own = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}], "reasoning_content": "mine"}
    assert prompt_of(messages=[*HELLO, own, *HELLO]).messages[1]["reasoning_content"] == "mine"


@pytest.mark.parametrize(
    ("part", "word"),
    [
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "file input"),
        ({"type": "hologram"}, "hologram"),
    ],
)
def test_what_is_not_text_is_refused(part: dict[str, Any], word: str) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, part]}])
    assert error.code == "unsupported_content"
    assert error.param == "messages[0].content[1]"
    assert word in error.text


def test_audio_answers_are_refused() -> None:
    assert read(modalities=["text"]) == read()
    assert refused(modalities=["text", "audio"]).code == "unsupported_content"


def test_tools_that_are_no_functions_are_left_out() -> None:
    tools = [{"type": "web_search"}, READ, {"type": "custom", "custom": {"name": "free"}}, {"type": "namespace"}]
    prompt = prompt_of(tools=tools)
    assert prompt.tools == [READ]
    assert prompt_of(tools=[]).tools == []


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("any", "required"),
        ({"type": "function", "function": {"name": "write"}}, "function:write"),
        ({"type": "function", "name": "write"}, "function:write"),
    ],
)
def test_tool_choice(choice: Any, expected: str) -> None:
    assert prompt_of(tools=[READ, WRITE], tool_choice=choice).tool_choice == expected


def test_allowed_tools() -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "write"}}]}
    prompt = prompt_of(tools=[READ, WRITE], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert [tool["function"]["name"] for tool in prompt.tools] == ["write"]
    assert prompt.tool_choice == "required"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "n" * 300}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "n", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [READ], "tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [READ], "tool_choice": 5}, "tool_choice"),
        ({"tools": [READ], "tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice"),
        ({"tools": [READ], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [READ], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [READ], "tool_choice": {"type": "allowed_tools", "allowed_tools": 1}}, "tool_choice"),
        ({"functions": 1}, "functions"),
    ],
)
def test_bad_tools(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert prompt_of(response_format={"type": "text"}).json_schema is None
    assert prompt_of(response_format={"type": "json_object"}).json_schema == {}
    assert prompt_of(response_format={"type": "json_object", "schema": {"const": "42"}}).json_schema == {"const": "42"}
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert prompt_of(response_format=wrapped).json_schema == schema
    assert prompt_of(response_format={"type": "json_schema", "json_schema": {"name": "x"}}).json_schema == {}
    assert prompt_of(json_schema=schema).json_schema == schema
    assert prompt_of(grammar='root ::= "a"').grammar == 'root ::= "a"'
    for choice in ("none", "auto", "required"):
        assert prompt_of(grammar='root ::= "a"', tools=[READ], tool_choice=choice).grammar == 'root ::= "a"'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": 123}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": {}, "grammar": "root ::= x"}, "grammar"),
    ],
)
def test_bad_formats(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_sampling() -> None:
    sampling = read(
        temperature=0,
        top_p=0,
        top_k=-1,
        min_p=0,
        repetition_penalty=1.1,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=7,
    ).answer_request.sampling
    assert sampling.temperature == 0
    assert sampling.top_p is not None
    assert 0 < sampling.top_p < 1e-3  # the likeliest only
    assert sampling.top_k == 0
    assert sampling.min_p == 0
    assert sampling.repeat_penalty == 1.1
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-2, 2)
    assert sampling.seed == 7
    assert read(seed=-1).answer_request.sampling.seed is None
    assert read(seed=0).answer_request.sampling.seed == 0
    assert read(seed=-2).answer_request.sampling.seed == 2**64 - 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"temperature": -0.1}, "decimal_below_min_value"),
        ({"temperature": 2.1}, "decimal_above_max_value"),
        ({"top_p": 1.1}, "decimal_above_max_value"),
        ({"top_k": -2}, "integer_below_min_value"),
        ({"min_p": -1}, "decimal_below_min_value"),
        ({"repeat_penalty": 0}, "invalid_value"),
        ({"repetition_penalty": -1}, "invalid_value"),
        ({"presence_penalty": 3}, "decimal_above_max_value"),
        ({"frequency_penalty": -3}, "decimal_below_min_value"),
        ({"n": 0}, "integer_below_min_value"),
        ({"n": 5}, "integer_above_max_value"),
        ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value"),
        ({"top_logprobs": 2}, "invalid_value"),
        ({"max_tokens": -2}, "integer_below_min_value"),
        ({"max_completion_tokens": -2}, "integer_below_min_value"),
        ({"seed": 2**64}, "integer_above_max_value"),
        ({"thinking_budget_tokens": -2}, "integer_below_min_value"),
        ({"stop": 5}, "invalid_type"),
        ({"stop": ["a", 5]}, "invalid_type"),
        ({"stop": ["a"] * 65}, "invalid_value"),
        ({"stop": "a" * 5000}, "invalid_value"),
        ({"logit_bias": 5}, "invalid_type"),
        ({"logit_bias": {"1": 101}}, "decimal_above_max_value"),
        ({"logit_bias": {"1": "x"}}, "invalid_type"),
        ({"logit_bias": {"1": True}}, "invalid_type"),
        ({"logit_bias": [[1]]}, "invalid_type"),
        ({"logit_bias": [[None, 1]]}, "invalid_type"),
        ({"reasoning_effort": "No Such Word!"}, "invalid_value"),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, "invalid_type"),
        ({"thinking": 3}, "invalid_type"),
        ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "invalid_type"),
    ],
)
def test_ranges(fields: dict[str, Any], code: str) -> None:
    error = refused(**fields)
    assert error.code == code
    assert any(name in str(error.param) for name in (*fields, "reasoning_effort"))


@pytest.mark.parametrize("field", ["temperature", "n", "max_tokens", "seed", "top_logprobs", "top_p", "top_k"])
@pytest.mark.parametrize("value", ["1", True, [], {}])
def test_numbers_are_numbers(field: str, value: Any) -> None:
    assert refused(**{field: value}).param == field


def test_limits() -> None:
    assert read(max_tokens=5).answer_request.max_tokens == 5
    assert read(max_tokens=0).answer_request.max_tokens == 0
    assert read(max_tokens=-1).answer_request.max_tokens is None
    assert read(max_tokens=5, max_completion_tokens=7).answer_request.max_tokens == 7
    assert read(max_completion_tokens=-1, max_tokens=5).answer_request.max_tokens is None
    assert read(n_predict=3).answer_request.max_tokens == 3
    assert read(max_tokens=2**40).answer_request.max_tokens == 2**40
    assert read(max_tokens=5.0).answer_request.max_tokens == 5


def test_logprobs() -> None:
    assert read(logprobs=True).answer_request.n_logprobs == 0
    assert read(logprobs=True, top_logprobs=0).answer_request.n_logprobs == 0
    assert read(logprobs=True, top_logprobs=20).answer_request.n_logprobs == 20
    assert read(logprobs=False, top_logprobs=0).answer_request.n_logprobs is None


def test_stops() -> None:
    assert read(stop="a").answer_request.stops == ("a",)
    assert read(stop=["a", "", "b"]).answer_request.stops == ("a", "b")
    assert read(stop=[]).answer_request.stops == ()


def test_biases() -> None:
    assert read(logit_bias={"5": -100, " 7 ": 1.5}).answer_request.sampling.logit_bias == ((5, -100.0), (7, 1.5))
    assert read(logit_bias=[[5, 1], ["ab", -2], [9, False]]).answer_request.sampling.logit_bias == (
        (5, 1.0),
        (97, -2.0),
        (98, -2.0),
        (9, -math.inf),
    )
    assert read(logit_bias={"50256": -100, "99999999999999": 1}).answer_request.sampling.logit_bias == tuple(
        (ord(digit), 1.0) for digit in "9"
    )  # an id of another model is left out; a number too long for an id is a text
    assert read(logit_bias={}).answer_request.sampling.logit_bias == ()


@pytest.mark.parametrize(
    ("fields", "thinking", "budget", "effort"),
    [
        ({"reasoning_effort": "none"}, False, None, None),
        ({"reasoning_effort": "high"}, None, None, "high"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False, None, None),
        ({"enable_thinking": True}, True, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, True, 9, None),
        ({"thinking": {"type": "disabled"}}, False, None, None),
        ({"thinking": True}, True, None, None),
        ({"reasoning": {"effort": "low", "max_tokens": 3}}, None, 3, "low"),
        ({"reasoning": {"enabled": False}}, False, None, None),
        ({"thinking_budget_tokens": 0}, None, 0, None),
        ({"reasoning_budget": 12}, None, 12, None),
        ({"reasoning_budget_tokens": -1}, None, None, None),
    ],
)
def test_thinking(fields: dict[str, Any], thinking: bool | None, budget: int | None, effort: str | None) -> None:
    prompt = prompt_of(**fields)
    assert (prompt.thinking, prompt.thinking_budget, prompt.effort) == (thinking, budget, effort)


def test_template_arguments() -> None:
    prompt = prompt_of(chat_template_kwargs={"enable_thinking": True, "preserve": [1]})
    assert prompt.template_arguments == {"preserve": [1]}
    assert prompt.thinking is True


def test_going_on_from_the_last_message() -> None:
    said = [*HELLO, {"role": "assistant", "content": "I am"}]
    assert prompt_of(messages=said).continues_last
    assert prompt_of(messages=said, continue_final_message=True, add_generation_prompt=False).continues_last
    assert not prompt_of(messages=said, continue_final_message=False).continues_last
    assert not prompt_of(messages=said, add_generation_prompt=True).continues_last
    assert not prompt_of().continues_last
    assert refused(messages=said, continue_final_message=True, add_generation_prompt=True).param
    assert refused(continue_final_message=True).param == "continue_final_message"
    assert prompt_of().opens_answer
    assert not prompt_of(add_generation_prompt=False).opens_answer
    assert prompt_of(messages=said, add_generation_prompt=False).opens_answer  # it is in the message gone on from
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    assert not prompt_of(messages=[*said, {"role": "assistant", "tool_calls": [call]}]).continues_last
    assert prompt_of(messages=[*said, {"role": "assistant", "content": " Ada."}]).continues_last


@pytest.mark.parametrize(
    ("fields", "headers", "session"),
    [
        ({"prompt_cache_key": "k", "user": "u"}, {"X-Session-Id": "h"}, "k"),
        ({"session_id": "s"}, {}, "s"),
        ({"user": "u"}, {"X-Session-Id": "h"}, "h"),
        ({"metadata": {"user_id": "m"}, "user": "u"}, {}, "m"),
        ({"user": "u"}, {}, "u"),
        ({"user": 5, "prompt_cache_key": ["x"]}, {}, ""),
    ],
)
def test_session(fields: dict[str, Any], headers: dict[str, str], session: str) -> None:
    assert read(headers, **fields).answer_request.session == session


def test_streaming() -> None:
    assert read(stream=True).streams
    assert read(stream=True, stream_options={"include_usage": True}).includes_usage
    assert not read(stream=True, stream_options={"include_obfuscation": False}).includes_usage
    assert refused(stream="yes").param == "stream"
