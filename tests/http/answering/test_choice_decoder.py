"""From tokens to pieces, for formats with reasoning and tool calls: llama.cpp's templates, and no engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.http.answering.answer_events import (
    ChoiceFinished,
    ContentPiece,
    FinishReason,
    Piece,
    ReasoningPiece,
    ToolCallPiece,
)
from luce.supervisor.http.answering.call_repair import CallHold
from luce.supervisor.http.answering.choice_decoder import ChatReading, ChoiceDecoder, LogprobReader, PlainReading
from luce.supervisor.text import TextModel
from tests.http.answering.answering_fixtures import READ

THOUGHT = "Let me see what END there is."
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "END of README.md"}}\n</tool_call>'
OpenChoice = Callable[..., ChoiceDecoder]


@pytest.fixture(scope="module")
def model(tiny_model: Path, llama_templates_dir: Path) -> Iterator[TextModel]:
    template = (llama_templates_dir / "Qwen-Qwen3-0.6B.jinja").read_text()
    with TextModel(tiny_model, chat_template=template) as opened:
        yield opened


def choice(model: TextModel, *stops: str, logprobs: bool = False, **options: object) -> ChoiceDecoder:
    chat = model.render([{"role": "user", "content": "Hello"}], tools=[READ])
    reader = LogprobReader(model, 1) if logprobs else None
    return ChoiceDecoder(0, ChatReading(chat), stops=stops, ends=model.info.eog, logprobs=reader, **options)  # type: ignore[arg-type]


def tokens(model: TextModel, text: str) -> list[int]:
    return model.tokenize(text, parse_special=True)


def read(
    choice: ChoiceDecoder, items: Sequence[int | TokenEvent], *, truncated: bool = False, at_once: int = 1
) -> tuple[list[Piece], ChoiceFinished]:
    pieces: list[Piece] = []
    for at in range(0, len(items), at_once):
        pieces += choice.feed(items[at : at + at_once])
    rest, finished = choice.finish(truncated=truncated)
    return pieces + rest, finished


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_reasoning_content_and_calls_are_kept_apart(model: TextModel, at_once: int) -> None:
    ids = tokens(model, f"<think>\n{THOUGHT}\n</think>\n\nI look.\n{CALL}<|im_end|>")
    open_ = choice(model)
    pieces, finished = read(open_, ids, at_once=at_once)
    assert finished.reasoning.strip() == THOUGHT
    assert finished.content.strip() == "I look."
    assert [(call.name, json.loads(call.arguments)["path"]) for call in finished.tool_calls] == [
        ("read_file", "END of README.md")
    ]
    assert finished.reason is FinishReason.TOOL_CALLS
    kinds = [type(piece) for piece in pieces]
    assert list(dict.fromkeys(kinds)) == [ReasoningPiece, ContentPiece, ToolCallPiece]
    assert kinds == sorted(kinds, key=[ReasoningPiece, ContentPiece, ToolCallPiece].index)
    assert len(tokens(model, THOUGHT)) <= open_.n_reasoning <= len(tokens(model, THOUGHT)) + 8
    assert open_.tokens == ids


def test_stop_strings_are_looked_for_in_the_content_only(model: TextModel) -> None:
    _, finished = read(choice(model, "END"), tokens(model, f"<think>\n{THOUGHT}\n</think>\n\nI look.\n{CALL}"))
    assert finished.reason is FinishReason.TOOL_CALLS
    _, finished = read(choice(model, "END"), tokens(model, f"<think>\n{THOUGHT}\n</think>\n\nThe END is near"))
    assert (finished.reason, finished.stop_text) == (FinishReason.STOP_TEXT, "END")
    assert finished.content.strip() == "The"
    assert finished.reasoning.strip() == THOUGHT


def test_a_stop_of_the_template_is_an_ordinary_end(model: TextModel) -> None:
    _, finished = read(choice(model, own_stops=("END",)), tokens(model, "The END"))
    assert (finished.reason, finished.stop_text, finished.content) == (FinishReason.STOP, None, "The ")


@pytest.mark.parametrize("n_left", [3, 12, 20])
def test_what_a_limit_cuts_off_ends_with_length(model: TextModel, n_left: int) -> None:
    ids = tokens(model, CALL)[:-n_left]
    _, finished = read(choice(model), ids, truncated=True)
    assert finished.reason is FinishReason.LENGTH
    _, finished = read(choice(model), tokens(model, "<think>\nLet me")[:], truncated=True)
    assert (finished.reason, finished.reasoning.strip(), finished.content) == (FinishReason.LENGTH, "Let me", "")


def test_an_answer_out_of_format_is_given_as_far_as_it_goes(
    model: TextModel, tiny_model: Path, llama_templates_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pieces, finished = read(choice(model), tokens(model, f"I look.\n{CALL} and so on<|im_end|>"))
    assert "format" in caplog.text
    assert finished.reason is FinishReason.TOOL_CALLS
    assert finished.content == "I look.\nand so on"
    first, last = (next(n for n in order if isinstance(pieces[n], ToolCallPiece)) for order in _both_ways(pieces))
    assert "".join(piece.text for piece in pieces[:first] if isinstance(piece, ContentPiece)) == "I look.\n"
    assert "".join(piece.text for piece in pieces[last:] if isinstance(piece, ContentPiece)) == "and so on"
    assert [call.name for call in finished.tool_calls] == ["read_file"]
    caplog.clear()
    template = (llama_templates_dir / "openai-gpt-oss-120b.jinja").read_text()
    with TextModel(tiny_model, chat_template=template) as harmony:
        pieces, finished = read(choice(harmony), tokens(harmony, "No channel at all"))
    assert "format" in caplog.text
    assert (finished.reason, finished.content) == (FinishReason.STOP, "No channel at all")
    assert "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)) == "No channel at all"


def _both_ways(pieces: Sequence[Piece]) -> tuple[Sequence[int], Sequence[int]]:
    return range(len(pieces)), range(len(pieces) - 1, -1, -1)


BARE = '{"name": "read_file", "arguments": {"path": "README.md"}}'


@pytest.mark.parametrize("thought", ["", f"<think>\n{THOUGHT}\n</think>\n\n"])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_an_answer_ends_behind_a_call_beside_its_format(
    model: TextModel, thought: str, at_once: int, truncated: bool
) -> None:
    written = tokens(model, f"{thought}{BARE}")
    open_ = choice(model, hold=CallHold([READ], 1))
    pieces, finished = read(
        open_, [*written, *tokens(model, f"\n{BARE}\nI look.")], at_once=at_once, truncated=truncated
    )
    assert (open_.has_stopped, open_.tokens, open_.n_repaired) == (True, written, 1)
    assert (finished.reason, finished.content) == (FinishReason.TOOL_CALLS, "")
    assert finished.reasoning.strip() == (THOUGHT if thought else "")
    (call,) = finished.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("read_file", {"path": "README.md"})
    assert [piece.id for piece in pieces if isinstance(piece, ToolCallPiece)] == [call.id]
    message = open_.message()
    assert message is not None
    assert [each["id"] for each in message["tool_calls"]] == [call.id]


@pytest.mark.parametrize("at_once", [1, 1000])
def test_calls_in_the_format_go_on_behind_those_beside_it(model: TextModel, at_once: int) -> None:
    written = tokens(model, f"{BARE}\n{CALL}\n{CALL}<|im_end|>")
    open_ = choice(model, hold=CallHold([READ]))
    pieces, finished = read(open_, written, at_once=at_once)
    assert [json.loads(call.arguments)["path"] for call in finished.tool_calls] == [
        "README.md",
        *["END of README.md"] * 2,
    ]
    assert [piece.index for piece in pieces if isinstance(piece, ToolCallPiece) and piece.id] == [0, 1, 2]
    assert (finished.reason, open_.n_repaired) == (FinishReason.TOOL_CALLS, 1)
    assert finished.content.strip() == ""


def test_a_call_beside_the_format_that_a_limit_cuts_off_is_text(model: TextModel) -> None:
    open_ = choice(model, hold=CallHold([READ], 1))
    _, finished = read(open_, tokens(model, BARE[:-9]), truncated=True)
    assert (finished.reason, finished.content, finished.tool_calls) == (FinishReason.LENGTH, BARE[:-9], ())


def test_half_a_character_at_the_end(model: TextModel) -> None:
    ids = tokens(model, "Hi é日")
    cut = next(n for n in range(len(ids), 0, -1) if "\ufffd" in model.detokenize(ids[:n]).decode(errors="replace"))
    pieces, finished = read(choice(model), ids[:cut], truncated=True)
    assert finished.content.startswith("Hi")
    assert "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)) == finished.content


def with_logprobs(ids: Sequence[int]) -> list[TokenEvent]:
    return [TokenEvent(token, at, ((token, -0.5), (token, -0.5))) for at, token in enumerate(ids)]


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (f"<think>\n{THOUGHT}\n</think>\n\nI look at ENDs.", "I look at ENDs."),
        ("I look at ENDs.", "I look at ENDs."),
        ("I look. ENDLESS more", "I look. "),
        (f"<think>\n{THOUGHT}\n</think>\n\nt日é\U0001f642", "t日é\U0001f642"),
    ],
)
def test_logprobs_join_to_the_content(model: TextModel, written: str, content: str) -> None:
    pieces, finished = read(choice(model, "ENDLESS", logprobs=True), with_logprobs(tokens(model, written)))
    shown = [entry for piece in pieces if isinstance(piece, ContentPiece) for entry in piece.logprobs]
    assert shown == list(finished.logprobs)
    assert b"".join(entry.chosen.bytes for entry in shown).decode() == finished.content == content
    assert all(entry.chosen.logprob == -0.5 and entry.chosen.bytes for entry in shown)


def test_a_text_has_a_logprob_a_token_the_end_token_too(model: TextModel) -> None:
    end = next(iter(model.info.eog))
    ids = [*model.tokenize("One two ENDLESS three"), end]
    reading = ChoiceDecoder(
        0,
        PlainReading(model),
        stops=["ENDLESS th"],
        ends=model.info.eog,
        logprobs=LogprobReader(model, 1),
        keeps_all_logprobs=True,
    )
    _, finished = read(reading, with_logprobs(ids))
    assert finished.content == "One two "
    assert b"".join(entry.chosen.bytes for entry in finished.logprobs) == b"One two "
    assert [entry.chosen.token for entry in finished.logprobs] == reading.tokens
    whole = ChoiceDecoder(
        0,
        PlainReading(model),
        stops=[],
        ends=model.info.eog,
        logprobs=LogprobReader(model, 1),
        keeps_all_logprobs=True,
    )
    _, finished = read(whole, with_logprobs(ids))
    assert [entry.chosen.token for entry in finished.logprobs] == ids
    assert finished.logprobs[-1].chosen.bytes == b""
