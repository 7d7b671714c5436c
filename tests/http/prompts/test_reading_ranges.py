"""What of a conversation is read in any case where only parts of its prompt are: found in prompts of many templates,
which show results of tools as the user's, several in one turn, as JSON, or before what is said beside the call."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from luce.protocol import MAX_MARKS
from luce.supervisor.http.prompts.answer_request import ChatPrompt, TextPrompt
from luce.supervisor.http.prompts.reading_ranges import (
    END_TOKENS,
    RESULT_TOKENS,
    WHOLE_TOKENS,
    ReadingRanges,
    bounded,
    fenced,
    reading_ranges,
)
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ, assistant, system

Open = Callable[[str], TextModel]

TEMPLATES = [
    "",  # results of one turn in one turn of the user's
    "Qwen3.5-4B",  # the same, called a tool's
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "HuggingFaceTB-SmolLM3-3B",  # each as a user's own words
    "google-gemma-4-31B-it",  # within the assistant's turn, what is said beside the call behind them
    "GLM-4.7-Flash",  # with marks that have no special token in this vocabulary
    "deepseek-ai-DeepSeek-V3.1",  # and several of the assistant's messages in one
    "openai-gpt-oss-120b",  # as JSON; without any marks here
    "Kimi-K2-Instruct",
]


@pytest.fixture(scope="module")
def open_model(tiny_model: Path, llama_templates_dir: Path) -> Iterator[Open]:
    """The tiny model with one of llama.cpp's templates, or its own ("")."""
    opened: dict[str, TextModel] = {}

    def make(name: str) -> TextModel:
        if name not in opened:
            template = (llama_templates_dir / f"{name}.jinja").read_text() if name else None
            opened[name] = TextModel(tiny_model, chat_template=template)
        return opened[name]

    yield make
    for model in opened.values():
        model.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calls(*numbers: int) -> dict[str, Any]:
    function = {"name": "read_file", "arguments": '{"path": "README.md"}'}
    asked = [{"id": f"call_{number}", "type": "function", "function": function} for number in numbers]
    return {"role": "assistant", "content": "Let me see.", "tool_calls": asked}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": "read_file", "content": text}


def lines(name: str, n: int = 60) -> str:
    return "\n".join(f'{name} line {number} says "this".' for number in range(n))


SESSION = [
    system("Be brief. These are the rules."),
    user("First question. " + lines("alpha")),
    assistant("First answer. " + lines("beta")),
    user("Second question."),
    calls(1, 2),
    result(1, lines("gamma")),
    result(2, lines("delta")),
    calls(3),
    result(3, lines("epsilon")),
    assistant("Second answer. " + lines("zeta")),
    user("Third question."),
]


def render(model: TextModel, *messages: dict[str, Any], **fields: Any) -> Rendered:
    prompt = ChatPrompt(messages=messages, tools=[READ], **fields)
    return Renderer(model).render(prompt, parts_from=0)


