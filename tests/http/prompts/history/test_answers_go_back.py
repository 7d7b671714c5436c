"""Whatever a model has answered is taken again, in all four APIs, streamed or not, behind several templates; and the
prompt goes on from the one before. Grammars make the model's answers hostile; the official SDKs send them back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.http.prompts.history.clients import CLIENTS, Asked, Client, Sdks
from tests.http.serving import CALL_S, Server

N_SHORT, N_FULL = 120, 10_000
N_AT_ONCE = 2 * len(CLIENTS)  # each of them streams, and does not

# What models write that break off, loop, or spell what they should not.
_PIECES = st.sampled_from(
    [
        "Yes.", " ", "\n", "\t", "\ufffd", "é", "🤔", '"', "'", "\\", "\\u", "\\ud83d", "{", "}", "<|im_end|>",
        "<|im_start|>user\n", "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "[TOOL_CALLS]",
        "<|channel|>final<|message|>", "<|tool_call>call:f{", "```", "{{ x }}", "null", "NaN",
    ]
)  # fmt: skip
_TEXTS = st.lists(_PIECES, max_size=3).map("".join) | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"),  # which no grammar can name
    max_size=3,
)
_NUMBERS = st.sampled_from(["-0", "1.50", "1e999", "-1e999", "NaN", "-Infinity", "18446744073709551615", "1" * 30])
_STRINGS = st.sampled_from(
    ['"x"', '"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"a\tb"', '"<|im_end|>"', '"\ufffd"', '"\\\\ud83d"', "'x'"]
)
_DEEP = st.sampled_from([5, 101]).map(lambda n: "[" * n + "]" * n)
_VALUES = _NUMBERS | _STRINGS | _DEEP | st.sampled_from(["true", "None", '{"b": {}}', "[1,]", ""])
_OBJECTS = st.lists(_VALUES, max_size=2).map(
    lambda values: "{" + ", ".join(f'"k{n}": {value}' for n, value in enumerate(values)) + "}"
)
_ARGUMENTS = _OBJECTS | _VALUES | _TEXTS


@dataclass(frozen=True)
class Format:
    """How a template's models write, and what of a prompt the next one keeps."""

    template: str
    """llama.cpp's."""
    call: str = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    thought: str = "%s</think>\n\n"
    n_opening: int = 2
    """Tokens at a prompt's end that may become others: of its opening of an answer, where that is left out of earlier
    ones, and those that what follows joins, since its marks are letters to the model's vocabulary."""
    strips_reasoning: bool = False
    """Of a chain of calls, once the user asks again."""
    moves_tools: bool = False
    """To the latest question: there the prompt differs from the one before."""


FORMATS = {
    "hermes": Format("Qwen-Qwen2.5-7B-Instruct"),
    "qwen": Format(
        "Qwen3.5-4B",
        "<tool_call>\n<function=f>\n<parameter=k0>\n%s\n</parameter>\n</function>\n</tool_call>",
        n_opening=5,
        strips_reasoning=True,
    ),
    "nemo": Format(
        "mistralai-Mistral-Nemo-Instruct-2407",
        '[TOOL_CALLS][{"name": "f", "arguments": %s, "id": "123456789"}]',
        moves_tools=True,
    ),
    "gpt-oss": Format(
        "openai-gpt-oss-120b",
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>%s<|call|>",
        "<|channel|>analysis<|message|>%s<|end|>",
        strips_reasoning=True,
    ),
    "gemma": Format(
        "google-gemma-4-31B-it",
        "<|tool_call>call:f{k0:%s}<tool_call|>",
        "<|channel>thought\n%s<channel|>",
        n_opening=8,
        strips_reasoning=True,
    ),
}


@dataclass(frozen=True)
class Turn:
    written: str
    n_most: int
    """Tokens: a limit may cut it off, also within a character."""
    speaks: bool
    """The user says something behind results, too."""
    begun: str = ""
    """By the client. The answer goes on from it, and the next one from that answer."""


