"""All that is written is in some field: of texts made of a format's own marks, calls, JSON, prose, code and broken
characters, each word is found again, in order, however the text was cut.

Words are numbered, so that a lost one is seen whatever the format makes of what is around it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from luce.supervisor.text import (
    AnswerMessage,
    AnswerParser,
    BadRequestError,
    Delta,
    FinishedAnswer,
    RenderedChat,
    TemplateError,
    TextModel,
)

from .conftest import OpenWith
from .test_answer_deltas import BROKEN, HELLO, TOOLS, format_pieces, template_names, written_call
from .text_models import added_up, tool

WORD = re.compile(r"w\d+x")
CALL = '<tool_call>\n{"name": "read", "arguments": {"text": "w1x"}}\n</tool_call>'
WRITTEN = "<tool_call>\n<function=read>\n<parameter=text>\nw1x\n</parameter>\n</function>\n</tool_call>"
READ = [tool("read", text="string"), tool("stop")]


def read(chat: RenderedChat, data: bytes, sizes: Iterator[int], *, truncated: bool = False) -> FinishedAnswer:
    with AnswerParser(chat) as parser:
        deltas: list[Delta] = []
        at = 0
        while at < len(data):
            end = at + next(sizes)
            deltas += parser.feed_text(data[at:end])
            at = end
        finished = parser.finish(truncated=truncated)
    assert finished.consistent
    assert finished.n_unaccounted == 0
    assert added_up([*deltas, *finished.deltas]) == finished.message
    return finished


def at_once() -> Iterator[int]:
    while True:
        yield 1 << 20


def at_random(rng: random.Random) -> Iterator[int]:
    while True:
        yield rng.choice((1, 2, 5, 30))


def check(chat: RenderedChat, data: bytes, rng: random.Random) -> None:
    whole = read(chat, data, at_once()).message
    assert read(chat, data, at_random(rng)).message == whole
    written = WORD.findall(data.decode(errors="replace"))
    calls = "".join(call.name + call.arguments + call.id for call in whole.tool_calls)
    assert sorted(WORD.findall(whole.reasoning + "\n" + whole.content + "\n" + calls)) == sorted(written)
    made = "".join(call.name + call.arguments for call in whole.tool_calls)  # an id may stand before them
    for field in (whole.reasoning, whole.content, made):
        found = WORD.findall(field)
        assert found == sorted(found, key=written.index)


def written_answers(model: TextModel, chat: RenderedChat) -> list[bytes]:
    """A call as the template writes it, alone and among words."""
    prompt = chat.generation_prompt.encode()
    call = written_call(model, chat, "CALLED").removeprefix(prompt).replace(b"CALLED", b"w1x", 1)
    call = call.replace(b"CALLED", b"it")
    end = (chat.thinking.ends or ("",))[0].encode()
    return [call, end + call, b"w0x" + call + b"w2x", b"w0x" + end + call + b"w2x"] if call else []


def with_wrong_marks(chat: RenderedChat, answer: bytes) -> Iterator[bytes]:
    """One character of one mark is missing, or is a word."""
    places = {
        at
        for mark in format_pieces(chat)
        if len(mark) > 1
        for found in re.finditer(re.escape(mark), answer)
        for at in range(found.start(), found.end())
    }
    for at in sorted(places):
        yield answer[:at] + answer[at + 1 :]
        yield answer[:at] + b"w9x" + answer[at + 1 :]


def texts(model: TextModel, chat: RenderedChat, rng: random.Random) -> Iterator[bytes]:
    """Of random pieces, without end."""
    marks = [piece for piece in format_pieces(chat) if len(piece) > 1]
    prompt = chat.generation_prompt.encode()
    pieces: list[bytes] = [
        *(b"\n", b" ", b"```\n", b"```json\n", b"`", b'{"a": "%s"}', b'{"name": "no_tool", "arguments": {}}', b"{"),
        *(b"</think>", b"<tool_call>", b"</tool_call>", b"\xf0\x9f\x91\xa9", *BROKEN),
    ]
    while True:
        text = b""
        for number in range(rng.randint(1, 12)):
            word = f"w{number}x".encode()
            kind = rng.random()
            if kind < 0.4:
                text += word
            elif kind < 0.6:
                text += rng.choice(pieces).replace(b"%s", word)
            elif kind < 0.85:
                text += rng.choice(marks or pieces)
            else:
                call = written_call(model, chat, "CALLED").removeprefix(prompt).replace(b"CALLED", word, 1)
                call = call.replace(b"CALLED", b"it")
                text += call if rng.random() < 0.5 else call[: rng.randrange(len(call) + 1)]
        yield text


def test_each_word_is_found_again(open_with: OpenWith, llama_templates_dir: Path, full: bool) -> None:
    names = template_names(llama_templates_dir)[:: 1 if full else 7]
    n_each = 10_000 // (2 * len(names)) + 1 if full else 200 // (2 * len(names)) + 1
    for name in names:
        model = open_with(name)
        for tools in (TOOLS, None):
            try:
                chat = model.render(HELLO, tools=tools)
            except (BadRequestError, TemplateError):
                continue
            rng = random.Random(f"{name} {tools is None}")
            drawn = texts(model, chat, rng)
            for _ in range(n_each):
                data = next(drawn)
                try:
                    check(chat, data, rng)
                except AssertionError as error:
                    raise AssertionError(f"{name}, {'with' if tools else 'without'} tools: {data!r}") from error


def test_a_mark_with_a_wrong_character(open_with: OpenWith, llama_templates_dir: Path, full: bool) -> None:
    for name in template_names(llama_templates_dir):
        model = open_with(name)
        try:
            chat = model.render(HELLO, tools=TOOLS)
        except (BadRequestError, TemplateError):
            continue
        rng = random.Random(name)
        drawn = [data for answer in written_answers(model, chat) for data in with_wrong_marks(chat, answer)]
        for data in drawn if full else rng.sample(drawn, min(len(drawn), 4)):
            try:
                check(chat, data, rng)
            except AssertionError as error:
                raise AssertionError(f"{name}: {data!r}") from error


@pytest.mark.parametrize(
    ("name", "has_tools", "text"),
    [
        # What may begin the end of a thought, and is none.
        ("Kimi-K2-Instruct", False, "<think><|im_assistant|>assistant<|im_middle|>w0x</think>```json\n"),
        ("inclusionai-ling-3.0-flash", False, "w0x<think>w1x"),
        # A call that breaks off where the format goes on with content.
        (
            "inclusionai-ling-3.0-flash",
            True,
            (
                "w0x</think><tool_call>read\n<arg_key>text</arg_key>\n<arg_value>w1x</arg_value>"
                "<arg_key>parts</arg_key>\n<arg_value>path```\nw2x"
            ),
        ),
        # A call that may be beginning, where the text before it ends like it.
        (
            "unsloth-mistral-Devstral-Small-2507",
            True,
            'w0x[TOOL_CALLS]re[TOOL_CALLS]read[ARGS]{"text": "w1x", "parts": ["it", {"n": 1.5, "t": "it"}]}',
        ),
        # A mark that breaks off where the next call begins.
        (
            "MiMo-VL",
            True,
            (
                '<tool_call>\n{"name": "read", "arguments": {"text": "w0x"}}\n</tool<tool_call>\n'
                '{"name": "read", "arguments": {"text": "w1x"}}\n</tool_call><|im{"a": "w2x"}w3x</tool_call>'
            ),
        ),
        (
            "google-gemma-4-31B-it",
            True,
            (
                '<|tool_call>call:read{text:<|"|>w0x<|"|>}<t<|tool_call>call:read{text:<|"|>w1x<|"|>}<tool_call|>'
                '<|tool_resp\n<|tool_call>call:read{text:<|"|>w2x<|"|>}<tool_call|><|tool_response>w3x'
            ),
        ),
        (
            "Qwen-Qwen2.5-7B-Instruct",
            True,
            (
                '<tool_call>\n{"name": "read", "arguments": {"text": "w0x"}}\n</tool_cal<tool_call>\n{"name": "read", '
                'null<tool_call>\nw1x<tool_call>\n{"name": "read", "arguments": {"text": <tool_call>\n'
            ),
        ),
        # A word whose beginning is one too.
        ("google-gemma-4-31B-it", False, "w0x<|channel><|channel>thought\nw1x<channel|>w2x<|channel>w3x"),
        # An id that goes on in prose.
        (
            "mistralai-Mistral-Nemo-Instruct-2407",
            True,
            'w0x[TOOL_CALLS][{"name": "read", "arguments": {"text": "w1x"}, "id": "call"w2x[TOOL_CALLS][{"name": "read',
        ),
        # Bytes that are no UTF-8.
        ("GLM-4.6", True, "w0x\udce2\udc82\udcf0\udc9f\udc91`textw1x \udcc3"),
        # What cannot be read from its beginning on.
        (
            "muse-glimmer",
            True,
            (
                '<|eom|> to=read<|message|><atem:function_calls>\n<atem:invoke name="read">\n'
                '<atem:parameter name="text">w0x</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>w1x'
            ),
        ),
        # A mark that is not quite one, where the format takes anything up to it.
        (
            "muse-glimmer",
            True,
            (
                ' to=read<|message|<atem:function_calls>\n<atem:invoke name="read">\n<atem:parameter name="text">w0x'
                "</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>"
            ),
        ),
    ],
)
def test_the_same_however_it_is_cut(open_with: OpenWith, name: str, has_tools: bool, text: str) -> None:
    chat = open_with(name).render(HELLO, tools=TOOLS if has_tools else None)
    data = text.encode(errors="surrogateescape")
    whole = read(chat, data, at_once()).message
    calls = "".join(call.arguments for call in whole.tool_calls)
    assert len(WORD.findall(whole.reasoning + whole.content + calls)) == len(WORD.findall(text))
    for at in range(1, len(data)):
        assert read(chat, data, iter((at, 1, len(data)))).message == whole


def test_the_same_in_whatever_tokens(open_with: OpenWith) -> None:
    """Where they are letters."""
    model = open_with("Qwen-Qwen2.5-7B-Instruct")
    chat = model.render(HELLO, tools=READ)
    text = f'{CALL.removesuffix("l>")}{CALL}<|im{{"a": "w2x"}}w3x `<tool_call>` 日本 {{"name": {CALL} w4x'
    whole = read(chat, text.encode(), at_once()).message
    assert [call.arguments for call in whole.tool_calls] == ['{"text": "w1x"}'] * len(whole.tool_calls) != []
    rng = random.Random(51)
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(text)), 20))
        pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
        with AnswerParser(chat) as parser:
            deltas = [delta for piece in pieces for id_ in model.tokenize(piece) for delta in parser.feed(id_)]
            finished = parser.finish()
        assert finished.message == whole
        assert added_up([*deltas, *finished.deltas]) == whole


def plain(message: AnswerMessage) -> tuple[str, list[tuple[str, str]]]:
    return message.content, [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B"])
@pytest.mark.parametrize(
    "text",
    [
        "Use <tool_call> to call. Then more.",
        "Use `<tool_call>` tags",
        "Use <tool_call>",
        "Use <tool",
        "<tool_call>\n<function=read>\nsorry, I stop.",
        '<tool_call>\n{"name": "no_tool", "arguments": {"text": "a"}}\n</tool_call>',
        "<tool_call>\n<function=no_tool>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
        "```\nCALL\n```\nSo.",
        "~~~xml\nCALL",
        "Inline `CALL` is no call",
    ],
)
def test_what_is_no_call_is_content(open_with: OpenWith, name: str, text: str) -> None:
    prefix, call = ("done</think>\n\n", WRITTEN) if name == "Qwen3.5-4B" else ("", CALL)
    text = text.replace("CALL", call)
    chat = open_with(name).render(HELLO, tools=READ)
    for sizes in (at_once(), iter(lambda: 1, 0)):
        assert plain(read(chat, (prefix + text).encode(), sizes).message) == (text, [])


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B"])
@pytest.mark.parametrize(
    ("text", "content", "n_calls"),
    [
        ("CALL\nAfter text", "After text", 1),
        ("First CALL and CALL then", "First and then", 2),
        ("CALL\n<tool_call> junk", "<tool_call> junk", 1),
        ("<tool_call> junk CALL", "<tool_call> junk ", 1),
        ("```\na\n```\nCALL", "```\na\n```\n", 1),
        ("CALL\n\n", "", 1),
        ("CALL\njunk <tool_call>", "junk <tool_call>", 1),
        ("CALL\njunk <tool_call> and CALL", "junk <tool_call> and ", 2),
        ("CALL\n`CALL`", "`CALL`", 1),
    ],
)
def test_text_around_calls(open_with: OpenWith, name: str, text: str, content: str, n_calls: int) -> None:
    prefix, call = ("done</think>\n\n", WRITTEN) if name == "Qwen3.5-4B" else ("", CALL)
    chat = open_with(name).render(HELLO, tools=READ)
    for sizes in (at_once(), iter(lambda: 1, 0)):
        finished = read(chat, (prefix + text.replace("CALL", call)).encode(), sizes)
        assert finished.message.content == content.replace("CALL", call)
        arguments = [json.loads(call.arguments) for call in finished.message.tool_calls]
        assert arguments == [{"text": "w1x"}] * n_calls


def test_a_call_that_was_shown_stays(model: TextModel) -> None:
    """What comes behind where it breaks off is content."""
    text = '<tool_call>\n{"name": "read", "arguments": {"text": "a", nonsense and more'
    chat = model.render(HELLO, tools=READ)
    for sizes in (at_once(), iter(lambda: 1, 0)):
        assert plain(read(chat, text.encode(), sizes).message) == ("nonsense and more", [("read", '{"text": "a",')])


def test_a_call_that_breaks_off_before_its_name(open_with: OpenWith) -> None:
    text = 'So<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0"w1x"text"'
    chat = open_with("Cohere2MoE").render(HELLO, tools=READ)
    for sizes in (at_once(), iter(lambda: 1, 0)):
        content, calls = plain(read(chat, text.encode(), sizes).message)
        assert content.endswith('"tool_call_id": "0"w1x"text"')
        assert calls == []


def test_a_call_that_a_limit_cuts_off(model: TextModel) -> None:
    chat = model.render(HELLO, tools=READ)
    begun = '<tool_call>\n{"name": "read", "arguments": {"te'
    assert plain(read(chat, begun.encode(), at_once(), truncated=True).message) == ("", [("read", '{"te')])
    unnamed = '<tool_call>\n{"name": "re'
    assert plain(read(chat, unnamed.encode(), at_once(), truncated=True).message) == (unnamed, [])


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3.5-4B"])
def test_a_demanded_call_that_breaks_off(open_with: OpenWith, name: str, truncated: bool) -> None:
    """Wherever it does."""
    prefix, call = ("w0x</think>\n\n", WRITTEN) if name == "Qwen3.5-4B" else ("", CALL)
    text = prefix + call
    chat = open_with(name).render(HELLO, tools=READ, tool_choice="required")
    for end in range(text.index("read") + 4, len(text)):
        message = read(chat, text[:end].encode(), at_once(), truncated=truncated).message
        arguments = "".join(made.arguments for made in message.tool_calls)
        assert WORD.findall(message.reasoning + message.content + arguments) == WORD.findall(text[:end])
        assert message.content.startswith("<tool_call>") != bool(message.tool_calls)


def test_braces_in_prose_cost_what_their_length_allows(open_with: OpenWith) -> None:
    """In formats whose calls begin with one. What cannot be paid for is content."""
    text = "w0x { w1x } " * 3000
    for name in ("meta-llama-Llama-3.1-8B-Instruct", "Qwen-Qwen2.5-7B-Instruct"):
        with AnswerParser(open_with(name).render(HELLO, tools=READ)) as parser:
            parser.feed_text(text)
            finished = parser.finish()
            n_fed, n_parsed = parser.work
        assert finished.message == AnswerMessage(text, "", ())
        assert n_parsed < 400 * n_fed


def test_half_a_character_does_not_end_a_thought(open_with: OpenWith) -> None:
    chat = open_with("NVIDIA-Nemotron-Nano-v2").render(HELLO, tools=READ)
    assert chat.generation_prompt.endswith("<think>\n")
    for sizes in (at_once(), iter(lambda: 1, 0)):
        message = read(chat, b"So \x80 \xef<a <\xe2\x82", sizes).message
        assert (message.reasoning, message.content) == ("So \ufffd \ufffd<a <\ufffd", "")


def test_words_among_the_attributes_of_a_call(open_with: OpenWith) -> None:
    """The format leaves open what stands there."""
    opened = '<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="read" w1x index="1"<|sep|>'
    argument = '<|open|>argument key="text" w2x type="string"<|sep|>a<|close|>argument<|sep|>'
    text = f"{opened}{argument}<|close|>call<|sep|><|close|>tools<|sep|>"
    chat = open_with("Kimi-K3").render(HELLO, tools=READ)
    for sizes in (at_once(), iter(lambda: 1, 0)):
        message = read(chat, text.encode(), sizes).message
        assert WORD.findall(message.content) == ["w1x", "w2x"]
        assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [("read", {"text": "a"})]
    plain_text = text.replace(" w1x", "").replace(" w2x", "")
    finished = read(chat, plain_text.encode(), at_once())
    assert (finished.message.content, finished.n_mended) == ("", 0)


def test_letters_do_not_end_a_thought(open_with: OpenWith) -> None:
    """Where the vocabulary has a token for that."""
    model = open_with("Qwen-Qwen3-0.6B")
    closer = model.tokenize("</think>", parse_special=True)
    if len(closer) != 1:
        pytest.skip("the vocabulary has no such token")
    letters = [*model.tokenize("</"), *model.tokenize("think"), *model.tokenize(">")]
    ids = [
        *model.tokenize("<think>\nA ", parse_special=True),
        *letters,
        *model.tokenize(" tag."),
        *closer,
        *model.tokenize("\n\nSo."),
    ]
    for at_a_time in (1, len(ids)):
        with AnswerParser(model.render(HELLO, tools=READ)) as parser:
            for at in range(0, len(ids), at_a_time):
                parser.feed_many(ids[at : at + at_a_time])
            message = parser.finish().message
        assert (message.reasoning.strip(), message.content.strip()) == ("A </think> tag.", "So.")
