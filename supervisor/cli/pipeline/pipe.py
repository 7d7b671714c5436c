"""`luce-daemon --pipe`: prompt ids from stdin, the answer's ids to stdout as they come, all else to stderr.

One generation by an engine of its own, which is gone when this is. Knows ids only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

from luce.protocol import ErrorCode, Generate, GenerateOk, SamplingArgs, format_reply
from luce.supervisor.cli.engine_session import engine_session, events_within
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_OK, Failure, run_async, say
from luce.supervisor.cli.input import read_file, read_stdin
from luce.supervisor.cli.output import OutputPipe
from luce.supervisor.cli.pipeline.ids import encode_ids, read_ids
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.generation import EngineError, Event, Generation, TokenEvent

_HINT = ": --pipe reads int32, little endian; decimal ids need --text-ids, text needs `luce tokenize`"


@dataclass(frozen=True, slots=True)
class PipeRequest:
    """What --pipe generates."""

    prompt: tuple[int, ...]
    n_generate: int
    text_ids: bool
    csv: bool
    ignore_eos: bool
    sampling: SamplingArgs


def read_prompt(tokens: str | None, tokens_file: Path | None, *, text_ids: bool) -> tuple[int, ...]:
    """The ids that were named, or those on stdin. Raises Failure."""
    if tokens is not None and tokens_file is not None:
        raise Failure("--tokens and --tokens-file both name the prompt: give one of them", EXIT_BAD_ARGS)
    if tokens is not None:
        return _named(read_ids(tokens.encode(), as_text=True, source="--tokens"), "--tokens")
    if tokens_file is not None:
        return _named(read_ids(read_file(tokens_file), as_text=True, source=str(tokens_file)), str(tokens_file))
    prompt = read_ids(read_stdin(), as_text=text_ids)
    if not prompt:
        raise Failure("stdin held no prompt ids: put `luce tokenize FILE |` before --pipe", EXIT_BAD_ARGS)
    if min(prompt) < 0:
        wrong = next(token for token in prompt if token < 0)
        raise Failure(f"stdin held {wrong}, which is no token id{_HINT}", EXIT_BAD_ARGS)
    return prompt


def _named(prompt: tuple[int, ...], source: str) -> tuple[int, ...]:
    if not prompt:
        raise Failure(f"{source} held no prompt ids: give some, 329,285,1420 say", EXIT_BAD_ARGS)
    return prompt


def run_pipe(binary: Path, config: DaemonConfig, request: PipeRequest) -> int:
    """Returns the exit code. Raises Failure or OutputClosedError."""
    return run_async(lambda: _generate(binary, config, request))


async def _generate(binary: Path, config: DaemonConfig, request: PipeRequest) -> int:
    command = Generate(
        prompt=request.prompt, n_generate=request.n_generate, sampling=request.sampling, ignore_eos=request.ignore_eos
    )
    if config.lanes is None:
        config = replace(config, lanes=1)
    async with (
        OutputPipe() as output,
        engine_session(binary, config) as client,
        await client.generate(command) as generation,
    ):
        separator = b""
        async for event in _events(generation, request):
            if isinstance(event, TokenEvent) and request.csv:
                await output.write(separator + str(event.token).encode())
                separator = b","
            elif isinstance(event, TokenEvent):
                await output.write(encode_ids([event.token], as_text=request.text_ids))
            elif isinstance(event, GenerateOk):
                say(format_reply(event).decode().rstrip())
        if request.csv:
            await output.write(b"\n")
        output.release()
    return EXIT_OK


async def _events(generation: Generation, request: PipeRequest) -> AsyncIterator[Event]:
    try:
        async for event in events_within(generation):
            yield event
    except EngineError as error:
        if error.code is not ErrorCode.TOKEN_OUT_OF_RANGE or request.text_ids:
            raise
        raise EngineError(error.code, error.text + _HINT) from error
