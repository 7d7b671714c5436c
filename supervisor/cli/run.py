"""`luce run`: a prompt in, text out as it comes. The smallest program that puts text, engine and answer together."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from luce.protocol import Generate, GenerateOk
from luce.supervisor.cli.engine_session import engine_session, events_within
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, Failure, run_async, say
from luce.supervisor.cli.input import STDIN, read_stdin, utf8, utf8_argument
from luce.supervisor.cli.model_files import text_model
from luce.supervisor.cli.options import (
    NOT_NEGATIVE,
    engine_options,
    read_binary,
    read_engine_config,
    read_sampling,
    sampling_options,
)
from luce.supervisor.cli.output import OutputPipe
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.generation import Generation, TokenEvent
from luce.supervisor.http.answering.answer_events import (
    ChoiceFinished,
    ContentPiece,
    Piece,
    ReasoningPiece,
    expert_fields,
    speculation_fields,
)
from luce.supervisor.http.answering.choice_decoder import ChatReading, ChoiceDecoder, PlainReading
from luce.supervisor.text import TextModel


@dataclass(slots=True)
class Figures:
    """What came, and when."""

    first_token_s: float | None = None
    final: GenerateOk | None = None


@click.command("run")
@click.argument("prompt")
@engine_options
@click.option(
    "-n", "n", type=NOT_NEGATIVE, default=256, show_default=True, metavar="N", help="Maximum tokens to generate."
)
@click.option("--chat", is_flag=True, help="Treat PROMPT as a user's message and apply the model's chat template.")
@click.option("--system", metavar="TEXT", help="With --chat: the system message.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before this text; may be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Continue to -n after an end-of-text token.")
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end: ids, text, timings.")
def command(prompt: str, **values: Any) -> int:
    """Generate text for PROMPT (- reads it from stdin) and write it to stdout as it comes.

    With --chat the model's reasoning goes to stderr. Temperature 0, the default, always takes the most likely token;
    set --temp and --seed for other answers.
    """
    if values["system"] is not None and not values["chat"]:
        raise click.UsageError("--system belongs to --chat")
    prompt = utf8(read_stdin(), STDIN) if prompt == "-" else utf8_argument(prompt, "PROMPT")
    for option, text in [("--system", values["system"] or ""), *(("--stop", text) for text in values["stop"])]:
        utf8_argument(text, option)
    if values["log_level"] is None:
        values["log_level"] = "warn"  # people look at this output
    config = read_engine_config(values, lanes=1)
    binary = read_binary()
    with text_model(config.model) as text:
        decoder, prompt_ids = _prepare(text, prompt, values)
        if not prompt_ids:
            raise Failure("PROMPT has no tokens: give the model a text to go on from", EXIT_BAD_ARGS)
        request = Generate(
            prompt=prompt_ids,
            n_generate=values["n"],
            ignore_eos=values["ignore_eos"],
            sampling=read_sampling(values),
        )
        return run_async(lambda: _run(binary, config, request, decoder, values["as_json"]))


def _prepare(text: TextModel, prompt: str, values: Mapping[str, Any]) -> tuple[ChoiceDecoder, tuple[int, ...]]:
    stops = values["stop"]
    if not values["chat"]:
        decoder = ChoiceDecoder(0, PlainReading(text), stops=stops, ends=frozenset(), logprobs=None)
        return decoder, tuple(text.tokenize(prompt, add_special=True, parse_special=True))
    messages = [{"role": "user", "content": prompt}]
    if values["system"] is not None:
        messages.insert(0, {"role": "system", "content": values["system"]})
    chat = text.render(messages)
    own, ends = chat.additional_stops, text.info.eog
    return ChoiceDecoder(0, ChatReading(chat), stops=stops, own_stops=own, ends=ends, logprobs=None), tuple(chat.tokens)


async def _run(binary: Path, config: DaemonConfig, request: Generate, decoder: ChoiceDecoder, as_json: bool) -> int:
    figures = Figures()
    async with OutputPipe() as output, engine_session(binary, config) as client:
        asked_s = time.monotonic()
        async with await client.generate(request) as generation:
            async for event in events_within(generation):
                if isinstance(event, GenerateOk):
                    figures.final = event
                elif isinstance(event, TokenEvent):
                    if figures.first_token_s is None:
                        figures.first_token_s = time.monotonic() - asked_s
                    shown = await _take(event, decoder, generation)
                    if not as_json:
                        await output.write(shown.encode())
        pieces, answer = decoder.finish(truncated=True)
        rest = _shown(pieces) + "".join(f"\n{call.name}({call.arguments})" for call in answer.tool_calls)
        report = _report(request, decoder, answer, figures) if as_json else _ending(rest)
        await output.write(report.encode())
        output.release()
    return EXIT_OK


async def _take(token: TokenEvent, decoder: ChoiceDecoder, generation: Generation) -> str:
    had_stopped = decoder.has_stopped
    shown = _shown(decoder.feed([token]))
    if decoder.has_stopped and not had_stopped:
        await generation.cancel()
    return shown


def _shown(pieces: Sequence[Piece]) -> str:
    """What goes to stdout; reasoning goes to stderr, tool calls are shown at the end."""
    for piece in pieces:
        if isinstance(piece, ReasoningPiece):
            say(piece.text, nl=False)
    return "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece))


def _ending(rest: str) -> str:
    # A prompt of the shell begins on its own line; a file gets exactly the text.
    return rest + "\n" if sys.stdout.isatty() else rest


def _report(request: Generate, decoder: ChoiceDecoder, answer: ChoiceFinished, figures: Figures) -> str:
    final = figures.final
    assert final is not None
    return (
        json.dumps(
            {
                "text": answer.content,
                "reasoning": answer.reasoning,
                "prompt_ids": list(request.prompt),
                "ids": decoder.tokens,
                "stop": "stop" if decoder.has_stopped else final.stop.value,
                "timings": {
                    "first_token_s": figures.first_token_s,
                    "prefill_s": final.prefill_s,
                    "decode_s": final.decode_s,
                    "decode_tokens_per_s": final.decode_tokens_per_s,
                    "n_reused": final.n_reused,
                },
                "speculation": None if final.speculation is None else speculation_fields(final.speculation),
                "experts": None if final.experts is None else expert_fields(final.experts),
            },
            ensure_ascii=False,
            indent=2,
        )
        + "\n"
    )
