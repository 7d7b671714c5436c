"""A server of our own around the application: its limits, its signals and how it stops.

It knows sockets and signals; it must not know requests.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Self

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from luce.supervisor.config import ConfigError
from luce.supervisor.http.answering.shutdown_gate import ShutdownGate
from luce.supervisor.http.app import SHUTDOWN_GATE, create_app
from luce.supervisor.http.keys.key_ring import KEY_RING, keys_of
from luce.supervisor.http.served_models import ServedFleet
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.sockets import BACKLOG, TlsSite, tls_context, unix_socket
from luce.supervisor.http.transport.served_hosts import SERVED_HOSTS, ServedHosts, is_loopback
from luce.supervisor.http.transport.server_connection import Runner
from luce.supervisor.http.transport.slow_client_reaper import SlowClientReaper
from luce.supervisor.model_backend import ModelBackend

MAX_HEADER_BYTES = 16 * 1024  # of one line; clients send cookies and long beta lists
MAX_HEADERS = 128
LINGER_S = 2.0  # for the rest of a body that nobody reads, so that its sender hears the answer
LAST_EVENTS_S = 3.0  # for streams that were told to end, and for their readers
_LOG = logging.getLogger("luce.http.server")


def is_exposed(settings: ServeSettings) -> bool:
    """Whether others can reach the server, and need no key."""
    if settings.has_keys:
        return False
    if settings.socket_path is not None:
        return int(settings.socket_mode, 8) & 0o007 != 0
    return not is_loopback(settings.host)


@asynccontextmanager
async def listening(app: web.Application, settings: ServeSettings) -> AsyncIterator[tuple[web.AppRunner, str]]:
    """The application on its port, and the address to put into a client. Raises OSError, ConfigError."""
    tls = tls_context(settings)
    async with running(app, settings) as runner, site_of(runner, settings, tls) as url:
        yield runner, url


@asynccontextmanager
async def running(app: web.Application, settings: ServeSettings) -> AsyncIterator[web.AppRunner]:
    """The application for connections, wherever they come from."""
    app[SERVED_HOSTS] = ServedHosts.of(settings)
    runner = Runner(
        app,
        handle_signals=False,
        handler_cancellation=True,
        access_log=None,  # the application keeps its own
        logger=_protocol_log(),
        keepalive_timeout=settings.idle_timeout_s,
        head_timeout_s=settings.head_timeout_s,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
        shutdown_timeout=LAST_EVENTS_S,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    assert runner.server is not None
    watch = asyncio.create_task(SlowClientReaper(runner.server, settings.stalled_reader_s).run())
    try:
        yield runner
    finally:
        watch.cancel()
        await asyncio.wait([watch])
        await runner.cleanup()


@asynccontextmanager
async def site_of(runner: web.AppRunner, settings: ServeSettings, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Listening; what to put into a client. Raises OSError."""
    path = settings.socket_path
    if path is None:
        if tls is None:
            await web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG).start()
        else:
            await TlsSite(runner, settings.host, settings.port, tls, settings.head_timeout_s).start()
        yield _url(runner, "http" if tls is None else "https")
        return
    with unix_socket(path, int(settings.socket_mode, 8)) as listener:
        site = web.SockSite(runner, listener, backlog=BACKLOG)
        await site.start()
        try:
            yield f"unix:{path}"
        finally:
            if site in runner.sites:
                await site.stop()  # the loop lets go of the socket before it is closed


async def serve(
    served: ModelBackend | ServedFleet, settings: ServeSettings, *, on_ready: Callable[[str], None]
) -> None:
    """Until SIGTERM or SIGINT. Then the server says that it is not ready, and nothing new is taken after
    `shutdown_delay_s`; answers may finish for `shutdown_grace_s`, or until a second signal, and those that have not by
    then end with an error that their clients understand.

    `on_ready` is told the server's address. Raises ConfigError, OSError, TextError.
    """
    app = await create_app(served, settings)
    with _Signals() as signals, _keys_read_on_hangup(app, settings):
        async with listening(app, settings) as (runner, url):
            on_ready(url)
            await signals.first.wait()
            await stop_serving(runner, app[SHUTDOWN_GATE], settings, signals.second)


@contextmanager
def _keys_read_on_hangup(app: web.Application, settings: ServeSettings) -> Iterator[None]:
    """SIGHUP reads the file of keys anew. What cannot be read changes nothing: nobody is locked out, or let in, by a
    slip of the pen."""
    if settings.key_file is None:
        yield
        return

    def read() -> None:
        try:
            keys = keys_of(settings)
        except ConfigError as error:
            _LOG.error("SIGHUP: the keys are unchanged: %s", error)
            return
        app[KEY_RING].replace(keys)
        _LOG.info("SIGHUP: %d API keys", len(keys))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, read)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def stop_serving(
    runner: web.AppRunner, gate: ShutdownGate, settings: ServeSettings, hurry: asyncio.Event
) -> None:
    """Takes nothing new, and lets answers end as `serve` says; `hurry` ends them at once."""
    gate.is_closing = True
    if settings.shutdown_delay_s > 0:
        _LOG.info("stopping: requests are accepted for %g s more", settings.shutdown_delay_s)
        await _first_of(hurry.wait(), timeout_s=settings.shutdown_delay_s)
    gate.close()
    for site in tuple(runner.sites):
        await site.stop()
    if not gate.is_idle:
        _LOG.info("stopping: answers have %g s to finish; a second signal ends them at once", settings.shutdown_grace_s)
    await _first_of(gate.wait_idle(), hurry.wait(), timeout_s=settings.shutdown_grace_s)
    if not gate.is_idle:
        _LOG.warning("stopping: %d unfinished answers were ended", gate.n_open)
        gate.interrupt()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_EVENTS_S):
                await gate.wait_idle()


async def _first_of(*waits: object, timeout_s: float) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Unreadable(logging.Filter):
    """aiohttp tells of requests that are no HTTP as of errors of ours, with a traceback: anyone could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | web.RequestPayloadError):
            return True
        _LOG.debug("a request could not be read: %s", type(error).__name__)  # its text may hold a key
        return False


def _protocol_log() -> logging.Logger:
    log = logging.getLogger("luce.http.protocol")
    if not log.filters:
        log.addFilter(_Unreadable())
    return log


class _Signals:
    """SIGTERM and SIGINT as events, while its block lasts."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


def _url(runner: web.AppRunner, scheme: str) -> str:
    address = runner.addresses[0]
    host, port = address[0], address[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
