"""`luce calibrate`: by which attention layer a model finds what left its cache: the layer for `--kv-offload-layer`.

Starts the daemon once for each layer with a pool far smaller than the texts, asks for facts in them, and counts the
answers that tell them. Knows the daemon's options and its ready line; not how pages are scored.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from luce.protocol import Generate
from luce.supervisor.cli.engine_session import engine_session, events_within
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, Failure, run_async, say
from luce.supervisor.cli.model_files import text_model
from luce.supervisor.cli.options import engine_options, read_binary, read_engine_config
from luce.supervisor.cli.output import print_tables, write_output
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.text import TextModel
from luce.supervisor.text.errors import TemplateError

_OWNERS = ("red fox", "night guard", "old captain", "tall gardener", "young baker", "grey owl")
_FILLER = (
    "The morning train was late again because of the rain.",
    "Nobody in the village remembered who had planted the old oak.",
    "She put the letter back into the drawer and closed the window.",
    "The museum opens at nine and closes well before the evening.",
    "A small boat lay at the pier and moved with the waves.",
    "They counted the chairs twice and still one was missing.",
)
_POOL = 640  # tokens; the texts are some five times as long
_N_TEXT_TOKENS = 3000
_N_ANSWER = 12  # tokens, for a number of five digits
_STATUS_TIMEOUT_S = 60.0
_MOST_LAYERS = 8  # that are tried unasked


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt whose answer has to hold `code`."""

    prompt: tuple[int, ...]
    code: str


@dataclass(slots=True)
class Trials:
    usual: int = 0
    """The layer that is taken unasked."""
    found: dict[int, int] = field(default_factory=dict)
    """How many facts each layer finds."""


@click.command("calibrate")
@engine_options
@click.option(
    "--layer",
    "layers",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Test only this layer; may be repeated. Default: all layers, or eight of the later two thirds and the"
    " default layer.",
)
@click.option(
    "--texts",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    metavar="N",
    help="Number of texts, with six facts each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def command(layers: tuple[int, ...], texts: int, as_json: bool, **values: Any) -> int:
    """Find the best layer for --kv-offload-layer: the one whose attention finds the most facts of a long text when the
    pool holds a fifth of it. Takes some minutes per layer on a large model.
    """
    if values["log_level"] is None:
        values["log_level"] = "warn"
    shape = {"lanes": 1, "ctx": 2 * _N_TEXT_TOKENS, "ubatch": 64, "pool": None, "kvflash": _POOL,
             "kvflash_policy": "query"}  # fmt: skip
    config = read_engine_config(values, **shape)
    binary = read_binary()
    with text_model(config.model) as text:
        questions = make_questions(text, texts, random.Random(1))  # noqa: S311  no secrets
        trials = Trials()
        status = run_async(lambda: _try_layers(binary, config, layers, text, questions, trials))
    if status != EXIT_OK:
        return status
    found = trials.found
    best = best_layer(found, trials.usual)
    if as_json:
        report = {"layer": best, "asked": len(questions), "found": {str(layer): n for layer, n in found.items()}}
        write_output((json.dumps(report, indent=2) + "\n").encode())
    else:
        _print_table(found, len(questions), best)
    return EXIT_OK


def best_layer(found: Mapping[int, int], usual: int) -> int | None:
    """Of the layers that found most the one that is taken unasked, else the last one; None if nobody found anything."""
    most = max(found.values(), default=0)
    if most == 0:
        return None
    best = [layer for layer, n in found.items() if n == most]
    return usual if usual in best else max(best)


def layers_to_try(known: Sequence[int], usual: int) -> list[int]:
    """All, or as many of the later two thirds as are tried, the last one among them, and the usual one."""
    if len(known) <= _MOST_LAYERS:
        return list(known)
    later = known[min(len(known) // 3, len(known) - _MOST_LAYERS) :]
    return sorted({later[round(i * (len(later) - 1) / (_MOST_LAYERS - 1))] for i in range(_MOST_LAYERS)} | {usual})


def make_questions(text: TextModel, n_texts: int, rng: random.Random) -> list[Question]:
    """In each text a fact about every owner, at places all over it, and a question for each."""
    sentence_tokens = sum(len(text.tokenize(sentence)) for sentence in _FILLER) / len(_FILLER)
    questions = []
    for _ in range(n_texts):
        sentences = [rng.choice(_FILLER) for _ in range(int(_N_TEXT_TOKENS / sentence_tokens))]
        codes = {owner: str(rng.randrange(10000, 99999)) for owner in _OWNERS}
        for owner, code in codes.items():
            sentences.insert(rng.randrange(len(sentences)), f"The access code of the {owner} is {code}.")
        for owner, code in codes.items():
            asked = f"{' '.join(sentences)}\n\nWhat is the access code of the {owner}?"
            questions.append(Question(_prompt(text, asked, f"The access code of the {owner} is"), code))
    return questions


def _prompt(text: TextModel, asked: str, answer: str) -> tuple[int, ...]:
    """The answer's first words are given, so that models without a chat template, and those that think, answer too."""
    try:
        chat = text.render([{"role": "user", "content": asked}])
    except TemplateError:
        return tuple(text.tokenize(f"{asked}\n{answer}", add_special=True))
    return (*chat.tokens, *text.tokenize(answer))


async def _try_layers(
    binary: Path,
    config: DaemonConfig,
    asked: Sequence[int],
    text: TextModel,
    questions: Sequence[Question],
    trials: Trials,
) -> int:
    async with engine_session(binary, config) as client:
        trials.usual, known = await _layers_of(client)
    for layer in asked or layers_to_try(known, trials.usual):
        async with engine_session(binary, replace(config, kvflash_layer=layer)) as client:
            trials.found[layer] = sum([await _tells(client, text, question) for question in questions])
        say(f"layer {layer}: {trials.found[layer]} of {len(questions)} facts found")
    return EXIT_OK


async def _layers_of(client: EngineClient) -> tuple[int, list[int]]:
    """The one that is taken unasked, and all."""
    fields = dict((await client.status(_STATUS_TIMEOUT_S)).fields)
    if "kvflash_layers" not in fields:
        raise Failure("this model's attention cannot be asked which pages matter: see the log above", EXIT_REFUSED)
    return int(fields["kvflash_layer"]), [int(layer) for layer in fields["kvflash_layers"].split(",")]


async def _tells(client: EngineClient, text: TextModel, question: Question) -> bool:
    async with await client.generate(Generate(prompt=question.prompt, n_generate=_N_ANSWER)) as generation:
        tokens = [event.token async for event in events_within(generation) if isinstance(event, TokenEvent)]
    return question.code in text.detokenize(tokens).decode(errors="replace")


def _print_table(found: Mapping[int, int], n_asked: int, best: int | None) -> None:
    from rich.table import Table

    table = Table(title="Facts found by the queries of a layer", title_justify="left")
    for heading in ("layer", "found"):
        table.add_column(heading, justify="right")
    for layer, n in found.items():
        table.add_row(str(layer), f"{n} of {n_asked}", style="bold" if layer == best else None)
    print_tables(lambda console: console.print(table))
    advice = "none finds any of them: --kv-offload-policy lru" if best is None else f"use --kv-offload-layer {best}"
    say(advice)
