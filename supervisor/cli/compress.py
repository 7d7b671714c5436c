"""`luce compress`: the parts of a text that matter to a question, or to its own end, in the text's own words.

With an engine of its own, or with a server that runs. Must not know how parts are chosen.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luce.protocol import Compress, PinSpan
from luce.supervisor.cli.engine_session import engine_session
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, EXIT_REFUSED, Failure, run_async
from luce.supervisor.cli.input import STDIN, read_file, read_stdin, utf8, utf8_argument
from luce.supervisor.cli.model_files import check_file, read_model, text_model
from luce.supervisor.cli.numbers import Real
from luce.supervisor.cli.options import NOT_NEGATIVE, click_option, model_option, read_binary
from luce.supervisor.cli.output import say_tables, write_output
from luce.supervisor.cli.progress import amount
from luce.supervisor.cli.server_client import ServerError
from luce.supervisor.cli.servers import engine_arguments, named_server
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import Compressed, EngineDied
from luce.supervisor.text.excerpt import QUESTION_BEGINS, SEPARATOR, Excerpt, ExcerptTask

if TYPE_CHECKING:
    from rich.console import Console

_PATH = "/compress"
_KEY_VARIABLE = "LUCE_API_KEY"
_DEFAULT_SHARE = 0.2
_CTX = 8192  # of the engine of its own: nothing is generated, so that it need not hold the text
_LOOK_S = 0.5  # how often it is asked how far it is
_SERVER_S = 3600.0  # for a server to answer: it says nothing meanwhile

_EPILOG = """\b
Examples:
  luce compress report.txt --prefill-scorer small.gguf --question "Who signed the contract?"
  luce compress report.txt --prefill-scorer small.gguf --tokens 4000 >short.txt
  git log -p | luce compress - --url http://127.0.0.1:8080 --share 0.1 --question "Why is the cache cleared?"
  luce compress notes.md --prefill-scorer small.gguf --json | jq .parts

\b
The scorer is a small model of any family, with 0.5 to 1 billion parameters. It reads the text and then the question.
The parts with the most attention are kept, in pieces of 64 tokens, and always the text's beginning and end.

