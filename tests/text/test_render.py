"""Rendering chats: ids as llama.cpp tokenises the prompt, marks, switches, constraints, and bad requests."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.text import (
    BadRequestError,
    ClosedError,
    SchemaError,
    TemplateError,
    TextModel,
    schema_to_grammar,
)
from luce.supervisor.text.image_markers import image_marker, images_in

from .conftest import OpenWith
from .text_models import CHATML, tool, write_sentencepiece_model

READ = tool("read_file", path="string", lines="integer")
HELLO = [{"role": "user", "content": "Hello"}]
REFUSES_TOOLS = {"google-gemma-2-2b-it", "google-translategemma-4b-it", "llama-cpp-rwkv-world"}


def test_every_template_of_llama_cpp(open_with: OpenWith, llama_templates_dir: Path) -> None:
    """No special text in the messages: the ids are llama_tokenize's of the whole prompt."""
    names = sorted(path.stem for path in llama_templates_dir.glob("*.jinja"))
    assert len(names) > 60
    for name in names:
        model = open_with(name)
        if name == "google-translategemma-4b-it":
            continue  # takes language codes instead of plain messages
        chat = model.render(HELLO)
        assert list(chat.tokens) == model.tokenize(chat.prompt, add_special=True, parse_special=True), name
        assert "Hello" in chat.prompt
        if name not in REFUSES_TOOLS:
            tools = model.render(HELLO, tools=[READ])
            assert list(tools.tokens) == model.tokenize(tools.prompt, add_special=True, parse_special=True), name


def test_random_messages_are_tokenised_as_llama_cpp_does(model: TextModel, full: bool) -> None:
    rng = random.Random(99)
    alphabet = [
        "<",
        "|",
        "im",
        "_end",
        ">",
        "\n",
        "  ",
        "a",
        "é",
        "日",
        "<b>",
        "{",
        "</",
        "think",
        "\t",
        "#",
        "1",
        "'s",
    ]
    for _ in range(3000 if full else 80):
        parts = [rng.choice(alphabet) for _ in range(rng.randrange(0, 30))]
        chat = model.render([{"role": "user", "content": "".join(parts)}])
        if not any(begin < end for begin, end in chat.text_spans):
            assert list(chat.tokens) == model.tokenize(chat.prompt, add_special=True, parse_special=True), chat.prompt


@pytest.mark.parametrize(("name", "add_bos"), [("plain", True), ("plain", False), ("phi-3-mini", True)])
def test_strip_attributes_and_space_prefixes(tmp_path: Path, name: str, add_bos: bool) -> None:
    """The cut at special tokens is our own; libllama's is the measure (phi-3's special tokens eat spaces)."""
    path = tmp_path / "spm.gguf"
    write_sentencepiece_model(path, name=name, add_bos=add_bos)
    rng = random.Random(4)
    alphabet = ["hello", " world", "    ", " ", "\n", "<b>", "a", "b", ">", "é"]
    with TextModel(path, chat_template=CHATML) as model:
        for _ in range(300):
            text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(0, 12)))
            chat = model.render([{"role": "user", "content": text}, {"role": "assistant", "content": "a"}])
            assert list(chat.tokens) == model.tokenize(chat.prompt, add_special=True, parse_special=True)
            assert chat.tokens.count(1) == int(add_bos)


def test_marks_are_the_messages(model: TextModel) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One <|im_start|>user"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    chat = model.render(messages)
    assert [mark.role for mark in chat.marks] == ["system", "user", "assistant", "user", "assistant"]
    start = model.tokenize("<|im_start|>", parse_special=True)[0]
    assert [mark.token for mark in chat.marks] == [at for at, token in enumerate(chat.tokens) if token == start]
    for mark in chat.marks:
        assert chat.prompt.encode()[mark.byte :].startswith(b"<|im_start|>" + mark.role.encode())


