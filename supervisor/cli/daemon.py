"""`luce-daemon`: checks its arguments and becomes `luced`; with --pipe it is one stage of a shell pipeline instead.

Without --pipe nothing of this program stays in memory: the native daemon takes over its process, its standard streams
and its inherited descriptors.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_START_FAILED, Failure, OutputClosedError, run_command
from luce.supervisor.cli.options import (
    NOT_NEGATIVE,
    click_option,
    engine_options,
    gone_options,
    read_binary,
    read_engine_config,
    read_sampling,
    sampling_options,
)
from luce.supervisor.config import engine_environment

_PIPE_ONLY = (
    "n",
    "text_ids",
    "csv",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "repeat",
    "presence",
    "frequency",
    "ignore_eos",
)

_EPILOG = """\b
Examples:
  luce-daemon --model m.gguf --stream-fd 3 3>tokens.bin
      then on its stdin:   /tmp/prompt.bin 64
                           gen id=1 n=64 prompt=1,2,3 temp=0.8
                           quit
  luce tokenize --model m.gguf FILE | luce-daemon --model m.gguf --pipe -n 64 | luce detokenize --model m.gguf

\b
Exit codes: 0 done, 1 the request was refused, 2 the start failed, 64 bad arguments, 70 the engine failed.
A start that fails writes `err start_failed <reason>` to stdout, --pipe only to stderr.
A --pipe whose reader goes away dies of SIGPIPE (141 in a shell), as cat does.
"""


def _exec_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        binary = read_binary()
        os.execv(binary, [str(binary), "--version"])


@click.command(
    "luce-daemon", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@engine_options
@click_option("embedding")
@click_option("stream_fd")
@click_option("mux")
@click_option("die_with_parent")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_exec_version,
    help="Show the daemon's version and build.",
)
@click.option(
    "--pipe",
    is_flag=True,
    help="Read prompt ids (int32, little endian) from stdin until it ends, write the answer's ids to stdout as they"
    " come, and exit. Replies and the log go to stderr.",
)
@click.option(
    "--tokens", metavar="IDS", help="--pipe with a prompt of these decimal ids, separated by commas, instead of stdin."
)
@click.option(
    "--tokens-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="--pipe with a prompt from this file of decimal ids, separated by commas.",
)
@click.option(
    "-n",
    "--n-predict",
    "n",
    type=NOT_NEGATIVE,
    metavar="N",
    help="With --pipe: maximum tokens to generate. Default: 128.",
)
@click.option("--text-ids", is_flag=True, help="With --pipe: ids are decimal numbers, one per line on stdout.")
@click.option(
    "--csv", is_flag=True, help="With --pipe: the answer's ids are decimal numbers on one line, separated by commas."
)
@click.option("--ignore-eos", is_flag=True, help="With --pipe: continue to -n after an end-of-text token.")
@sampling_options
@gone_options
def command(embedding: Any, stream_fd: int | None, mux: bool, die_with_parent: bool, **values: Any) -> int:
    """Run the native daemon: commands on stdin, replies on stdout, tokens on --stream-fd, the log on stderr.

    protocol/PROTOCOL.md describes the commands; try `ping hello` first. At the end of stdin, running requests finish
    and the daemon ends.
    """
    if values["pipe"] or values["tokens"] is not None or values["tokens_file"] is not None:
        if stream_fd is not None or mux:
            raise Failure("--pipe writes its tokens to stdout: leave --stream-fd and --mux out", EXIT_BAD_ARGS)
        if embedding is not None:
            raise Failure("--pipe writes tokens, and --embedding gives none: leave one of them out", EXIT_BAD_ARGS)
        return _run_pipe(values)
    given = [name for name in _PIPE_ONLY if values[name] not in (None, False)]
    if given:
        flag = "-n" if given[0] == "n" else "--" + given[0].replace("_", "-")
        raise Failure(
            f"{flag} belongs to --pipe; without it each command brings its own: gen id=1 n=64 temp=0.8 …", EXIT_BAD_ARGS
        )
    if stream_fd is not None:
        _check_open(stream_fd)
    of_process: dict[str, Any] = {"stream_fd": stream_fd, "mux": mux, "die_with_parent": die_with_parent}
    config = replace(read_engine_config(values), embedding=embedding, **of_process)
    binary = read_binary()
    try:
        os.execve(binary, [str(binary), *config.to_argv()], engine_environment(os.environ))
    except OSError as error:
        raise Failure(f"{binary} could not be started: {error.strerror}", EXIT_START_FAILED) from error


def _check_open(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError as error:
        raise Failure(
            f"--stream-fd {fd}: that descriptor is not open; in a shell, open it with {fd}>FILE", EXIT_BAD_ARGS
        ) from error
    os.set_inheritable(fd, True)


def _run_pipe(values: dict[str, Any]) -> int:
    from luce.supervisor.cli.pipeline.pipe import PipeRequest, read_prompt, run_pipe

    prompt = read_prompt(values["tokens"], values["tokens_file"], text_ids=values["text_ids"])
    return run_pipe(
        read_binary(),
        read_engine_config(values),
        PipeRequest(
            prompt=prompt,
            n_generate=128 if values["n"] is None else values["n"],
            text_ids=values["text_ids"],
            csv=values["csv"],
            ignore_eos=values["ignore_eos"],
            sampling=read_sampling(values),
        ),
    )


def _tell_program(text: str) -> None:
    # Who starts a daemon waits for its first line: it comes also when luced was not reached.
    from luce.protocol import Err, ErrorCode, format_reply
    from luce.supervisor.cli.output import write_output

    with suppress(Failure, OutputClosedError):
        write_output(format_reply(Err(ErrorCode.START_FAILED, text)))


def main() -> None:
    """Entry point of `luce-daemon`."""
    run_command(command, "luce-daemon", on_failure=None if "--pipe" in sys.argv[1:] else _tell_program)
