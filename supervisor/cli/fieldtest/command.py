"""`luce fieldtest`: what does this machine do with this model? The command line: reads, starts, writes the files."""

from __future__ import annotations

import re
import signal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, EXIT_UNFINISHED, Failure, say
from luce.supervisor.cli.fieldtest.volume import VOLUMES
from luce.supervisor.cli.numbers import Real
from luce.supervisor.cli.options import engine_options, read_binary, read_engine_config
from luce.supervisor.cli.output import write_output
from luce.supervisor.cli.servers import end_by_signals, engine_arguments
from luce.supervisor.cli.whole_file import write_file

if TYPE_CHECKING:
    from luce.supervisor.cli.fieldtest.report import FieldReport

_EPILOG = """\b
What is measured, one part after the other:
  exactness  answers from the cache, in lanes and with drafts,
             compared with answers computed from the start, alone
  service    load to ready; prompts and answers behind short and long texts;
             several answers at once; the memory of the processes
  agent      a loop with tools: tokens read per turn, its time to the first token
             compared with a cold prompt, calls that fit their schemas
  drafts     an edit, a chat and JSON with drafts and without

\b
A first measurement chooses the volume that fits --minutes. The options are those of luce serve: use the ones that you
serve with. Sixteen simultaneous answers need --lanes 16.

\b
The files contain: processor, memory, GPUs, driver; the model's file name, hash, architecture and number formats; the
engine's options; the figures. They contain no names of user or machine, paths, addresses or serial numbers. Read them
before you send them (see docs/field).

\b
Examples:
  luce fieldtest --model m.gguf
  luce fieldtest --model m.gguf --draft d.gguf --minutes 10 --out reports
  luce fieldtest --model m.gguf --note "nothing else ran" --note "power limit 250 W"
  luce fieldtest --check fieldtest-m-rtx-3090-2026-11-27.json

\b
Exit codes: 0 complete, 1 nothing was measured or --check found no valid report, 2 the start failed, 3 the time ended
early, 64 bad arguments, 130 Ctrl-C. With 3 and 130 the files contain the results so far.
"""


@click.command("fieldtest", epilog=_EPILOG)
@click.option("--minutes", type=Real(min=0), default=30.0, show_default=True, metavar="N",
              help="Choose a volume that fits this time, and stop then.")  # fmt: skip
@click.option("--volume", type=click.Choice([volume.name for volume in VOLUMES]),
              help="Volume of measurements. Default: as much as fits --minutes.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), metavar="DIR",
              help="Folder for fieldtest-MODEL-GPU-DATE.json and .md. Default: the current folder.")  # fmt: skip
@click.option("--note", "notes", multiple=True, metavar="TEXT",
              help="A note on the machine for readers. May be repeated.")  # fmt: skip
@click.option("--check", "checked", type=click.Path(path_type=Path), metavar="FILE",
              help="Only check whether this JSON file is a valid report.")  # fmt: skip
@engine_options
@click.pass_context
def command(context: click.Context, /, **values: Any) -> int:
    """Measure this machine with a model in 10 to 30 minutes, and write a report to publish: a Markdown page and a JSON
    file for docs/field.
    """
    if values["checked"] is not None:
        return _check(values["checked"])
    from luce.supervisor.cli.fieldtest.run import FieldRun

    out: Path = values["out"]
    out.mkdir(parents=True, exist_ok=True)
    arguments = engine_arguments(context)
    if values["log_level"] is None:
        values["log_level"] = "error"
    end_by_signals()
    run = FieldRun(read_binary(), read_engine_config(values), arguments, values["minutes"], values["volume"])
    run.go()
    code = EXIT_OK
    if run.ended:
        code = 128 + signal.SIGINT if run.ended == run.TOLD_TO_STOP else EXIT_UNFINISHED
    if run.n_done == 0:
        say(f"luce fieldtest: {run.ended or 'every part failed'} before anything was measured")
        return code or EXIT_REFUSED
    _write(run.report(values["notes"]), out)
    return code


def _write(report: FieldReport, out: Path) -> None:
    """Whole or not at all, and beside earlier ones of the day. Raises Failure."""
    from luce.supervisor.cli.fieldtest.markdown import page

    stem = _file_stem(report)
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    path = next(path for name in names if not (path := out / f"{name}.json").exists())
    write_file(path, report.to_json(), "--out")
    write_file(path.with_suffix(".md"), page(report).encode(), "--out")
    write_output(f"{path}\n{path.with_suffix('.md')}\n".encode())


def _file_stem(report: FieldReport) -> str:
    gpu = report.machine.gpus[0].name if report.machine.gpus else "cpu"
    return "-".join(["fieldtest", _word(Path(report.model.file).stem), _word(gpu), report.day])


def _word(text: str) -> str:
    """For a file's name."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unnamed"


def _check(path: Path) -> int:
    from luce.supervisor.cli.fieldtest.report import ReportError, read_report

    try:
        report = read_report(path)
    except ReportError as error:
        raise Failure(str(error), EXIT_REFUSED) from None
    gpu = report.machine.gpus[0].name if report.machine.gpus else report.machine.cpu
    cut = f", cut: {report.ended}" if report.ended else ""
    write_output(f"{path}: a report of {report.model.file} on {gpu}, {report.day}{cut}\n".encode())
    return EXIT_OK