def test_marks_of_letters_have_their_place(open_with: OpenWith, llama_templates_dir: Path) -> None:
    """To this vocabulary most templates' marks are letters, also where a model has written them itself."""
    n_marks = 0
    for path in sorted(llama_templates_dir.glob("*.jinja")):
        model = open_with(path.stem)
        said = "<|start|>assistant<|channel|>final [/INST] <|turn>model\nUser: x"
        messages = [*HELLO, {"role": "assistant", "content": said}, *HELLO]
        try:
            chat = model.render(messages)
        except TemplateError:
            continue
        for mark in chat.marks:
            begin = b"".join(map(model.prompt_piece, chat.tokens[: mark.token]))
            assert begin == chat.prompt.encode()[: mark.byte], path.stem
            n_marks += 1
    assert n_marks > 100


def test_a_longer_conversation_keeps_the_ids_of_its_beginning(model: TextModel) -> None:
    """What prefix caching lives on."""
    first = model.render(HELLO)
    second = model.render([*HELLO, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Bye"}])
    assert second.tokens[: len(first.tokens)] == first.tokens


def random_turn(rng: random.Random) -> list[dict[str, Any]]:
    words = ["<|im_end|>", "</think>", "<", "|", "hello", " world", "    ", "\n", "é", "日", "<b>", ">", "'s", "12"]
    texts = ["".join(rng.choice(words) for _ in range(rng.randrange(40))) for _ in range(2)]
    return [{"role": "user", "content": texts[0]}, {"role": "assistant", "content": texts[1]}]


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_what_was_tokenised_before_changes_no_ids(tiny_model: Path, tmp_path: Path, kind: str) -> None:
    """A conversation grows, is edited and cut; each prompt is compared with one of a model that knows nothing yet."""
    path, template = tiny_model, None
    if kind == "sentencepiece":
        path, template = tmp_path / "spm.gguf", CHATML
        write_sentencepiece_model(path)
    rng = random.Random(12)
    messages: list[dict[str, Any]] = []
    with TextModel(path, chat_template=template) as warm:
        for _ in range(80):
            action = rng.random()
            if action < 0.7 or not messages:
                messages += random_turn(rng)
            elif action < 0.85:
                messages[rng.randrange(len(messages))]["content"] += rng.choice([" ", "<", "x", "<|im_end|>"])
            else:
                del messages[2 * rng.randrange(len(messages) // 2) :]
            asked = [*messages, {"role": "user", "content": rng.choice(["", "Go on."])}]
            with TextModel(path, chat_template=template) as cold:
                expected = cold.render(asked)
                found = warm.render(asked)
                assert found.tokens == expected.tokens
                assert (found.prompt, found.marks, found.text_spans) == (
                    expected.prompt,
                    expected.marks,
                    expected.text_spans,
                )


def test_content_in_parts(model: TextModel) -> None:
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    as_parts = model.render([{"role": "user", "content": parts}])
    assert as_parts.prompt == model.render([{"role": "user", "content": "One\nTwo"}]).prompt


def test_thinking_switch(open_with: OpenWith) -> None:
    model = open_with("Qwen-Qwen3-0.6B")
    on, off = model.render(HELLO), model.render(HELLO, enable_thinking=False)
    assert off.prompt == on.prompt + "<think>\n\n</think>\n\n"
    by_keyword = model.render(HELLO, chat_template_kwargs={"enable_thinking": False})
    assert by_keyword.prompt == off.prompt
    assert on.thinking.supported
    assert on.thinking.start == "<think>"
    assert on.thinking.start_tokens == tuple(model.tokenize("<think>", parse_special=True))
    assert "</think>" in on.thinking.ends


def test_continuing_an_answer(open_with: OpenWith) -> None:
    model = open_with("Qwen-Qwen2.5-7B-Instruct")
    chat = model.render([*HELLO, {"role": "assistant", "content": "Once upon"}], continue_final_message=True)
    assert chat.prompt.endswith("<|im_start|>assistant\nOnce upon")


def test_history_with_tools(model: TextModel) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a", "lines": 1}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "text"}
    chat = model.render([*HELLO, answer, result], tools=[READ])
    assert '{"name": "read_file", "arguments": {"path": "a", "lines": 1}}' in chat.prompt
    assert "<tool_response>\ntext\n</tool_response>" in chat.prompt


def test_tool_constraints(model: TextModel) -> None:
    lazy = model.render(HELLO, tools=[READ])
    assert lazy.grammar_lazy
    assert lazy.grammar
    assert lazy.triggers
    always = model.render(HELLO, tools=[READ], tool_choice="required")
    assert not always.grammar_lazy
    assert "read_file" in always.grammar
    assert model.render(HELLO, tools=[READ], tool_choice="none").grammar == ""
    named = model.render(
        HELLO,
        tools=[READ, tool("other", x="string")],
        tool_choice={"type": "function", "function": {"name": "other"}},
    )
    assert "other" in named.grammar
    assert "read_file" not in named.grammar


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3.5-4B", "openai-gpt-oss-120b", "deepseek-ai-DeepSeek-V3.1"])
def test_tools_stay_in_the_prompt_whatever_has_to_be_called(open_with: OpenWith, name: str) -> None:
    """A prompt without them would share nothing with the one in memory."""
    tools = [READ, tool("other", x="string")]
    model = open_with(name)
    free = model.render(HELLO, tools=tools)
    for choice in ("required", {"type": "function", "function": {"name": "other"}}):
        bound = model.render(HELLO, tools=tools, tool_choice=choice)
        assert bound.tokens == free.tokens
        assert bound.generation_prompt == free.generation_prompt


def test_a_trigger_that_is_one_token_is_a_token(open_with: OpenWith) -> None:
    chat = open_with("Qwen3.5-4B").render(HELLO, tools=[READ])
    trigger = chat.triggers[0]
    assert (trigger.kind, trigger.value) == ("token", "<tool_call>")
    assert trigger.token in chat.preserved


def test_schema_and_grammar(model: TextModel) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    chat = model.render(HELLO, json_schema=schema)
    assert "age" in chat.grammar
    assert not chat.grammar_lazy
    own = model.render(HELLO, grammar='root ::= "yes" | "no"')
    assert own.grammar == 'root ::= "yes" | "no"'
    assert "root ::=" in schema_to_grammar(schema)
    with pytest.raises(SchemaError):
        schema_to_grammar({"type": "nonsense"})
    with pytest.raises(SchemaError):
        model.render(HELLO, json_schema={"type": "nonsense"})


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "request_json",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"messages": {}}',
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{}]}',
        b'{"messages": [{"role": 1, "content": ""}]}',
        b'{"messages": [{"role": "user"}]}',
        b'{"messages": [{"role": "user", "content": 1}]}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"messages": [{"role": "user", "content": "x", "name": 1}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": [1]}]}',
        b'{"messages": [{"role": "assistant", "tool_calls": 1}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": 1}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "sometimes"}',
        b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}',
        b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": {}}',
        b'{"messages": [{"role": "user", "content": "x"}], "enable_thinking": "yes"}',
        b'{"messages": [{"role": "user", "content": "x"}], "reasoning_format": "loud"}',
        b'{"messages": [{"role": "user", "content": "x"}], "continue_final_message": true}',
        b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 1}',
        b'{"messages": [{"role": "user", "content": "x"}], "json_schema": 1}',
        b'{"messages": [{"role": "user", "content": "x"}], "json_schema": {}, "grammar": "root ::= \\"x\\""}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"message_bytes": [1]}',
        b'{"message_bytes": [-1]}',
        b'{"message_bytes": ["0"]}',
        b'{"message_bytes": []}',
        b'{"message_bytes": 0}',
        b'{"messages": 1}',
        b"[" * 100_000,
    ],
)
def test_bad_requests(model: TextModel, request_json: bytes) -> None:
    with pytest.raises(BadRequestError):
        model.render_json(request_json)


