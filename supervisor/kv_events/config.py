"""KvEventsConfig: where KV events are published, and what they say. Knows no socket."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self

from luce.supervisor.config import ConfigError

_ENDPOINT = re.compile(r"(connect:)?(tcp://(?:[^\s:/]+|\[[0-9A-Fa-f:]+\]):[0-9]{1,5}|ipc://.+)")
_LOOPBACK = re.compile(r"ipc://|tcp://(127\.[0-9.]+|localhost|\[::1\]):")

Media = Literal["each", "one"]


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
    buffer_steps: int = 10_000
    """Batches that are kept for those who have missed them."""
    buffer_bytes: int = 64 << 20
    """Their bytes, at most."""