\b
Exit codes: 0 done, 1 refused, 2 the start failed, 64 bad arguments, 70 the engine failed.
"""


@dataclass(frozen=True, slots=True)
class Result:
    content: str
    tokens: list[int]
    parts: list[tuple[int, int]]
    n_in: int
    seconds: float


@click.command("compress", epilog=_EPILOG)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--prefill-scorer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The small model that chooses, a GGUF file. This or --url has to be there.",
)
@click.option("--url", metavar="URL", help="Use this server instead of starting an engine; it needs a scorer.")
@click.option(
    "--question", metavar="TEXT", help="The question that the kept parts must matter for. Default: the text's own end."
)
@click.option(
    "--share",
    type=Real(min=0, max=1, min_open=True),
    metavar="SHARE",
    help=f"Share of the text's tokens to keep. Default: {_DEFAULT_SHARE}.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="Maximum number of tokens to keep, instead of --share.",
)
@click.option(
    "--separator", default=SEPARATOR, show_default=True, metavar="TEXT", help="Text in place of the parts left out."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, tokens, parts, figures.")
@model_option
@click_option("threads")
@click_option("gpu_layers")
@click.option(
    "--draft-gpu-layers",
    type=NOT_NEGATIVE,
    metavar="N",
    help="Layers of the scorer on the GPU; 0: none. Default: all, where there is a GPU.",
)
@click_option("log_level")
@click.pass_context
def command(context: click.Context, /, file: Path, **values: Any) -> int:
    """Shorten FILE, a text in UTF-8 (- is stdin), to the parts that matter for a question, and write them to stdout.

    Kept parts stay word for word. A long text then fits a small context, or a prompt is read sooner. --model names the
    model whose tokens are counted.
    """
    engine = engine_arguments(context)
    if values["url"] is None and values["prefill_scorer"] is None:
        raise click.UsageError("name the small model that chooses (--prefill-scorer FILE), or a server (--url)")
    if values["url"] is not None and engine:
        raise click.UsageError(f"{engine[0]} is for an engine of its own: leave --url out")
    if values["share"] is not None and values["tokens"] is not None:
        raise click.UsageError("--share and --tokens say the same in two ways: give one of them")
    for option in ("question", "separator"):
        utf8_argument(values[option] or "", f"--{option}")
    source, data = (STDIN, read_stdin()) if str(file) == "-" else (str(file), read_file(file))
    content = utf8(data, source)
    if not content:
        raise Failure(f"{source} is empty: there is nothing to choose from", EXIT_BAD_ARGS)
    result = _of_engine(content, values) if values["url"] is None else _of_server(content, values)
    _show(result, source, as_json=values["as_json"])
    return EXIT_OK


def _of_server(content: str, values: Mapping[str, Any]) -> Result:
    body: dict[str, Any] = {"content": content, "question": values["question"], "separator": values["separator"]}
    if values["tokens"] is None:
        body["share"] = values["share"] or _DEFAULT_SHARE
    else:
        body["max_tokens"] = values["tokens"]
    began_s = time.monotonic()
    try:
        with amount("the server reads the text", None):
            said = named_server("--url", values["url"], _KEY_VARIABLE).ask(_PATH, body, _SERVER_S)
    except ServerError as error:
        raise Failure(str(error), EXIT_REFUSED) from None
    try:
        parts = [(int(begin), int(end)) for begin, end in said["parts"]]
        tokens = [int(token) for token in said["tokens"]]
        kept, n_in = str(said["content"]), int(said["input_tokens"])
    except (KeyError, TypeError, ValueError):
        raise Failure("the server's answer is none to a text that was to be compressed", EXIT_REFUSED) from None
    return Result(kept, tokens, parts, n_in, time.monotonic() - began_s)


def _of_engine(content: str, values: Mapping[str, Any]) -> Result:
    model, scorer = read_model(values["model"]), values["prefill_scorer"]
    check_file(scorer, "--prefill-scorer")
    given = {name: values[name] for name in ("threads", "gpu_layers", "draft_gpu_layers")}
    given["log_level"] = values["log_level"] or "warn"  # people look at this output
    config = DaemonConfig(model=model, prefill_scorer=scorer, lanes=1, ctx=_CTX, draft_max=0, **given)
    binary = read_binary()
    with text_model(model) as text:
        ids = text.tokenize(content)
        question = text.tokenize(f"{QUESTION_BEGINS}{values['question']}") if values["question"] else []
        n_wanted = values["tokens"] or max(round((values["share"] or _DEFAULT_SHARE) * len(ids)), 1)
        task = ExcerptTask.of(ids, question, n_wanted, ())
        found: list[tuple[Compressed, float]] = []
        run_async(lambda: _run(binary, config, task, found))
        (compressed, seconds) = found[0]
        excerpt = Excerpt.of(task, compressed.parts, text, separator=values["separator"], given=content)
    n_out = len(excerpt.tokens)
    if values["tokens"] is not None and n_out > values["tokens"]:
        raise Failure(f"--tokens {values['tokens']}: the text's beginning and end alone have {n_out}", EXIT_BAD_ARGS)
    return Result(excerpt.content, list(excerpt.tokens), list(excerpt.parts), excerpt.n_text, seconds)


async def _run(binary: Path, config: DaemonConfig, task: ExcerptTask, found: list[tuple[Compressed, float]]) -> int:
    keep = tuple(PinSpan(begin, end) for begin, end in task.keep)
    async with engine_session(binary, config) as client:
        began_s = time.monotonic()
        with amount("reading the text", len(task.prompt)) as note:
            looking = asyncio.create_task(_look(client, note), name="progress")
            try:
                compressed = await client.compress(Compress(task.share, task.prompt, keep=keep))
            finally:
                looking.cancel()
                await asyncio.wait([looking])
        found.append((compressed, time.monotonic() - began_s))
    return EXIT_OK


async def _look(client: EngineClient, note: Callable[[int], None]) -> None:
    """The scorer's own tokens: near enough, where it cuts texts otherwise."""
    with suppress(EngineDied):  # which who waits for the parts hears too
        while True:
            await asyncio.sleep(_LOOK_S)
            said = dict((await client.status(_SERVER_S)).fields)
            note(int(said.get("prefill_scored", "0")))


def _show(result: Result, source: str, *, as_json: bool) -> None:
    if as_json:
        figures = {
            "content": result.content,
            "tokens": result.tokens,
            "parts": result.parts,
            "input_tokens": result.n_in,
            "output_tokens": len(result.tokens),
            "seconds": round(result.seconds, 3),
        }
        write_output((json.dumps(figures, ensure_ascii=False) + "\n").encode())
        return
    write_output(result.content.encode() + (b"\n" if sys.stdout.isatty() else b""))
    say_tables(lambda console: _print(console, result, source))


def _print(console: Console, result: Result, source: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    n_out = len(result.tokens)
    table = Table(title=escape(source), show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("tokens read", f"{result.n_in:,}")
    table.add_row("kept", f"{n_out:,}")
    table.add_row("of it", f"{n_out / result.n_in:.1%}")
    table.add_row("parts", f"{len(result.parts):,}")
    table.add_row("seconds", f"{result.seconds:.1f}")
    console.print(table)