def test_contents_may_stand_beside_the_request(model: TextModel) -> None:
    contents = ['Hé "\n', "", "日\0 \\u0041"]
    roles = ["system", "assistant", "user"]
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    inside = model.render_json(json.dumps({"messages": messages}).encode())
    assert (inside.prompt, inside.tokens) == (model.render(messages).prompt, model.render(messages).tokens)
    assert all(content in inside.prompt for content in contents)


def test_requests_nested_too_deeply(model: TextModel) -> None:
    bad_tool = {"type": "function", "function": {"name": "f", "parameters": nested(300)}}
    with pytest.raises(BadRequestError, match="deep"):
        model.render(HELLO, tools=[bad_tool])
    call = {"type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    with pytest.raises(BadRequestError, match="deep"):
        model.render([*HELLO, {"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(BadRequestError, match="JSON"):
        model.render([{"role": "user", "content": object()}])


def test_a_template_that_refuses(tiny_model: Path) -> None:
    with (
        TextModel(tiny_model, chat_template="{{ raise_exception('only cats') }}") as model,
        pytest.raises(TemplateError, match="only cats"),
    ):
        model.render(HELLO)


def test_chats_outlive_their_model(tiny_model: Path) -> None:
    model = TextModel(tiny_model)
    chat = model.render(HELLO)
    model.close()
    with pytest.raises(ClosedError):
        model.render(HELLO)
    chat.close()
    chat.close()


def test_many_threads_render(open_with: OpenWith) -> None:
    model = open_with("Qwen-Qwen3-0.6B")
    requests = [[{"role": "user", "content": f"{n} <|im_end|> </think> {'x' * n}"}] for n in range(24)]
    expected = [model.render(request, tools=[READ]).tokens for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda request: model.render(request, tools=[READ]).tokens, requests)) == expected


def test_markers_of_images_become_one_id_each(model: TextModel) -> None:
    """The texts around them are tokenised by themselves, and what only looks like a marker stays text."""
    first, second = image_marker("a" * 64), image_marker("b" * 64)
    around = [{"role": "user", "content": f"Before {first} between{second}{first}<__image_0_{'a' * 64}__>"}]
    chat = model.render(around, has_images=True)
    assert [token - model.n_vocab for token in chat.tokens if token >= model.n_vocab] == [0, 1, 2]
    assert images_in(chat.prompt) == ["a" * 64, "b" * 64, "a" * 64]
    texts_only = [model.piece(token, special=True) for token in chat.tokens if token < model.n_vocab]
    assert b"".join(texts_only).count(b"__>") == 1
    begin = chat.tokens.index(model.n_vocab)
    before = chat.prompt.partition(first)[0]
    assert list(chat.tokens[:begin]) == model.tokenize(before, add_special=True, parse_special=True)
    assert list(chat.tokens[begin + 1 : chat.tokens.index(model.n_vocab + 1)]) == model.tokenize(" between")
    assert sum(len(model.prompt_piece(token)) for token in chat.tokens) == len(chat.prompt.encode())
    plain = model.render(around)
    assert max(plain.tokens) < model.n_vocab


@pytest.mark.parametrize("number", ["52.520008", "1732734096.25", "0.1", "1e+300", "-2.5e-07", "100000.0"])
def test_numbers_keep_their_digits(tiny_model: Path, number: str) -> None:
    source = (
        "{%- for call in messages[1].tool_calls -%}{{ call.function.arguments | tojson }}|"
        "{% for name, value in call.function.arguments|items %}{{ value }}{% endfor %}{%- endfor -%}"
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": f'{{"x": {number}}}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "!", "tool_call_id": "a"},
    ]
    with TextModel(tiny_model, chat_template=source) as model:
        json_text, _, plain = model.render(messages).prompt.partition("|")
    assert json.loads(json_text)["x"] == float(number)
    assert plain == number