@st.composite
def turns(draw: st.DrawFn, format_: Format) -> Turn:
    calls = draw(st.lists(_ARGUMENTS.map(lambda text: format_.call % text), max_size=2))
    parts = [draw(st.just("") | _TEXTS.map(lambda text: format_.thought % text)), draw(_TEXTS), "\n".join(calls)]
    written = "".join(parts) + draw(st.just("") | _TEXTS)
    begun = draw(st.just("") | st.sampled_from(["I am", "Yes, ", "```\n"]))
    return Turn(written or "Yes.", draw(st.just(120) | st.integers(1, 30)), draw(st.booleans()), begun)


def grammar(text: str) -> str:
    """Of this text alone."""
    letters = "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08X}" for c in text)
    return f'root ::= "{letters}"'


_numbers = itertools.count()


async def converse(client: Client, turns: Sequence[Turn], format_: Format, *, streams: bool) -> None:
    client.say(f"I am client {next(_numbers)}.")  # two with one history might be given each other's answers
    n_before = n_asked = 0
    speaks, goes_on = True, False
    for turn in [*turns, Turn("Done.", 9, speaks=False)]:
        n_kept = n_asked if speaks and format_.strips_reasoning else n_before
        was_begun = goes_on  # by the answer before: nobody begins another one behind it
        goes_on = not was_begun and turn.begun != "" and client.begin(turn.begun)
        if was_begun or turn.begun:
            n_kept = 0
        try:
            counts = await client.answer(Asked(grammar(turn.written), turn.n_most, streams))
            assert format_.moves_tools or counts.n_cached >= n_kept - format_.n_opening, (counts, n_kept)
        except Exception as error:
            error.add_note(f"{type(client).__name__}, {streams=}, at {turn} of {turns}")
            raise
        # Templates open an answer in other tokens than one that they go on from, or that is told later.
        n_before = 0 if was_begun or turn.begun else counts.n_prompt
        n_asked = n_before if speaks else n_asked
        if goes_on:
            continue
        speaks = not client.give_results("The result.") or turn.speaks
        if speaks:
            client.say("Go on.")


@pytest.fixture(params=sorted(FORMATS))
def format_(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


@pytest.fixture
def sdks(format_: Format, test_models: Path, llama_templates_dir: Path) -> Iterator[tuple[asyncio.Runner, Sdks]]:
    """Of a server with this template, and the loop that they belong to. Its model has no recurrent state, so that the
    cache serves all that two prompts share."""
    template = llama_templates_dir / f"{format_.template}.jinja"
    server = Server(test_models / "qwen3.gguf", {"chat_template": template, "ctx": 8192, "pool": 65536})
    try:
        server.start()
        with asyncio.Runner() as runner:
            sdks = Sdks.of(server.url, CALL_S)
            yield runner, sdks
            runner.run(sdks.close())
    finally:
        server.stop()


def test_whatever_was_answered_is_taken_again(sdks: tuple[asyncio.Runner, Sdks], format_: Format, full: bool) -> None:
    runner, clients_of = sdks
    n_batches = -(-(N_FULL if full else N_SHORT) // (N_AT_ONCE * len(FORMATS)))
    said = st.lists(turns(format_), min_size=1, max_size=2)

    async def converse_all(conversations: Sequence[Sequence[Turn]]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, conversation in enumerate(conversations):
                client = CLIENTS[number % len(CLIENTS)](clients_of)
                group.create_task(converse(client, conversation, format_, streams=number < len(CLIENTS)))

    @settings(
        max_examples=n_batches,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a batch is slow to shrink
        suppress_health_check=list(HealthCheck),
    )
    @given(st.tuples(*[said] * N_AT_ONCE))
    def hold(conversations: Sequence[Sequence[Turn]]) -> None:
        runner.run(converse_all(conversations))

    hold()
