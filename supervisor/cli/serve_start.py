"""From a configuration to a running server: the address is tried, the model loaded in sight, the clients told.

Turns what goes wrong on the way into exit codes. Knows nothing of flags, nor of what the server answers.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from luce.supervisor.cli.entry import (
    EXIT_BAD_ARGS,
    EXIT_ENGINE,
    EXIT_OK,
    EXIT_START_FAILED,
    Failure,
    OutputClosedError,
    say,
)
from luce.supervisor.cli.input import read_file, utf8
from luce.supervisor.cli.model_files import is_packaged
from luce.supervisor.cli.output import write_output
from luce.supervisor.cli.serve_banner import PACKAGED_NOTE, exposed_warning, start_banner
from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.config.models_file import FleetPlan
from luce.supervisor.engine.locate import NotInstalledError
from luce.supervisor.engine.process import StartError
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.fleet.fleet import Fleet
from luce.supervisor.http.keys.api_key import ApiKey
from luce.supervisor.http.keys.key_ring import keys_of
from luce.supervisor.http.served_models import ServedFleet
from luce.supervisor.http.server import is_exposed, serve
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.sockets import refuse_taken, tls_context
from luce.supervisor.kv_events.config import Endpoint, KvEventsConfig
from luce.supervisor.supervisor import Supervisor
from luce.supervisor.text import TextError

if TYPE_CHECKING:
    from luce.supervisor.kv_events.publisher import KvEventPublisher

_LEVELS = {"error": logging.ERROR, "warn": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_LOOK_S = 1.0
_LOOK_LOADING_S = 0.1
_STEP_PERCENT = 10  # between two lines
_COLLECTOR = (50_000, 20, 20)
"""A long body is up to two million objects without a cycle. By Python's own thresholds the collector passes over all of
them again and again while they are made, and everything else waits."""
_BIND_REASONS = {
    errno.EADDRINUSE: "it is in use: stop the other program, or choose another --port (0 takes a free one)",
    errno.EACCES: "ports below 1024 need privileges: choose another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose another --host",
}


def check_settings(settings: ServeSettings) -> None:
    """What can be found wrong before a model is loaded for minutes. Raises Failure."""
    if settings.chat_template is not None:
        utf8(read_file(settings.chat_template), f"--chat-template {settings.chat_template}")
    keys = _keys(settings)
    if keys and all(key.scope != "admin" for key in keys):
        say("luce serve: no API key has scope admin, so nobody can read /metrics and /status.json")
    if settings.slot_save_path is not None and not settings.slot_save_path.is_dir():
        raise Failure(f"--slot-save-path {settings.slot_save_path} is not a folder: make it first", EXIT_BAD_ARGS)
    _check_address(settings)


def _keys(settings: ServeSettings) -> Sequence[ApiKey]:
    try:
        return keys_of(settings)
    except ConfigError as error:
        raise Failure(f"--{str(error).replace('_', '-', 1)}", EXIT_BAD_ARGS) from None


def _check_address(settings: ServeSettings) -> None:
    host, port = settings.host, settings.port
    if host == "":
        raise Failure("--host is empty: use 127.0.0.1 for this machine only, 0.0.0.0 for all", EXIT_BAD_ARGS)
    try:
        tls_context(settings)
        if settings.socket_path is not None:
            refuse_taken(settings.socket_path)
            return
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from None
    except (socket.gaierror, UnicodeError):
        raise Failure(f"--host {host}: there is no such address", EXIT_BAD_ARGS) from None
    except OSError as error:
        raise Failure(f"--host {host}: {error.filename}: {error.strerror}", EXIT_START_FAILED) from None
    for family, _, _, _, address in found:
        try:
            _try_to_bind(family, address)
        except OSError as error:
            raise _bind_failure(settings, error) from None


def _try_to_bind(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tried.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        tried.listen(1)


def _bind_failure(settings: ServeSettings, error: OSError) -> Failure:
    reason = _BIND_REASONS.get(error.errno or 0, error.strerror or str(error))
    return Failure(f"{settings.host}:{settings.port}: {reason}", EXIT_START_FAILED)


async def serve_until_stopped(config: SupervisorConfig, settings: ServeSettings) -> int:
    """Returns the exit code. Raises Failure."""
    model = settings.aliases[0] if settings.aliases else config.model.stem
    note = PACKAGED_NOTE if is_packaged(config.model) else ""
    with _served(settings, config.log_level):
        async with AsyncExitStack() as stack:
            publisher = _kv_event_publisher(settings, model)
            if publisher is not None:
                await stack.enter_async_context(publisher)
            supervisor = Supervisor(config, on_log=say)

            def announce(url: str) -> None:
                _announce(url, model, supervisor.n_ctx, settings, note)

            async with _loading_shown(supervisor, config.model.name), _text_opened_beside(supervisor, settings):
                await stack.enter_async_context(supervisor)
            if publisher is not None:
                publisher.watch(supervisor.watch_pages())
            await _while_engines_last(
                supervisor,
                serve(supervisor, settings, on_ready=announce),
            )
    return EXIT_OK


async def serve_fleet_until_stopped(plan: FleetPlan, settings: ServeSettings, log_level: str | None) -> int:
    """The same of several models. Returns the exit code. Raises Failure."""
    with _served(settings, log_level):
        async with AsyncExitStack() as stack:
            first, *_ = members = plan.config.members
            publishers = [_kv_event_publisher(settings, member.name, number) for number, member in enumerate(members)]
            for publisher in publishers:
                if publisher is not None:
                    await stack.enter_async_context(publisher)
            fleet = await stack.enter_async_context(Fleet(plan.config, on_log=say))
            for member, publisher in zip(members, publishers, strict=True):
                if publisher is not None:
                    publisher.watch(fleet.supervisors[member.name].watch_pages())
            served = ServedFleet(fleet, plan.settings, plan.default)

            def announce(url: str) -> None:
                n_ctx = fleet.supervisors[first.name].n_ctx  # known where it is resident
                _announce(url, first.name, first.config.ctx if n_ctx is None else n_ctx, settings)

            await serve(served, settings, on_ready=announce)
    return EXIT_OK


@contextmanager
def _served(settings: ServeSettings, log_level: str | None) -> Iterator[None]:
    """Around a server: what goes wrong with it becomes a Failure."""
    os.umask(0o077)  # what it writes is made of people's prompts: for their eyes only
    _start_logging(log_level)
    gc.set_threshold(*_COLLECTOR)
    try:
        yield
    except StartError as error:
        code = EXIT_BAD_ARGS if error.exit_code == EXIT_BAD_ARGS else EXIT_START_FAILED
        raise Failure(str(error), code) from error
    except (NotInstalledError, TextError) as error:
        raise Failure(str(error), EXIT_START_FAILED) from error
    except ConfigError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from error
    except OSError as error:
        if error.filename is not None or error.errno not in _BIND_REASONS:
            raise
        raise _bind_failure(settings, error) from error  # somebody was faster
    if log_level not in {"warn", "error"}:
        say("luce serve: stopped")


def _kv_event_publisher(settings: ServeSettings, model: str, number: int = 0) -> KvEventPublisher | None:
    """Of one model, or of several the one with this number. None: none is wanted. Raises Failure, ConfigError."""
    if settings.kv_events is None:
        return None
    try:
        from luce.supervisor.kv_events.publisher import KvEventPublisher
    except ImportError as error:
        text = f"--kv-events needs a package that is not installed ({error.name}): pip install 'luce-daemon[kv-events]'"
        raise Failure(text, EXIT_BAD_ARGS) from error
    topic = settings.kv_events_topic
    replay = settings.kv_events_replay
    return KvEventPublisher(
        KvEventsConfig(
            endpoint=Endpoint.of(settings.kv_events).of_model(number),
            replay=None if replay is None else Endpoint.of(replay).of_model(number),
            topic=f"kv@{socket.gethostname()}@{model}" if topic is None else topic.replace("{model}", model),
            encoding=settings.kv_events_encoding,
            tells_tokens=settings.kv_events_tokens,
            media=settings.kv_events_media,
        )
    )


@asynccontextmanager
async def _loading_shown(supervisor: Supervisor, model: str) -> AsyncIterator[None]:
    """How far an engine is with loading its model, around the entering of `supervisor`: a bar in a terminal, a line
    now and then elsewhere."""
    show = _show_bar if sys.stderr is not None and sys.stderr.isatty() else _show_lines
    shower = asyncio.create_task(show(supervisor, model), name="how far loading is")
    try:
        yield
    finally:
        shower.cancel()
        await asyncio.wait([shower])


@asynccontextmanager
async def _text_opened_beside(supervisor: Supervisor, settings: ServeSettings) -> AsyncIterator[None]:
    """While engines load: a vocabulary of 262,144 tokens takes most of a second. What goes wrong with it is told where
    it is asked for."""
    if settings.chat_template is not None:  # then another one is used
        yield
        return
    opening = asyncio.create_task(supervisor.text(), name="opens the text side")
    try:
        yield
    finally:
        await asyncio.gather(opening, return_exceptions=True)


def _load_percent(supervisor: Supervisor) -> int | None:
    """Of the engine that is furthest behind; None: none has said."""
    engines = [engine for engine in supervisor.status().engines if engine.state is EngineState.STARTING]
    return min((engine.load_percent for engine in engines if engine.load_percent is not None), default=None)


async def _show_lines(supervisor: Supervisor, model: str) -> None:
    say(f"loading {model}")
    await _watch_loading(supervisor, lambda percent: say(f"loading {model}: {percent} %"))


async def _watch_loading(supervisor: Supervisor, tell: Callable[[int], None]) -> None:
    """Calls `tell` at each further tenth, until cancelled."""
    told = 0
    while True:
        percent = _load_percent(supervisor)
        if percent is not None and percent >= told + _STEP_PERCENT:
            told = percent - percent % _STEP_PERCENT
            tell(told)
        await asyncio.sleep(_LOOK_LOADING_S)


async def _show_bar(supervisor: Supervisor, model: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("loading {task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(model, total=None)
        while True:
            percent = _load_percent(supervisor)
            if percent is not None:
                progress.update(task, total=100, completed=percent)
            await asyncio.sleep(_LOOK_LOADING_S)


async def _while_engines_last(supervisor: Supervisor, serving: Coroutine[Any, Any, None]) -> None:
    """A server whose engines have all been given up answers nothing any more: whoever started it may start it again.
    Raises Failure."""
    server = asyncio.create_task(serving, name="the server")
    try:
        while not server.done():
            engines = supervisor.status().engines
            if all(engine.state is EngineState.FAILED for engine in engines):
                reason = next((engine.last_failure for engine in engines if engine.last_failure), "it did not start")
                raise Failure(f"no engine is left: {reason}", EXIT_ENGINE)
            await asyncio.wait([server], timeout=_LOOK_S)
    finally:
        server.cancel()
        await asyncio.wait([server])
    server.result()


def _announce(url: str, model: str, n_ctx: int | None, settings: ServeSettings, note: str = "") -> None:
    key = None
    if settings.has_keys:
        # Shown to the one who sits there, but not to a journal.
        key = settings.api_keys[0] if settings.api_keys and sys.stdout.isatty() else "YOUR_KEY"
    with suppress(OutputClosedError, Failure):  # nobody has to read it
        warning = exposed_warning(settings.host) if is_exposed(settings) and not settings.open_to_all else ""
        banner = start_banner(_reachable(url), model, key, n_ctx=n_ctx, note=note + warning)
        write_output(banner.encode(errors="backslashreplace"))


def _reachable(url: str) -> str:
    """An address that stands for all of them is no address to give away."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    return f"{scheme}://{socket.gethostname()}:{port}" if host in {"0.0.0.0", "[::]"} else url  # noqa: S104


def _start_logging(level: str | None) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=_LEVELS.get(level or "info", logging.INFO),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