def texts(model: TextModel, rendered: Rendered, spans: tuple[tuple[int, int], ...]) -> list[str]:
    return [
        model.detokenize(rendered.ids[begin:end], unparse_special=True).decode(errors="replace") for begin, end in spans
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_read_in_any_case(open_model: Open, name: str) -> None:
    model = open_model(name)
    rendered = render(model, *SESSION)
    assert rendered.in_parts
    kept = texts(model, rendered, rendered.reading.keep)
    text = "\n".join(kept)
    assert "These are the rules." in kept[0]
    assert rendered.reading.keep[0][0] == 0
    assert "First question." not in text
    assert rendered.chat is not None
    assert text.count("README.md") == rendered.chat.prompt.count("README.md")
    for number, word in enumerate(("gamma", "delta", "epsilon")):
        assert f"{word} line 0" in text, kept
        assert f"{word} line 59" not in text, kept
        # The call, and all that stands between it and its result, is one with the beginning of that.
        (span,) = (part for part in kept if f"{word} line 0" in part)
        assert number == 1 or "read_file" in span or name.startswith("HuggingFace")
    for word in ("alpha", "beta", "zeta"):
        assert f"{word} line 30" not in text
    # A block that is opened is closed.
    assert text.count("</tool_response>") == rendered.chat.prompt.count("</tool_response>")
    assert "Third question." in kept[-1]
    assert rendered.reading.keep[-1][1] == len(rendered.ids)
    n_kept = sum(end - begin for begin, end in rendered.reading.keep)
    assert n_kept < 0.5 * len(rendered.ids)


@pytest.mark.parametrize("name", ["", "Qwen3.5-4B", "google-gemma-4-31B-it"])
def test_tools_are_read_in_any_case(open_model: Open, name: str) -> None:
    model = open_model(name)
    for messages in ([user(lines("alpha"))], [system("Rules."), user(lines("alpha"))]):
        rendered = render(model, *messages)
        head = texts(model, rendered, rendered.reading.keep)[0]
        assert "read_file" in head
        assert len(messages) == 1 or "Rules." in head


def test_a_short_word_of_the_user_is_not_found_in_the_system_text(open_model: Open) -> None:
    model = open_model("")
    rendered = render(
        model, system("Hi is what they say. " + lines("alpha", 30)), user("Hi"), assistant("Yes"), user("Hi")
    )
    kept = texts(model, rendered, rendered.reading.keep)
    assert "alpha line 29" in kept[0]
    assert kept[-1].startswith("<|im_start|>user\nHi<|im_end|>")


def test_of_a_long_turn_its_ends_are_read(open_model: Open) -> None:
    """It may be what there is to choose from."""
    model = open_model("")
    long = "Summarise this. " + lines("alpha", 400) + "\nWhat does the last line say?"
    rendered = render(model, system("Rules."), user("Before. " + lines("beta")), assistant("Yes."), user(long))
    assert len(rendered.ids) > 2 * WHOLE_TOKENS
    kept = texts(model, rendered, rendered.reading.keep)
    assert len(kept) == 3
    assert kept[1].startswith("<|im_start|>user\nSummarise this.")
    begin, end = rendered.reading.keep[1]
    assert end - begin == RESULT_TOKENS
    assert kept[2].endswith("What does the last line say?<|im_end|>\n<|im_start|>assistant\n")
    begin, end = rendered.reading.keep[2]
    assert END_TOKENS <= end - begin <= END_TOKENS + 16


@pytest.mark.parametrize("n_lines", [20, 300])
def test_what_follows_the_users_last_turn(open_model: Open, n_lines: int) -> None:
    """All of it, or where it is long its ends, with the calls in it."""
    model = open_model("")
    rendered = render(
        model, system("Rules."), user("Read. " + lines("alpha", 5)),
        calls(1), result(1, lines("beta", n_lines)), calls(2), result(2, lines("gamma", n_lines)),
    )  # fmt: skip
    text = "\n".join(texts(model, rendered, rendered.reading.keep))
    assert "alpha line 4" in text
    assert all(f"{word} line 0" in text for word in ("beta", "gamma"))
    assert text.count("<tool_call>\n{") == 2 + 1  # and what the template says of them
    assert ("beta line 10" in text) == (n_lines == 20)
    assert "gamma line 19" in text or n_lines == 300
    assert f"gamma line {n_lines - 1}" in text


def test_a_call_without_a_result_that_can_be_found(open_model: Open) -> None:
    """None has come, or it says nothing."""
    model = open_model("")
    for answered in ([], [result(1, "")], [result(1, " \n")]):
        rendered = render(model, user(lines("alpha", 300)), calls(1), *answered, assistant("Yes."), user("And now?"))
        text = "\n".join(texts(model, rendered, rendered.reading.keep))
        assert '"path": "README.md"' in text
        assert "And now?" in text
        assert "alpha line 200" not in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_blocks_of_code(open_model: Open, name: str) -> None:
    model = open_model(name)
    block = '```py\ndef f():\n    return "x"\n```'
    session = [
        *SESSION[:1],
        user(f"Look:\n{block}\nAnd?"),
        assistant(f"I see.\n\n{block}"),
        user("Not closed:\n```\nx"),
        assistant("Yes."),
        user(f"~~~\n{block}\n~~~"),
    ]
    rendered = render(model, *session)
    found = texts(model, rendered, rendered.reading.blocks)
    assert len(found) == 3, found
    for text, wanted in zip(found, (block, block, f"~~~\n{block}\n~~~"), strict=True):
        assert wanted in text
        assert len(text) < len(wanted) + 24  # whole tokens


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("", []),
        ("```\na\n```", ["```\na\n```"]),
        ("```\na\n``` b\n```", ["```\na\n``` b\n```"]),
        ("````\n```\na\n```\n````", ["````\n```\na\n```\n````"]),
        ("~~~ ```\n```\n~~~~~\nb", ["~~~ ```\n```\n~~~~~"]),
        ("``` a ``` b\n```\nx\n```\n```\ny", ["```\nx\n```"]),
        ("    ```\na\n    ```", []),
        ("a\r\n```c\r\nx\r\n```\r\nb", ["```c\r\nx\r\n```\r"]),
        ("\n".join("`" * n for n in range(400, 2, -1)), []),
    ],
)
def test_fences(text: str, blocks: list[str]) -> None:
    data = text.encode()
    assert [data[begin:end].decode() for begin, end in fenced(data)] == blocks


