"""engine_session: one engine for the length of one command, its errors turned into exit codes.

The commands' common frame around EngineProcess and EngineClient; knows nothing of what they generate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from luce.protocol import LocalProtocolError
from luce.supervisor.cli.entry import EXIT_BAD_ARGS, EXIT_ENGINE, EXIT_REFUSED, EXIT_START_FAILED, Failure, say
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.client import EngineClient
from luce.supervisor.engine.generation import EngineDied, EngineError, Event, Generation
from luce.supervisor.engine.process import EngineProcess, StartError

_START_TIMEOUT_S = 600.0  # a model of hundreds of GB from a slow disk
_SILENCE_TIMEOUT_S = 300.0  # a running engine reports the progress of a prompt several times a second


@asynccontextmanager
async def engine_session(binary: Path, config: DaemonConfig) -> AsyncIterator[EngineClient]:
    """A ready engine; it is gone when the block is left. Raises Failure with the exit code of what went wrong."""
    try:
        async with await EngineProcess.spawn(binary, config, on_log=say) as process:
            await process.wait_ready(_START_TIMEOUT_S)
            async with EngineClient(process) as client:
                yield client
    except StartError as error:
        code = EXIT_BAD_ARGS if error.exit_code == EXIT_BAD_ARGS else EXIT_START_FAILED
        raise Failure(str(error), code) from error
    except (EngineError, LocalProtocolError) as error:
        raise Failure(str(error), EXIT_REFUSED) from error
    except EngineDied as error:
        raise Failure(str(error), EXIT_ENGINE) from error


async def events_within(generation: Generation) -> AsyncIterator[Event]:
    """The events of `generation`; an engine that falls silent is given up with EngineDied."""
    while True:
        try:
            async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                event = await anext(generation)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise EngineDied(f"luced has said nothing for {_SILENCE_TIMEOUT_S:g} s and was stopped") from None
        yield event
