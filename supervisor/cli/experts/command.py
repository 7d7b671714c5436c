"""`luce experts`: which experts of a mixture are used, and what that is worth. The command line; starts and shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, EXIT_REFUSED, Failure, say
from luce.supervisor.cli.options import engine_options
from luce.supervisor.cli.output import print_tables, write_output

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)

_CALIBRATE_EPILOG = """\b
  luce experts corpus texts.jsonl ~/.claude/projects ~/.codex/sessions --held-back 0.2
  luce experts calibrate --model m.gguf --corpus texts.jsonl --profile m.experts
  luce experts validate --model m.gguf --profile m.experts --corpus texts.held-back.jsonl
  luce serve --model m.gguf --expert-memory 10G --expert-profile m.experts
"""

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the tables.")
_plot = click.option("--plot", type=_PATH, metavar="FILE", help="Draw the result into a PNG, SVG or PDF file.")


def _counting_options(function: F) -> F:
    function = engine_options(function)
    lengths = (
        ("--answer", 64, "Tokens generated after each text."),
        ("--tokens", 4096, "Maximum tokens read of each text."),
    )
    for name, default, text in lengths:
        kind = click.IntRange(1, 1 << 24)
        function = click.option(name, type=kind, default=default, show_default=True, metavar="N", help=text)(function)
    help_text = "File of texts made by luce experts corpus."
    return click.option("--corpus", type=_PATH, required=True, metavar="FILE", help=help_text)(function)


@click.group("experts")
def command() -> None:
    """Learn which experts of a mixture your texts use, and see what that is worth, for --expert-profile."""


@command.command("corpus")
@click.argument("out", type=_PATH)
@click.argument("sessions", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option(
    "--held-back",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Share of sessions, for example 0.2, to put into OUT.held-back.jsonl instead; always the same ones.",
)
def corpus(out: Path, sessions: tuple[Path, ...], held_back: float | None) -> int:
    """Make a corpus from SESSIONS, files or folders of Claude Code or Codex: the texts of users, models and tools, one
    session per line of OUT."""
    from luce.supervisor.cli.experts.corpus_file import is_held_back, write_corpus
    from luce.supervisor.cli.experts.sessions import SessionReader, SessionText, find_sessions

    files = find_sessions(sessions)
    behind = out.with_name(f"{out.name.removesuffix('.jsonl')}.held-back.jsonl")
    if {out.resolve(), behind.resolve()} & {file.resolve() for file in files}:
        raise Failure(f"{out} would replace a session: choose another name or folder", EXIT_BAD_ARGS)
    reader = SessionReader()
    found = [session for session in map(reader.read, files) if session.text]
    if not found:
        raise Failure("there is no text in these sessions", EXIT_REFUSED)
    parts: dict[Path, list[SessionText]] = {path: [] for path in ([out] if held_back is None else [out, behind])}
    for session in found:
        parts[behind if held_back is not None and is_held_back(session.name, held_back) else out].append(session)
    for path, texts in parts.items():
        write_corpus(path, texts)
        say(f"{path}: {len(texts)} texts")
    if len(found) < len(files):
        say(f"{len(files) - len(found)} of {len(files)} files have no text of a session")
    for what, n in sorted(reader.left_out.items()):
        say(f"lines left out, {what}: {n}")
    return EXIT_OK


@command.command("calibrate", epilog=_CALIBRATE_EPILOG)
@_counting_options
@click.option("--profile", type=_PATH, required=True, metavar="OUT", help="The profile file to write.")
def calibrate(corpus: Path, answer: int, tokens: int, profile: Path, **values: Any) -> int:
    """Make a profile for --expert-profile: a mixture reads each text of a corpus and answers it, and the used experts
    are counted.

    Texts and answers are counted separately; an answer's use counts ten times. While serving, older uses lose weight,
    and also here if --fit splits the experts: use --cpu-moe then.
    """
    from luce.supervisor.cli.experts.corpus_file import read_corpus
    from luce.supervisor.cli.experts.counting import Lengths, count, counting_config

    lengths = Lengths(tokens, answer)
    config, _ = counting_config(values, lengths)
    counted = count(config, read_corpus(corpus), lengths, keep_as=profile)
    say(f"{profile}: {counted.n_texts} texts, {counted.n_read:,} tokens read and {counted.n_written:,} written")
    return EXIT_OK


@command.command("validate")
@_counting_options
@click.option("--profile", type=_PATH, required=True, metavar="FILE", help="Profile made from other texts.")
@_as_json
@_plot
def validate(
    corpus: Path, answer: int, tokens: int, profile: Path, as_json: bool, plot: Path | None, **values: Any
) -> int:
    """Test a profile with texts that it was not made from: the hit rate of a device that holds the profile's experts,
    compared with the best possible choice and with chance."""
    from luce.supervisor.cli.experts import report
    from luce.supervisor.cli.experts.corpus_file import read_corpus
    from luce.supervisor.cli.experts.counting import Lengths, count, counting_config, load_profile

    pyplot = _pyplot(plot)
    lengths = Lengths(tokens, answer)
    known = load_profile(profile)
    config, layers = counting_config(values, lengths)
    if not known.shape().items() <= layers.items():
        raise Failure(f"{profile} is of another model: it has other layers, or other numbers of experts", EXIT_REFUSED)
    counted = count(config, read_corpus(corpus), lengths)
    if (known.identity, known.shape()) != (counted.profile.identity, counted.profile.shape()):
        raise Failure(f"{profile} is of another model than {config.model}", EXIT_REFUSED)
    say(f"{counted.n_texts} texts, {counted.n_read:,} tokens read and {counted.n_written:,} written")
    if as_json:
        write_output((json.dumps(report.validation_json(known, counted.profile), indent=2) + "\n").encode())
    else:
        print_tables(lambda console: report.print_validation(console, known, counted.profile))
    if plot is not None:
        from luce.supervisor.cli.experts.plot import save_validation

        save_validation(pyplot, known, counted.profile, plot)
    return EXIT_OK


@command.command("show")
@click.argument("profile", type=_PATH)
@_as_json
@_plot
def show(profile: Path, as_json: bool, plot: Path | None) -> int:
    """Show PROFILE: for each layer the effective number of experts, the share of the most used one, and the hit rate
    of a device that holds a part of them."""
    from luce.supervisor.cli.experts import report
    from luce.supervisor.cli.experts.counting import load_profile

    pyplot = _pyplot(plot)
    known = load_profile(profile)
    if as_json:
        write_output((json.dumps(report.profile_json(known), indent=2) + "\n").encode())
    else:
        print_tables(lambda console: report.print_profile(console, profile.name, known))
    if plot is not None:
        from luce.supervisor.cli.experts.plot import save_profile

        save_profile(pyplot, known, plot)
    return EXIT_OK


def _pyplot(plot: Path | None) -> Any:
    """Asked for before anything long is done. Raises Failure."""
    if plot is None:
        return None
    from luce.supervisor.cli.pictures import open_pyplot

    return open_pyplot()