def test_where_the_model_has_written_an_answer_in_other_tokens(open_model: Open) -> None:
    """What stands behind it moves."""
    model = open_model("")
    known = TokenReplayCache(model, 1 << 20)
    renderer = Renderer(model, known)
    asked, said = [system("Rules."), user("Hello.")], "The sea is wide. And deep."
    first = renderer.render(ChatPrompt(messages=asked))
    assert first.turn is not None
    letters = [token for letter in said for token in model.tokenize(letter)]
    known.keep(first.turn, letters)
    messages = [
        *asked,
        assistant(said),
        user("Read. " + lines("alpha", 10)),
        calls(1),
        result(1, lines("beta")),
        assistant("."),
        user("And?"),
    ]
    rendered = renderer.render(ChatPrompt(messages=messages), parts_from=0)
    plain = Renderer(model).render(ChatPrompt(messages=messages), parts_from=0)
    n_more = len(rendered.ids) - len(plain.ids)
    assert n_more > 0
    head, *others = plain.reading.keep
    assert rendered.reading.keep == (head, *((begin + n_more, end + n_more) for begin, end in others))


def test_where_the_ids_do_not_spell_the_text_to_the_byte(open_model: Open) -> None:
    """As those of tokenisers that put a space behind each special token: within a message a little is lost."""
    model = open_model("")
    chat = model.render(SESSION, tools=[READ])
    behind = {chat.tokens[mark.token + 1] for mark in chat.marks}

    def spaced(token: int) -> bytes:
        return b" " * (token in behind) + model.prompt_piece(token)

    places, n_ids = [mark.token for mark in chat.marks], len(chat.tokens)
    plain, other = (
        reading_ranges(chat, places, n_ids, SESSION, piece, opens_answer=True) for piece in (model.prompt_piece, spaced)
    )
    assert len(other.keep) == len(plain.keep)
    for (begin, end), (its_begin, its_end) in zip(plain.keep, other.keep, strict=True):
        assert abs(begin - its_begin) <= 2
        assert abs(end - its_end) <= 2


def test_nothing_is_looked_for_where_all_is_read(open_model: Open) -> None:
    renderer = Renderer(open_model(""))
    prompt = ChatPrompt(messages=SESSION, tools=[READ])
    n_prompt = len(renderer.render(prompt).ids)
    for parts_from in (None, n_prompt + 1):
        rendered = renderer.render(prompt, parts_from=parts_from)
        assert not rendered.in_parts
        assert rendered.reading == ReadingRanges()
    assert renderer.render(prompt, parts_from=n_prompt).in_parts
    text = renderer.render(TextPrompt(content="One two three."), parts_from=0)
    assert text.in_parts
    assert text.reading == ReadingRanges()


def test_spans_become_few_enough() -> None:
    assert bounded([(5, 9), (0, 3), (9, 9), (8, 12), (12, 13), (20, 21)]) == ((0, 3), (5, 13), (20, 21))
    assert bounded([]) == ()
    rng = random.Random(3)
    spans, at = [], 0
    for _ in range(2 * MAX_MARKS):
        begin = at + rng.randrange(1, 100)
        at = begin + rng.randrange(1, 20)
        spans.append((begin, at))
    joined = bounded(spans)
    assert len(joined) == MAX_MARKS
    assert all(
        any(begin <= one[0] and one[1] <= end for begin, end in joined[:1] + joined[-1:])
        for one in (spans[0], spans[-1])
    )
    gaps = [after[0] - before[1] for before, after in pairwise(spans)]
    left = [after[0] - before[1] for before, after in pairwise(joined)]
    assert min(left) >= sorted(gaps)[MAX_MARKS - 1]
    covered = {position for begin, end in joined for position in range(begin, end)}
    assert all(position in covered for begin, end in spans for position in range(begin, end))
