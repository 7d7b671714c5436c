"""Reading answers: every split gives the same message, deltas add up to it, and the cost per token stays bounded."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from luce.supervisor.text import (
    AnswerMessage,
    AnswerParser,
    BadRequestError,
    ClosedError,
    Delta,
    RenderedChat,
    TextModel,
    ToolCall,
    ToolCallDelta,
)

from .conftest import OpenWith
from .text_models import added_up, tool

TOOLS = [
    tool("read_file", path="string", lines="integer"),
    tool("read", text="string"),
    tool("edit", edits="array"),
]
HELLO = [{"role": "user", "content": "Hello"}]
PATH = 'src/"a\\b\n{é}.py'
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a", "lines": 1}}\n</tool_call>'
ARGUMENTS = {"path": PATH, "lines": 3}

# Templates in which a rendered answer begins where the generation prompt ends: they tell us what a model writes.
SELF_DESCRIBING = [
    "Apertus-8B-Instruct",
    "GLM-4.6",
    "Kimi-K2-Instruct",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-4-31B-it",
    "ibm-granite-granite-4.0",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "openai-gpt-oss-120b",
]


def written_by(model: TextModel, chat: RenderedChat, answer: dict[str, object], **options: object) -> str:
    """What the model wrote, if its template renders `answer` so; without the end of the turn."""
    rendered = model.render([*HELLO, answer], add_generation_prompt=False, **options)  # type: ignore[arg-type]
    assert rendered.prompt.startswith(chat.prompt)
    text = rendered.prompt[len(chat.prompt) :]
    for n_end in range(len(text)):
        with AnswerParser(chat) as parser:
            parser.feed_text(text[: len(text) - n_end])
            finished = parser.finish()
            if finished.n_mended or (answer.get("tool_calls") and not finished.message.tool_calls):
                continue
            return text[: len(text) - n_end]
    raise AssertionError(f"not readable: {text!r}")


def check_every_split(chat: RenderedChat, text: str, n_splits: int) -> None:
    data = text.encode()
    with AnswerParser(chat) as parser:
        parser.feed_text(data)
        whole = parser.finish().message
    rng = random.Random(len(data))
    cuts = list(range(1, len(data))) if len(data) <= n_splits else sorted(rng.sample(range(1, len(data)), n_splits))
    for cut in cuts:
        with AnswerParser(chat) as parser:
            deltas = [*parser.feed_text(data[:cut]), *parser.feed_text(data[cut:])]
            finished = parser.finish()
        assert finished.message == whole
        assert added_up([*deltas, *finished.deltas]) == whole
    for size in (1, 3, 7):
        with AnswerParser(chat) as parser:
            deltas = [delta for at in range(0, len(data), size) for delta in parser.feed_text(data[at : at + size])]
            assert added_up(deltas) == parser.message
            finished = parser.finish()
        assert finished.message == whole
        assert finished.consistent
        assert added_up([*deltas, *finished.deltas]) == whole


def check_many_at_once(model: TextModel, chat: RenderedChat, text: str) -> None:
    """The same as one by one: what is there after each batch, and what each token was taken for."""
    ids = model.tokenize(text, parse_special=True)
    for size in (1, 2, 3, 7, len(ids) + 1):
        with AnswerParser(chat) as single, AnswerParser(chat) as many:
            one_by_one, steps = [], []
            for at in range(0, len(ids), size):
                batch = ids[at : at + size]
                one_by_one += [(1, single.feed(token)) for token in batch]
                steps += many.feed_many(batch)
                assert many.message == single.message
                assert sum(n_tokens for n_tokens, _ in steps) == len(one_by_one)
                assert many.work[0] == single.work[0]
                assert many.work[1] <= single.work[1] * 2
            assert _taken_for(steps) == _taken_for(one_by_one)
            assert many.finish(truncated=True).message == single.finish(truncated=True).message


def _taken_for(steps: Sequence[tuple[int, Sequence[Delta]]]) -> list[type[Delta] | None]:
    """What each token was part of, as far as anything had been shown by then."""
    kinds: list[type[Delta] | None] = []
    kind = None
    for n_tokens, deltas in steps:
        kind = type(deltas[-1]) if deltas else kind
        kinds += [kind] * n_tokens
    return kinds


@pytest.mark.parametrize("name", SELF_DESCRIBING)
def test_templates(open_with: OpenWith, name: str, full: bool) -> None:
    model = open_with(name)
    plain, offered = model.render(HELLO), model.render(HELLO, tools=TOOLS)
    call = {"name": "read_file", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    answers: list[tuple[RenderedChat, dict[str, object], dict[str, object]]] = [
        (plain, {"role": "assistant", "content": "Well.\n\nIt is <b>fine</b> {here}."}, {}),
        (
            offered,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
            },
            {"tools": TOOLS},
        ),
    ]
    for chat, answer, options in answers:
        text = written_by(model, chat, answer, **options)
        with AnswerParser(chat) as parser:
            parser.feed_text(text)
            message = parser.finish().message
        if "tool_calls" in answer:
            assert [call.name for call in message.tool_calls] == ["read_file"]
            assert json.loads(message.tool_calls[0].arguments) == ARGUMENTS
        else:
            assert message.content.strip().startswith(str(answer["content"]))
        check_every_split(chat, text, 400 if full else 25)
        check_many_at_once(model, chat, text)


@pytest.mark.parametrize(
    ("name", "text", "reasoning"),
    [
        ("Qwen-Qwen3-0.6B", "<think>\nFirst this.\n</think>\n\nThe answer.", "First this."),
        ("Qwen3.5-4B", "First this.\n</think>\n\nThe answer.", "First this."),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "First this.\n</think>\n\nThe answer.", "First this."),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "[THINK]First this.[/THINK]The answer.", "First this."),
        ("GLM-4.6", "\n<think>First this.</think>\nThe answer.", "First this."),
        (
            "openai-gpt-oss-120b",
            "<|channel|>analysis<|message|>First this.<|end|><|start|>assistant<|channel|>final<|message|>The answer.",
            "First this.",
        ),
    ],
)
def test_reasoning(open_with: OpenWith, name: str, text: str, reasoning: str) -> None:
    model = open_with(name)
    chat = model.render(HELLO)
    check_every_split(chat, text, 200)
    check_many_at_once(model, chat, text)
    with AnswerParser(chat) as parser:
        parser.feed_text(text)
        message = parser.finish().message
    assert (message.content.strip(), message.reasoning.strip()) == ("The answer.", reasoning)
    unparsed = model.render(HELLO, reasoning_format="none")
    with AnswerParser(unparsed) as parser:
        parser.feed_text(text)
        assert parser.finish().message.reasoning == ""


def test_tool_calls_stream_as_they_form(model: TextModel) -> None:
    chat = model.render(HELLO, tools=TOOLS)
    text = 'Ok.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "src/app.py", "lines": 12}}\n</tool_call>'
    seen: list[tuple[str, ToolCallDelta]] = []
    with AnswerParser(chat) as parser:
        for token in model.tokenize(text, parse_special=True):
            piece = model.piece(token, special=True).decode()
            seen += [(piece, delta) for delta in parser.feed(token) if isinstance(delta, ToolCallDelta)]
        message = parser.finish().message
    assert message.tool_calls == (ToolCall("", "read_file", '{"path": "src/app.py", "lines": 12}'),)
    assert seen[0][1].name == "read_file"
    assert any(delta.arguments == "app" == piece for piece, delta in seen)


def test_many_tokens_of_one_field_are_read_at_once(model: TextModel) -> None:
    """Over the whole length of a long answer, and without parsing what only goes on with it."""
    chat = model.render(HELLO, tools=TOOLS)
    text = "".join(f"Line {number}: é {{ 'and' [so]\n" for number in range(500))
    ids = model.tokenize(text, parse_special=True)
    call = model.tokenize(CALL, parse_special=True)
    with AnswerParser(chat) as single, AnswerParser(chat) as many:
        for token in ids:
            single.feed(token)
        steps = [step for at in range(0, len(ids), 8) for step in many.feed_many(ids[at : at + 8])]
        assert many.message == single.message
        assert many.work[1] < 2 * many.work[0]
        assert single.work[1] < 2 * single.work[0]
        assert len(steps) < len(ids) / 4
        for token in call:
            single.feed(token)
        assert [n_tokens for n_tokens, _ in many.feed_many(call)] == [1] * len(call)
        assert many.message == single.message
        finished = many.finish()
        assert finished.consistent
        assert finished.message == single.finish().message


def test_many_tokens_one_of_which_there_is_not(model: TextModel) -> None:
    with AnswerParser(model.render(HELLO)) as parser:
        assert parser.feed_many([]) == []
        parser.feed_many(model.tokenize("Well, then"))
        before = parser.message
        with pytest.raises(BadRequestError):
            parser.feed_many([*model.tokenize(" I see"), model.n_vocab])
        assert parser.message.content.startswith(before.content)
        with pytest.raises(BadRequestError):
            parser.feed_many([1, 2**31])


def test_a_name_that_begins_another(model: TextModel) -> None:
    """`read` is the prefix of `read_file`: a name is shown when it is complete."""
    chat = model.render(HELLO, tools=TOOLS)
    check_every_split(
        chat, '<tool_call>\n{"name": "read_file", "arguments": {"path": "a", "lines": 1}}\n</tool_call>', 200
    )
    check_every_split(chat, '<tool_call>\n{"name": "read", "arguments": {"text": "a"}}\n</tool_call>', 200)


def test_parallel_calls(model: TextModel) -> None:
    chat = model.render(HELLO, tools=TOOLS)
    text = "".join(
        f'<tool_call>\n{{"name": "read", "arguments": {{"text": "{n}"}}}}\n</tool_call>\n'
        for n in ("one", "two", "three")
    )
    check_every_split(chat, text, 100)


def test_output_in_tokens_equals_output_in_text(model: TextModel) -> None:
    chat = model.render(HELLO, tools=TOOLS)
    text = 'é 日本 👩‍👧 <tool_call>\n{"name": "read", "arguments": {"text": "é 日本"}}\n</tool_call>'
    with AnswerParser(chat) as by_token, AnswerParser(chat) as by_text:
        for token in model.tokenize(text, parse_special=True):
            by_token.feed(token)
        by_text.feed_text(text)
        assert by_token.finish().message == by_text.finish().message


def test_control_tokens_are_no_text(model: TextModel) -> None:
    chat = model.render(HELLO)
    with AnswerParser(chat) as parser:
        for token in model.tokenize("Yes<|im_end|>", parse_special=True):
            parser.feed(token)
        assert parser.finish().message.content == "Yes"


def test_cut_off_inside_a_call(model: TextModel) -> None:
    chat = model.render(HELLO, tools=TOOLS)
    with AnswerParser(chat) as parser:
        parser.feed_text('<tool_call>\n{"name": "read", "arguments": {"text": "abc')
        message = parser.finish(truncated=True).message
    assert message.tool_calls[0].name == "read"
    assert message.tool_calls[0].arguments.startswith('{"text": "abc')


def test_output_in_no_format(open_with: OpenWith) -> None:
    chat = open_with("openai-gpt-oss-120b").render(HELLO, tools=TOOLS, tool_choice="required")
    with AnswerParser(chat) as parser:
        parser.feed_text("<|channel|>nonsense")
        finished = parser.finish()
        assert finished.message == AnswerMessage("<|channel|>nonsense", "", ())
        assert finished.n_mended == 1


def test_continued_answers_give_the_new_part_only(open_with: OpenWith) -> None:
    model = open_with("Qwen-Qwen3-0.6B")
    chat = model.render([*HELLO, {"role": "assistant", "content": "Once upon"}], continue_final_message=True)
    with AnswerParser(chat) as parser:
        deltas = parser.feed_text(" a time.")
        finished = parser.finish()
    assert added_up([*deltas, *finished.deltas]).content == " a time."
    assert finished.message.content == " a time."
    assert finished.consistent


def prose(n_words: int, seed: int = 1) -> str:
    words = ["the", "<b>", "</i>", "{x}", '"over"', "dogs\n\n", "é", "日本", "f(x):", "'", "\\", "<tool", "</", "[1,2]"]
    rng = random.Random(seed)
    return " ".join(rng.choice(words) for _ in range(n_words))


def json_call(value: str) -> str:
    return f'<tool_call>\n{{"name": "read", "arguments": {{"text": {value}}}}}\n</tool_call>'


def long_answers(n_words: int) -> list[tuple[str, str]]:
    """Template, output: long in each of the ways in which an answer can be."""
    text = prose(n_words)
    listed = json.dumps([{"a": prose(3, n), "n": n} for n in range(n_words // 8)])
    xml = f"<tool_call>\n<function=read>\n<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>read\n<arg_key>text</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    quoted = ",".join(f'<|"|>{prose(3, n)}<|"|>' for n in range(n_words // 8))
    kimi = '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="edit" index="1"<|sep|><|open|>argument key='
    channels = f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant<|channel|>final<|message|>{text}"
    return [
        ("Qwen-Qwen2.5-7B-Instruct", text),
        ("Qwen-Qwen2.5-7B-Instruct", json_call(json.dumps(text, ensure_ascii=False))),
        ("Qwen-Qwen2.5-7B-Instruct", json_call(listed)),
        ("Qwen-Qwen3-0.6B", f"<think>\n{text}\n</think>\n\n{text}"),
        ("Qwen3-Coder", xml),
        ("GLM-4.6", f"<think>{text}</think>\n{glm}"),
        ("openai-gpt-oss-120b", channels),
        ("google-gemma-4-31B-it", f'<|tool_call>call:read{{text:<|"|>{text}<|"|>}}<tool_call|>'),
        ("deepseek-ai-DeepSeek-V3.1", text),
        ("Qwen-Qwen3-0.6B", f"<think>\n{text}"),
        ("Qwen-Qwen2.5-7B-Instruct", text.replace("dogs", "\udcff\udce2\udc82")),
        ("Qwen-Qwen2.5-7B-Instruct", json_call(json.dumps(text))[:-20]),
        ("GLM-4.6", f"<think></think>\n<tool_call>edit\n<arg_key>edits</arg_key>\n<arg_value>{listed}</arg_value>\n"),
        ("google-gemma-4-31B-it", f"<|tool_call>call:edit{{edits:[{quoted}]}}<tool_call|>"),
        ("Kimi-K3", f'{kimi}"edits" type="array"<|sep|>{listed}<|close|>argument<|sep|><|close|>call<|sep|>'),
    ]


def parsed_per_step(chat: RenderedChat, text: str, n_bytes: int = 4) -> float:
    data = text.encode(errors="surrogateescape")
    with AnswerParser(chat) as parser:
        deltas: list[Delta] = []
        shown_to = 0
        for end in range(n_bytes, len(data) + n_bytes, n_bytes):
            if added := parser.feed_text(data[end - n_bytes : end]):
                deltas += added
                shown_to = end
            # Bounded cost is not bought by streaming in lumps: a text comes as it does, but for marks and what may
            # begin one, and of a tool call that is long already a hundredth may wait.
            is_call = bool(deltas) and isinstance(deltas[-1], ToolCallDelta)
            assert end - shown_to <= 150 + (end // 100 if is_call else 0)
        n_fed, n_parsed = parser.work
        assert n_fed == len(data)
        finished = parser.finish(truncated=True)
    with AnswerParser(chat) as whole:
        whole.feed_text(data)
        assert whole.finish(truncated=True).message == finished.message
    assert finished.consistent
    assert added_up([*deltas, *finished.deltas]) == finished.message
    return n_parsed / (len(data) / n_bytes)


@pytest.mark.parametrize(
    "index", [pytest.param(index, marks=[pytest.mark.full_only] if index % 3 else []) for index in range(15)]
)
def test_cost_per_token_does_not_grow(open_with: OpenWith, index: int) -> None:
    """20,000 tokens cost as much each as 2,000 do, counted in bytes that the parser goes over."""
    name, short = long_answers(1600)[index]
    _, long = long_answers(16000)[index]
    chat = open_with(name).render(HELLO, tools=TOOLS)
    cost = parsed_per_step(chat, long)
    assert cost < 1.3 * parsed_per_step(chat, short) + 50
    assert cost < 1000


def test_hopeless_output_is_bounded_too(model: TextModel) -> None:
    """A model that opens one list in the other forever: nothing can be left out, and the stack must hold."""
    chat = model.render(HELLO, tools=TOOLS)
    data = b'<tool_call>\n{"name": "read", "arguments": {"text": ' + b"[" * 20_000

    def work() -> tuple[int, int]:
        with AnswerParser(chat) as parser:
            for at in range(0, len(data), 4):
                parser.feed_text(data[at : at + 4])
            assert parser.finish(truncated=True).message.tool_calls[0].name == "read"
            return parser.work

    result: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    n_fed, n_parsed = result[0]
    assert n_parsed < 1200 * n_fed


def test_misuse(model: TextModel) -> None:
    chat = model.render(HELLO)
    parser = AnswerParser(chat)
    with pytest.raises(BadRequestError, match="token id"):
        parser.feed(10**6)
    with pytest.raises(BadRequestError, match="token id"):
        parser.feed(-(2**40))
    parser.finish()
    with pytest.raises(BadRequestError, match="finished"):
        parser.feed_text("x")
    with pytest.raises(BadRequestError, match="finished"):
        parser.finish()
    parser.close()
    with pytest.raises(ClosedError, match="parser is closed"):
        parser.feed_text("x")
    chat.close()
    with pytest.raises(ClosedError, match="chat is closed"):
        AnswerParser(chat)


def test_many_threads_read_answers_of_one_chat(model: TextModel) -> None:
    chat = model.render(HELLO, tools=TOOLS)

    def work(n: int) -> bool:
        text = f'{"x" * n}<tool_call>\n{{"name": "read", "arguments": {{"text": "{n}"}}}}\n</tool_call>'
        with AnswerParser(chat) as parser:
            for at in range(0, len(text), 3):
                parser.feed_text(text[at : at + 3])
            message = parser.finish().message
        return (message.content, message.tool_calls[0].arguments) == ("x" * n, f'{{"text": "{n}"}}')

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))
