"""Answers against parsing all of them anew with each piece: the same deltas, whatever was written. They come at the
same time, too, but for a text's last bytes where its end may begin, and for tool calls once the parser has done its
share.

What a model writes is drawn at random, from what its format's own grammar has and what texts of models have, and cut at
random places. The reference parses the whole prefix of the answer for each piece, so nothing is ever left out.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from luce.supervisor.text import (
    AnswerMessage,
    AnswerParser,
    BadRequestError,
    ContentDelta,
    Delta,
    ReasoningDelta,
    RenderedChat,
    TemplateError,
    TextModel,
    ToolCall,
    ToolCallDelta,
)

from .conftest import OpenWith
from .text_models import tool

HELLO = [{"role": "user", "content": "Hello"}]
TOOLS = [tool("read_file", path="string", lines="integer"), tool("read", text="string", parts="array")]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"tools": TOOLS, "reasoning_format": "none"},
    {"json_schema": SCHEMA},
]
WORDS = [
    *(
        "the ",
        "quick",
        " brown",
        " fox",
        ". ",
        ", ",
        "\n",
        "\n\n",
        "    ",
        "  - item",
        "```python\n",
        "```\n",
        "# Title\n",
    ),
    *("def f(x):\n", "return x[0]", "if (a < b && c > d) {", "}", "<b>", "</i>", "<", "</", "<|", "[", "]", "{", '"'),
    *("'", "\\", "\\n", '\\"', "\\u00e9", "null", "true", "-1.5e3", "é", "日本", "👩‍👧", "\t", "|", "<tool", "<think"),
]
BROKEN = [b"\xff", b"\xe2\x82", b"\xf0\x9f\x91", b"\xc3", b"\x80"]
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)+)"')


def with_deltas(message: AnswerMessage, deltas: list[Delta]) -> AnswerMessage:
    reasoning, content, calls = message.reasoning, message.content, list(message.tool_calls)
    for delta in deltas:
        match delta:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case ToolCallDelta(index, id_, name, arguments):
                if index == len(calls):
                    calls.append(ToolCall("", "", ""))
                call = calls[index]
                calls[index] = ToolCall(id_ or call.id, name or call.name, call.arguments + arguments)
    return AnswerMessage(content, reasoning, tuple(calls))


def check_against_the_whole(chat: RenderedChat, data: bytes, sizes: Iterator[int]) -> None:
    shown = AnswerMessage("", "", ())
    at = 0
    with AnswerParser(chat) as parser:
        while at < len(data):
            end = at + next(sizes)
            with AnswerParser(chat) as anew:
                anew.feed_text(data[:end])
                shown = with_deltas(shown, list(parser.feed_text(data[at:end])))
                assert parser.message == shown == anew.message, (data[:at], data[at:end])
            at = end
        with AnswerParser(chat) as anew:
            anew.feed_text(data)
            whole = anew.finish(truncated=True)
        finished = parser.finish(truncated=True)
        assert finished.message == whole.message
        assert with_deltas(shown, list(finished.deltas)) == whole.message


def prose(rng: random.Random, n_words: int) -> bytes:
    return "".join(rng.choice(WORDS) for _ in range(n_words)).encode()


def format_pieces(chat: RenderedChat) -> list[bytes]:
    """What the format's own grammar and the template's marks have in them."""
    literals = [json.loads(f'"{literal}"') for literal in LITERAL.findall(chat.grammar) if "\\x" not in literal]
    marks = [chat.thinking.start, *chat.thinking.ends, chat.generation_prompt]
    marks += [trigger.value for trigger in chat.triggers] + [delimiter.text for delimiter in chat.delimiters]
    return [piece.encode() for piece in sorted({*literals, *marks}) if piece]


def written_call(model: TextModel, chat: RenderedChat, text: str) -> bytes:
    """A tool call as the template writes it, or nothing where a rendered answer does not begin as one is generated."""
    call = {"name": "read", "arguments": {"text": text, "parts": [text[:50], {"n": 1.5, "t": text}]}}
    answer = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
    }
    try:
        rendered = model.render([*HELLO, answer], tools=TOOLS, add_generation_prompt=False)
    except (BadRequestError, TemplateError):
        return b""
    prefix = chat.prompt.removesuffix(chat.generation_prompt)
    return rendered.prompt.removeprefix(prefix).encode() if rendered.prompt.startswith(prefix) else b""


def answers(model: TextModel, chat: RenderedChat, rng: random.Random, n_words: int) -> Iterator[bytes]:
    """Texts long in each of the ways in which an answer can be, whole and cut off, and texts that are none."""
    pieces = format_pieces(chat)
    start, end = chat.thinking.start.encode(), (chat.thinking.ends or ("",))[0].encode()
    clean = "".join(rng.choice(WORDS) for _ in range(n_words // 2))
    call = written_call(model, chat, clean)
    yield prose(rng, n_words) + call
    yield start + prose(rng, n_words)
    yield start + prose(rng, n_words // 2) + end + prose(rng, n_words // 2) + call[: rng.randrange(len(call) + 1)]
    yield call + call
    yield b"".join(rng.choice([prose(rng, 5), rng.choice(BROKEN)]) for _ in range(n_words // 5))
    yield b"".join(
        rng.choice([prose(rng, 3), prose(rng, 20), rng.choice(pieces or [b"x"])]) for _ in range(n_words // 10)
    )
    yield prose(rng, n_words // 2) + b"".join(rng.choice(pieces or [b"x"]) for _ in range(20)) + prose(rng, 100)


def sizes(rng: random.Random, largest: int) -> Iterator[int]:
    while True:
        yield rng.randint(1, largest)


def template_names(templates: Path) -> list[str]:
    return sorted(path.stem for path in templates.glob("*.jinja"))


def rendered(open_with: OpenWith, name: str) -> Iterator[tuple[TextModel, RenderedChat]]:
    model = open_with(name)
    for options in OPTIONS:
        try:
            yield model, model.render(HELLO, **options)
        except (BadRequestError, TemplateError):
            continue


def test_every_template(open_with: OpenWith, llama_templates_dir: Path, full: bool) -> None:
    """In short form a part of them, and of the places to cut at. Long answers are cut into long pieces: the reference
    takes the square of the length."""
    names = template_names(llama_templates_dir)[:: 1 if full else 11]
    volumes = [(150, 9), (1000, 200)] if full else [(150, 60)]
    n_read = 0
    for name in names:
        for index, (model, chat) in enumerate(rendered(open_with, name)):
            rng = random.Random(f"{name} {index}")
            for n_words, largest in volumes:
                for data in answers(model, chat, rng, n_words):
                    check_against_the_whole(chat, data, sizes(rng, largest))
                    n_read += 1
    assert n_read >= 20 * len(names)


def test_text_that_cannot_end_is_not_parsed(open_with: OpenWith) -> None:
    """Content and reasoning without anything like a mark cost their own length, in whatever format."""
    sentence = "A quick brown fox, 日本 and é: f(x) = x + 1.\n"
    for name, begin in (
        ("Qwen-Qwen2.5-7B-Instruct", ""),
        ("Qwen-Qwen3-0.6B", "<think>\n"),
        ("Qwen3-Coder", ""),
        ("GLM-4.6", "<think>"),
        ("openai-gpt-oss-120b", "<|channel|>final<|message|>"),
        ("google-gemma-4-31B-it", "<|channel>thought\n"),
        ("MiniMax-M3", ""),
        ("meetkai-functionary-medium-v3.2", "all\n"),
    ):
        with AnswerParser(open_with(name).render(HELLO, tools=TOOLS)) as parser:
            parser.feed_text(begin + sentence)
            _, n_before = parser.work
            deltas = [delta for _ in range(1000) for delta in parser.feed_text(sentence)]
            assert parser.work[1] - n_before == len(sentence.encode()) * 1000, name
            assert deltas in ([ContentDelta(sentence)] * 1000, [ReasoningDelta(sentence)] * 1000)


def test_text_that_is_no_utf8(open_with: OpenWith) -> None:
    """Shown with the replacement character, and passed all the same."""
    chat = open_with("Qwen-Qwen2.5-7B-Instruct").render(HELLO, tools=TOOLS)
    with AnswerParser(chat) as parser:
        for _ in range(2000):
            parser.feed_text(b"a \xff\xe2\x82 b <tool ")
        assert parser.message.content == "a \ufffd\ufffd b <tool " * 2000
        assert parser.work[1] < 200 * parser.work[0]


def test_calls_after_another(open_with: OpenWith, full: bool) -> None:
    """Each with long arguments: what is done with is not parsed again in full."""
    chat = open_with("Qwen-Qwen2.5-7B-Instruct").render(HELLO, tools=TOOLS)
    rng = random.Random(7)
    n_calls = 20 if full else 8
    calls = [
        {"name": "read", "arguments": {"text": "".join(rng.choice(WORDS) for _ in range(300))}} for _ in range(n_calls)
    ]
    data = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls).encode()
    check_against_the_whole(chat, data, sizes(rng, 200))
    with AnswerParser(chat) as parser:
        for at in range(0, len(data), 4):
            parser.feed_text(data[at : at + 4])
        assert len(parser.message.tool_calls) == len(calls)
        assert parser.work[1] < 1000 * parser.work[0]


def test_what_was_shown_stays_where_it_was_when_a_format_breaks_off(open_with: OpenWith) -> None:
    """However long the text is before the place, and whichever characters stand there."""
    chat = open_with("Cohere2MoE").render(HELLO, json_schema=SCHEMA)
    for n in range(900, 964):
        data = "a" * n + "<👩‍👧日本<|START_ACTION|>é"
        check_against_the_whole(chat, data.encode(), iter([n, *[1] * 100]))
