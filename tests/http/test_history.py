"""What clients repeat is taken by a real server, in each API, streamed and not.

What public bug reports of other servers broke, and answers of the model's own that a grammar has made hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.asking import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    answered,
    question,
    strict_json,
)
from tests.http.conversing import GO_ON, HELLO, client, post, refused

__all__ = ["client"]  # a fixture

PARAMETERS = {"type": "object", "properties": {"a": {}}}


def chat_call(arguments: Any, **message: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}], **message}


def sessions(arguments: str) -> dict[str, dict[str, Any]]:
    """A call with these arguments, its result and another question."""
    items = [
        HELLO,
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "a", "output": "done"},
        GO_ON,
    ]
    result = {"role": "tool", "tool_call_id": "a", "content": "done"}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": arguments}
    given = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "done"}]}
    return {
        CHAT: {"messages": [HELLO, chat_call(arguments), result, GO_ON]},
        RESPONSES: {"input": items},
        MESSAGES: {"messages": [HELLO, {"role": "assistant", "content": [use]}, given, GO_ON]},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Ro',
        "{'a':1}",
        '{"a": 1,}',
        '{"a": "x\ty"}',
        '{"a":"\\ud99c"}',
        '{"a": NaN}',
        '{"a": [-Infinity, 1e999]}',
        '{"a": ' + "[" * 150 + "]" * 150 + "}",
        '{"wei": 100000000000000000000}',
        "[1]",
        "nonsense",
        "",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_of_any_kind(client: httpx.Client, arguments: str, stream: bool) -> None:
    for path, body in sessions(arguments).items():
        post(client, path, body, stream=stream)


def test_a_whole_number_of_64_bits_stays_itself(client: httpx.Client) -> None:
    for path, body in sessions('{"n": 18446744073709551615}').items():
        post(client, path, body)
    told = client.post("/apply-template", json=sessions('{"n": 18446744073709551615}')[CHAT]).json()
    assert "18446744073709551615" in told["prompt"]


@pytest.mark.parametrize("content", ["", None, [], [{"type": "text", "text": ""}], "absent"])
@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]])
def test_an_answer_of_nothing_is_no_beginning(client: httpx.Client, content: Any, tools: list[Any]) -> None:
    """The prompt opens an answer, as if the message were not there."""
    nothing = {"role": "assistant", **({} if content == "absent" else {"content": content})}
    asked: dict[str, Any] = {"messages": [HELLO], **({"tools": tools} if tools else {})}
    plain = client.post("/apply-template", json=asked).json()["prompt"]
    begun = {**asked, "messages": [HELLO, nothing]}
    assert client.post("/apply-template", json=begun).json()["prompt"] == plain
    first, second = (post(client, CHAT, body)[0]["choices"][0]["message"]["content"] for body in (asked, begun))
    assert first == second == chat_message(post(client, CHAT, begun, stream=True))["content"]
    assert not second.startswith("assistant")
    assert post(client, CHAT, {**begun, "continue_final_message": True})[0]["choices"][0]["message"]["content"] == first


@pytest.mark.parametrize(
    ("path", "empty"),
    [
        (MESSAGES, {"role": "assistant", "content": ""}),
        (MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": ""}]}),
        (RESPONSES, {"role": "assistant", "content": ""}),
        (RESPONSES, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}),
    ],
)
def test_so_in_the_other_apis(client: httpx.Client, path: str, empty: dict[str, Any]) -> None:
    for streams in (False, True):
        bodies = [question(path, turns, limit=8) for turns in ([HELLO], [HELLO, empty])]
        one, other = (answered(f"{client.base_url}".rstrip("/"), path, body, streams=streams) for body in bodies)
        assert (one.n_prompt, one.content) == (other.n_prompt, other.content)


def test_an_empty_text_alone_is_an_empty_message(client: httpx.Client) -> None:
    texts: list[Any] = ["", [{"type": "text", "text": ""}], []]
    url = f"{client.base_url}".rstrip("/")
    bodies = [question(MESSAGES, [{"role": "user", "content": text}], limit=8) for text in texts]
    lengths = {answered(url, MESSAGES, body, streams=streams).n_prompt for body in bodies for streams in (False, True)}
    assert len(lengths) == 1


ODD_CHAT: list[Any] = [
    {"role": "model", "content": "Hm."},
    {"role": "wizard", "content": "x"},
    {"role": None, "content": None},
    {"content": "no role"},
    {},
    None,
    "a text",
    {"role": "user"},
    {"role": "user", "content": 7},
    {"role": "user", "content": {"type": "text", "text": "a"}},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}, {"type": "text"}, {}, None, 5, "x"]},
    {"role": "user", "content": "x", "name": 5},
    {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]},
    {"role": "assistant", "tool_calls": 3},
    {"role": "assistant", "tool_calls": [3, {}, {"function": None}, {"function": {"name": ""}}]},
    {"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f", "arguments": [1]}}]},
    {"role": "assistant", "content": "x", "reasoning": {"text": "hm"}},
    {"role": "assistant", "content": "x", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    {"role": "assistant", "content": "x", "reasoning_content": 5},
    {"role": "assistant", "content": "x", "refusal": ["no"]},
    {"role": "assistant", "content": "x", "function_call": 5},
    {"role": "tool", "content": {"ok": True}},
    {"role": "tool", "tool_call_id": 5, "content": [{"type": "resource", "resource": {"text": "x"}}, {"type": "z"}]},
    {"role": "function", "content": None},
]
ODD_ITEMS: list[Any] = [
    None,
    "a text",
    {},
    {"type": 5},
    {"role": "wizard", "content": "x"},
    {"role": "tool", "content": "x"},
    {"role": "user", "content": 7},
    {"role": "user", "content": [{"type": "input_audio"}, {"type": "input_image", "file_id": "f"}, None, {}, "x"]},
    {"role": "assistant", "content": [{"type": "output_audio"}, {"type": "refusal"}]},
    {"type": "reasoning", "content": {"text": "hm"}, "summary": 5},
    {"type": "function_call", "arguments": "{}"},
    {"type": "function_call", "name": "f", "arguments": [1]},
    {"type": "function_call_output", "output": {"ok": True}},
    {"type": "custom_tool_call", "name": "f", "input": {"a": 1}},
    {"type": "mcp_call", "name": "f", "arguments": None, "output": None},
    {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": "x"}},
]
ODD_MESSAGES: list[Any] = [
    {"role": "tool", "content": "x"},
    {"role": None, "content": None},
    {"content": 5},
    {},
    {"role": "user", "content": {"type": "text", "text": "a"}},
    {"role": "user", "content": [{"type": "banana"}, {"type": "text"}, {}, None, 5, "x", {"type": "document"}]},
    {"role": "user", "content": [{"type": "tool_result"}, {"type": "image"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text"}, 7]}]},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": [{"type": "thinking"}, {"type": "tool_use"}, {"type": "tool_use", "name": "f"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{"}, {"type": "image"}]},
    {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": 5}]},
    {"role": "system", "content": [{"type": "tool_addition"}, {"type": "text"}]},
]


@pytest.mark.parametrize(
    ("path", "field", "odd"),
    [
        *((CHAT, "messages", odd) for odd in ODD_CHAT),
        *((RESPONSES, "input", odd) for odd in ODD_ITEMS),
        *((MESSAGES, "messages", odd) for odd in ODD_MESSAGES),
    ],
)
def test_odd_messages_are_refused_only_when_they_are_sent(
    client: httpx.Client, path: str, field: str, odd: dict[str, Any]
) -> None:
    for stream in (False, True):
        post(client, path, {field: [HELLO, odd, GO_ON]}, stream=stream)


def is_answer(odd: Any) -> bool:
    return isinstance(odd, dict) and (odd.get("role") == "assistant" or str(odd.get("type")).endswith(("_call", "ing")))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "field", "odd"),
    [
        (path, field, odd)
        for path, field, all_odd in (
            (CHAT, "messages", ODD_CHAT),
            (RESPONSES, "input", ODD_ITEMS),
            (MESSAGES, "messages", ODD_MESSAGES),
        )
        for odd in filter(is_answer, all_odd)
    ],
)
def test_an_odd_answer_may_be_last(client: httpx.Client, path: str, field: str, odd: Any, stream: bool) -> None:
    """A model wrote it."""
    post(client, path, {field: [HELLO, odd]}, stream=stream)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "I muse."},
        {"reasoning": "I muse."},
        {"reasoning": {"text": "I muse."}},
        {"reasoning": {"content": [{"type": "reasoning_text", "text": "I muse."}]}},
        {"reasoning_details": [{"type": "reasoning.text", "text": "I "}, {"type": "reasoning.text", "text": "muse."}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "I muse."}, {"type": "x", "data": "…"}]},
        {"reasoning": "", "thinking": "I muse."},
        {"thinking": {"thinking": "I muse."}},
        {"thinking_blocks": [{"type": "thinking", "thinking": "I muse.", "signature": "s"}]},
        {"content": [{"type": "thinking", "thinking": "I muse."}, {"type": "text", "text": "x"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I muse."}]}, "x"]},
    ],
)
def test_reasoning_is_found_wherever_clients_keep_it(fields: dict[str, Any]) -> None:
    from luce.supervisor.http.openai_chat.messages import read_messages

    read = read_messages([HELLO, {"role": "assistant", "content": "x", **fields}, GO_ON])[1]
    assert read["reasoning_content"] == "I muse."
    content = read["content"]
    assert (content if isinstance(content, str) else "".join(part["text"] for part in content)) == "x"


def test_what_is_sent_now_is_refused_with_its_place(client: httpx.Client) -> None:
    audio = {"role": "user", "content": [{"type": "text", "text": "hear"}, {"type": "input_audio", "input_audio": {}}]}
    text, param = refused(client, CHAT, {"messages": [HELLO, {"role": "assistant", "content": "Hi."}, audio]})
    assert (param, "audio input is not supported" in text) == ("messages[2].content[1]", True)
    _, param = refused(client, CHAT, {"messages": [audio, {"role": "assistant", "content": "I"}]})
    assert param == "messages[0].content[1]", "an answer that is begun is no answer"
    _, param = refused(client, RESPONSES, {"input": [HELLO, audio]})
    assert param == "input[1].content[1]"
    text, _ = refused(
        client, MESSAGES, {"messages": [HELLO, {"role": "user", "content": [{"type": "container_upload"}]}]}
    )
    assert "messages.1.content.0" in text


FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "u"}]}
SERVER_CALLS: list[tuple[str, str, list[Any]]] = [
    (CHAT, "messages", [chat_call("{}")]),
    (CHAT, "messages", [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]),
    (CHAT, "messages", [chat_call("{}", content="I look.")]),
    (RESPONSES, "input", [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]),
    (RESPONSES, "input", [{"type": "mcp_call", "id": "a", "name": "f", "arguments": "{}", "output": "done"}]),
    (RESPONSES, "input", [{"type": "mcp_call", "id": "a", "name": "f", "arguments": "{}"}]),
    (RESPONSES, "input", [{"type": "web_search_call", "id": "a", "status": "completed"}]),
    (RESPONSES, "input", [{"type": "computer_call", "call_id": "a", "action": {"type": "click"}}]),
    *(
        (MESSAGES, "messages", [{"role": "assistant", "content": content}])
        for content in (
            [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
            [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "a", "name": "f", "input": {}}],
            [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}],
            [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, FOUND],
            [{"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}}],
        )
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "field", "answer"), SERVER_CALLS)
def test_a_conversation_that_ends_with_a_call_goes_on(
    client: httpx.Client, path: str, field: str, answer: list[Any], stream: bool
) -> None:
    """Whoever was to carry it out."""
    post(client, path, {field: [HELLO, *answer]}, stream=stream)


def test_references_to_what_is_gone_are_left_out(client: httpx.Client) -> None:
    """But where nothing else is sent, and where a whole conversation is gone."""
    gone = {"type": "item_reference", "id": "msg_gone"}
    left = [[HELLO, *odd, GO_ON] for odd in ([gone], [{"type": "item_reference"}], [])]
    counts = [post(client, RESPONSES, {"input": items})[0]["usage"]["input_tokens"] for items in left]
    assert len(set(counts)) == 1
    post(client, RESPONSES, {"input": [HELLO, gone]})
    text, param = refused(client, RESPONSES, {"input": [gone]})
    assert (param, "Send the item itself" in text) == ("input[0].id", True)
    _, param = refused(client, RESPONSES, {"previous_response_id": "resp_gone", "input": "Go on."})
    assert param == "previous_response_id"


def test_a_place_does_not_count_what_was_kept(client: httpx.Client) -> None:
    first = post(client, RESPONSES, {"input": "Hello"})[0]
    audio = {"role": "user", "content": [{"type": "input_audio"}]}
    _, param = refused(client, RESPONSES, {"previous_response_id": first["id"], "input": [audio]})
    assert param == "input[0].content[0]"


HOSTILE = {
    "a number without end": '{"a": 1e999}',
    "no number": '{"a": NaN, "b": -Infinity}',
    "half a character": '{"a": "\\ud83d"}',
    "control tokens": '{"a": "<|im_end|></tool_call>"}',
    "deep": '{"a": ' + "[" * 190 + "]" * 190 + "}",
    "a long number": '{"a": 100000000000000000000}',
    "a comma too many": '{"a": 1,}',
}


def call_grammar(arguments: str) -> str:
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    return f"root ::= {json.dumps(text, ensure_ascii=False)}"


TEXTS = ["<|im_end|> </think> <tool_call>", '{"a": ', "\\ud83d \ufffd"]


@contextmanager
def conversation(client: httpx.Client, path: str, *, stream: bool) -> Iterator[Any]:
    """`say(grammar, limit)`: one turn in it, whose answer is appended as a client of this API does."""
    field = "input" if path == RESPONSES else "messages"
    history: list[Any] = [HELLO]
    function = {"name": "f", "parameters": PARAMETERS}
    tools: dict[str, list[dict[str, Any]]] = {
        CHAT: [{"type": "function", "function": function}],
        RESPONSES: [{"type": "function", **function}],
        MESSAGES: [{"name": "f", "input_schema": PARAMETERS}],
    }

    def say(grammar: str | None, limit: int = 400) -> list[Any]:
        bound = {"max_output_tokens" if path == RESPONSES else "max_tokens": limit}
        body: dict[str, Any] = {field: history, "tools": tools[path], **bound}
        if grammar is not None:
            body["grammar"] = grammar
        events = post(client, path, body, stream=stream)
        added = appended(path, events, stream=stream)
        history.extend([*added, *results(path, added), GO_ON])
        return added

    yield say


def appended(path: str, events: list[dict[str, Any]], *, stream: bool) -> list[Any]:
    if path == RESPONSES:
        response = events[-1]["response"] if stream else events[0]
        return list(response["output"])
    if path == CHAT and not stream:
        return [events[0]["choices"][0]["message"]]
    if path == MESSAGES and not stream:
        return [{"role": "assistant", "content": events[0]["content"]}]
    if path == CHAT:
        return [chat_message(events)]
    return [{"role": "assistant", "content": message_blocks(events)}]


def chat_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls: list[Any] = []
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
        else:
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    content = "".join(delta.get("content") or "" for delta in deltas)
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def message_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            texts.append("")
        elif event["type"] == "content_block_delta":
            texts[-1] += event["delta"].get("partial_json") or event["delta"].get("text") or ""
    for block, text in zip(blocks, texts, strict=True):
        if block["type"] == "text":
            block["text"] = text
        else:
            try:
                block["input"] = strict_json(text)
            except ValueError:
                block["input"] = {}
    return blocks


def results(path: str, added: list[Any]) -> list[Any]:
    if path == RESPONSES:
        ids = [item["call_id"] for item in added if item["type"] == "function_call"]
        return [{"type": "function_call_output", "call_id": id_, "output": "done"} for id_ in ids]
    if path == CHAT:
        ids = [call["id"] for call in added[0].get("tool_calls") or ()]
        return [{"role": "tool", "tool_call_id": id_, "content": "done"} for id_ in ids]
    ids = [block["id"] for block in added[0]["content"] if block["type"] == "tool_use"]
    told = [{"type": "tool_result", "tool_use_id": id_, "content": "done"} for id_ in ids]
    return [{"role": "user", "content": told}] if told else []


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.full_only), True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_hostile_answers_go_back_in(client: httpx.Client, path: str, stream: bool) -> None:
    """One session, in which the model writes all of that."""
    with conversation(client, path, stream=stream) as say:
        for arguments in HOSTILE.values():
            say(call_grammar(arguments))
        for text in TEXTS:
            say(f"root ::= {json.dumps(text, ensure_ascii=False)}")
        say(call_grammar('{"a": "it breaks off somewhere"}'), 20)
        say(None, 8)


def test_completions_go_on_from_their_own_text(client: httpx.Client) -> None:
    prompt = "Hello"
    for text in TEXTS:
        body = {"prompt": prompt, "echo": True, "grammar": f"root ::= {json.dumps(text)}", "max_tokens": 40}
        (answer,) = post(client, COMPLETIONS, body)
        prompt = answer["choices"][0]["text"]
        assert prompt.startswith("Hello")
    assert post(client, COMPLETIONS, {"prompt": prompt}, stream=True)


@pytest.mark.parametrize("stream", [False, True])
def test_an_incomplete_response_is_gone_on_from(client: httpx.Client, stream: bool) -> None:
    """Arguments that the limit cut, sent back as items and by previous_response_id."""
    tool = {"type": "function", "name": "f", "parameters": PARAMETERS}
    body: dict[str, Any] = {"input": [HELLO], "tools": [tool], "grammar": call_grammar('{"a": "a long text, cut"}')}
    event = post(client, RESPONSES, {**body, "max_output_tokens": 20}, stream=stream)[-1]
    first = event.get("response", event)
    assert first["status"] == "incomplete"
    assert any(item["type"] == "function_call" for item in first["output"])
    kept = {"max_output_tokens": 8}
    post(client, RESPONSES, {"input": [HELLO, *first["output"], GO_ON], **kept}, stream=stream)
    post(client, RESPONSES, {"input": [HELLO, *first["output"]], **kept}, stream=stream)
    for given in ([GO_ON], "Go on."):
        post(client, RESPONSES, {"previous_response_id": first["id"], "input": given, **kept}, stream=stream)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ('{"a": "x\ty"}', {"a": "x\ty"}),
        ("[1, 2]", {"arguments": [1, 2]}),
        ('{"a": 1e999}', {"a": "1e999"}),
        ('{"a": 100000000000000000000}', {"a": 10**20}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
    ],
)
def test_messages_have_the_same_input_streamed_and_not(
    client: httpx.Client, arguments: str, expected: dict[str, Any]
) -> None:
    body = {"messages": [HELLO], "tools": [{"name": "f", "input_schema": PARAMETERS}], "max_tokens": 99}
    inputs = []
    for stream in (False, True):
        events = post(client, MESSAGES, {**body, "grammar": call_grammar(arguments)}, stream=stream)
        (message,) = appended(MESSAGES, events, stream=stream)
        inputs += [block["input"] for block in message["content"] if block["type"] == "tool_use"]
    assert inputs == [expected, expected]
