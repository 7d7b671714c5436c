"""Ingress: a Serve deployment that speaks HTTP for all replicas: the application of `luce serve`, over ReplicatedModel.

It answers at a port of its own, one a machine, and through Serve's proxy. It must not know engines.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web
from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from luce.ray.asgi_bridge import AsgiBridge
from luce.ray.dispatcher import Dispatcher
from luce.ray.ray_metrics import INGRESS_GAUGES, Gauges
from luce.ray.raylet_watch import raylet_watch
from luce.ray.replica_book import Question, ReplicaBook
from luce.ray.replicated_model import ReplicatedModel
from luce.supervisor.config import SupervisorConfig
from luce.supervisor.http.app import SHUTDOWN_GATE, create_app
from luce.supervisor.http.server import is_exposed, running, site_of, stop_serving
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.sockets import tls_context
from luce.supervisor.requests import EngineFailedError

_LOG = logging.getLogger("ray.serve")
_LOOK_S = 1.0


class Ingress:
    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engines: DeploymentHandle[Any], config: SupervisorConfig, settings: ServeSettings, *, stride: int
    ) -> None:
        # The router's book and the streams are one loop's: no thread is waited for on a request's way.
        engines._init(_run_router_in_separate_loop=False)  # noqa: SLF001
        self._engines = engines
        self._settings = settings
        name: str = serve.get_replica_context().replica_id.unique_id
        self._book = ReplicaBook(own_name=name, stride=stride)
        self._dispatcher = Dispatcher(config, self._book, self._choose, name=name, stride=stride)
        self._model = ReplicatedModel(config, self._dispatcher)
        self._bridge: AsgiBridge
        self._url: str | None = None
        self._to_end = asyncio.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(ready), name="luce ingress")
        try:
            await ready
        except asyncio.CancelledError:
            self._life.cancel()
            raise

    def __serve_build_asgi_app__(self) -> AsgiBridge:
        return self._bridge

    def check_health(self) -> None:
        if self._life.done():
            raise RuntimeError("the HTTP side has ended")

    async def address(self) -> str | None:
        """Of the port of its own; None: another ingress has it."""
        return self._url

    async def __del__(self) -> None:
        """Serve drains it: answers end, or are ended with an error that clients understand."""
        self._to_end.set()
        await asyncio.wait([self._life])

    async def _live(self, ready: asyncio.Future[None]) -> None:
        looking = asyncio.create_task(self._look(), name="looking at replicas")
        try:
            app = await create_app(self._model, self._settings)
            async with running(app, self._settings) as runner, AsyncExitStack() as sites:
                self._bridge = AsgiBridge(runner)
                await self._take_port(runner, sites)
                ready.set_result(None)
                waiting = asyncio.create_task(self._wait_for_port(runner, sites), name="port of an ingress")
                await self._to_end.wait()
                waiting.cancel()
                await stop_serving(runner, app[SHUTDOWN_GATE], self._settings, hurry=asyncio.Event())
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            looking.cancel()
            self._dispatcher.close()
            self._model.close()

    async def _take_port(self, runner: web.AppRunner, sites: AsyncExitStack) -> None:
        """Unless it is in use. Raises OSError where it cannot be had for another reason."""
        try:
            self._url = await sites.enter_async_context(site_of(runner, self._settings, tls_context(self._settings)))
            _LOG.info("luce listens at %s, bypassing Serve's proxy", self._url)
            if is_exposed(self._settings) and not self._settings.open_to_all:
                _LOG.warning(
                    "there is no API key, and everybody who reaches %s may use it: give luce an api_key, or say by "
                    "open_to_all that it is meant so",
                    self._settings.host,
                )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise

    async def _wait_for_port(self, runner: web.AppRunner, sites: AsyncExitStack) -> None:
        """Another ingress of this machine has it, or one that is going."""
        if self._url is None:
            _LOG.warning("port %d is in use: until it is free, only Serve's proxy works", self._settings.port)
        while self._url is None:
            await asyncio.sleep(_LOOK_S)
            await self._take_port(runner, sites)

    async def _choose(self, question: Question[Any]) -> tuple[str, Mapping[str, Any]]:
        """Serve's router, which is ours: it names a replica, and nothing is sent by it. Raises EngineFailedError."""
        try:
            async with self._engines.choose_replica(question, _reserve=False) as selection:
                return selection.replica_id, selection.replica_metadata
        except DeploymentUnavailableError:
            raise EngineFailedError("no replica can be started: `serve status` says why") from None

    async def _look(self) -> None:
        """At the replicas that Serve has, so that they are connected before somebody asks."""
        gauges = Gauges(INGRESS_GAUGES)
        raylet_is_gone = raylet_watch()
        while not raylet_is_gone():
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._choose(Question(self._book))
            except (TimeoutError, EngineFailedError):
                pass  # there is none now
            except Exception:  # noqa: BLE001  the next look may see more
                _LOG.exception("Serve's router does not answer")
            await self._dispatcher.links.keep(self._book.offered)
            gauges.set(
                replicas=len(list(self._dispatcher.links)),
                open_requests=self._dispatcher.n_open,
                failovers=self._dispatcher.n_failovers,
            )
            await asyncio.sleep(_LOOK_S)
        _LOG.error("the raylet is gone: this ingress drains and ends")  # another one comes, and needs the port
        self._to_end.set()
        self._life.add_done_callback(lambda _: os._exit(1))
