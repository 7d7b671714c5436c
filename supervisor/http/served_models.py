"""ServedModels: the models of a fleet as a server has them: each by its names, its text side opened on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from luce.supervisor.fleet.fleet import Fleet
from luce.supervisor.http.app_context import AppContext, ListedModel, file_time
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.model_backend import ModelBackend
from luce.supervisor.supervisor_status import SupervisorStatus

OpenContext = Callable[[ModelBackend, ServeSettings], Awaitable[AppContext]]


@dataclass(frozen=True, slots=True)
class ServedFleet:
    """What a server of many models is made over."""

    fleet: Fleet
    settings: Mapping[str, ServeSettings]
    """Of each member: the server's own, with what this model's answers are made with."""
    default: str | None = None
    """The member that serves names which nobody has; None: such requests are refused."""

    @property
    def name(self) -> str:
        return ",".join(self.settings)


class ServedModels:
    """Implements app_context.Models."""

    def __init__(self, served: ServedFleet, open_context: OpenContext) -> None:
        self._served = served
        self._fleet = served.fleet
        self._open_context = open_context
        self._contexts: dict[str, AppContext] = {}
        self._lock = asyncio.Lock()
        self._created = {name: file_time(one.model) for name, one in served.fleet.supervisors.items()}
        self._names = {
            name: member.name
            for member in served.fleet.config.members
            for name in (member.name, *member.aliases, *served.settings[member.name].profiles)
        }

    async def context(self, asked: str | None) -> AppContext:
        name = self._fleet.config.members[0].name if not asked else self._names.get(asked, self._served.default)
        if name is None:
            text = f"there is no model {asked!r} here, but {', '.join(self._names)}"
            raise ApiError(ErrorKind.NOT_FOUND, "model_not_found", text, param="model")
        if (known := self._contexts.get(name)) is not None:
            return known
        async with self._lock:
            if name not in self._contexts:
                opened = await self._open_context(self._fleet.supervisors[name], self._served.settings[name])
                self._contexts[name] = opened
            return self._contexts[name]

    def listed(self) -> Sequence[ListedModel]:
        listed = []
        for member in self._fleet.config.members:
            supervisor = self._fleet.supervisors[member.name]
            n_ctx = member.config.ctx if supervisor.n_ctx is None else supervisor.n_ctx
            names = [name for name, of in self._names.items() if of == member.name]
            created = self._created[member.name]
            listed.append(ListedModel(names, supervisor, n_ctx, created, supervisor.presence.state.value))
        return listed

    def status(self) -> SupervisorStatus:
        return self._fleet.status()

    async def engine_status(self, timeout_s: float = 1.0) -> list[dict[str, str]]:
        return await self._fleet.engine_status(timeout_s)
