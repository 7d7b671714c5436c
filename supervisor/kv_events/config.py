"""KvEventsConfig: where KV events are published, and what they say. Knows no socket."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, Self

from luce.supervisor.config import ConfigError

_ENDPOINT = re.compile(r"(connect:)?(tcp://(?:[^\s:/]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}|ipc://.+)")
_LOOPBACK = re.compile(r"ipc://|tcp://(127\.[0-9.]+|localhost|\[::1\]):")

_LAST_PORT = 65535

Media = Literal["each", "one"]
Encoding = Literal["array", "map"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: str
    """As ZeroMQ takes it."""
    connects: bool = False
    """To a router that binds, rather than binding."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ConfigError."""
        match = _ENDPOINT.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is no endpoint: it must be tcp://HOST:PORT or ipc://PATH to bind, with connect: before it to"
                " connect to a router that binds"
            )
        return cls(match[2], connects=match[1] is not None)

    def of_model(self, number: int) -> Self:
        """Where the model of this number, from 0, is told of, if a server has several: each has a socket of its own,
        since a subscriber counts the messages of one. One that connects is told apart by its topic. Raises
        ConfigError."""
        if self.connects or number == 0:
            return self
        scheme, _, rest = self.address.partition("://")
        if scheme == "ipc":
            return replace(self, address=f"{self.address}.{number}")
        host, _, port = rest.rpartition(":")
        if int(port) and int(port) + number > _LAST_PORT:
            raise ConfigError(
                f"{self.address}: each further model has the next port, and there is none for all of them"
            )
        return replace(self, address=f"{scheme}://{host}:{int(port) and int(port) + number}")

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine's users can reach it."""
        return not self.connects and _LOOPBACK.match(self.address) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    endpoint: Endpoint
    replay: Endpoint | None = None
    """Where subscribers ask for what they have missed; None: nowhere."""
    topic: str = ""
    tells_tokens: bool = True
    """Whether the ids of the tokens are sent, from which routers make their own names of blocks."""
    media: Media = "each"
    """each: GPU, CPU and DISK apart. one: all as GPU, for routers that do not tell them apart."""
    encoding: Encoding = "array"
    """Of events: vLLM's first one, which all routers decode, or the one that newer vLLM have."""
    buffer_steps: int = 10_000
    """Batches that are kept for those who have missed them."""
    buffer_bytes: int = 64 << 20
    """Their bytes, at most."""
