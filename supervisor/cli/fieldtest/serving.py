"""Serving: the server that a field test asks, started anew with drafts or without, one at a time: a large model may fit
but once. And one answer of it, with its figures. Knows HTTP as ServerClient has it; compares nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Self

from luce.supervisor.cli.fieldtest.machine import busy_s
from luce.supervisor.cli.server_client import CHAT_PATH, Answer, ServerClient, ServerError
from luce.supervisor.cli.servers import UNNAMED_MODEL, own_server

_LOOK_S = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer. Times in seconds."""

    answer: Answer
    n_prompt: int
    n_cached: int
    n_answer: int
    first_token_s: float
    """From sending the request."""
    decode_s: float
    """Of the tokens behind the first one, by the engine's clock."""
    busy_s: float
    """Processor time of them, of all that this process has started."""
    n_drafted: int
    n_accepted: int

    @property
    def decoded_per_s(self) -> float | None:
        """None: there was no second token."""
        return (self.n_answer - 1) / self.decode_s if self.n_answer > 1 and self.decode_s > 0 else None


class Serving:
    """Use as a context manager."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments`: the engine's options."""
        self._arguments = ["--log-level", "error", *arguments]
        self._stack = ExitStack()
        self._server: ServerClient | None = None
        self.load_s: list[float] = []
        """Of each start."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def server(self) -> ServerClient:
        """Raises ServerError."""
        if self._server is None:
            raise ServerError("no server runs: it did not start")
        return self._server

    def start(self, *, has_drafts: bool = True) -> float:
        """Ends the one that runs. Returns how long it took. Raises click.exceptions.Exit."""
        self._server = None
        self._stack.close()
        began_s = time.monotonic()
        self._server = self._stack.enter_context(
            own_server(self._arguments if has_drafts else [*self._arguments, "--draft-max", "0"])
        )
        self.load_s.append(time.monotonic() - began_s)
        return self.load_s[-1]

    def engine(self) -> dict[str, Any]:
        """What it says of its engine. Raises ServerError."""
        engines: list[dict[str, Any]] = self.server.look("/status.json", _LOOK_S)["engines"]
        return engines[0]

    def ask(self, messages: Sequence[Mapping[str, Any]], n: int, **fields: Any) -> Asked:
        """The likeliest answer, of `n` tokens at most. Raises ServerError."""
        body = {"model": UNNAMED_MODEL, "messages": list(messages), "max_tokens": n, "temperature": 0, **fields}
        answer, began_s, first_s, first_busy_s = Answer(), time.monotonic(), 0.0, 0.0
        with closing(self.server.stream(CHAT_PATH, body, answer)) as pieces:
            for _ in pieces:
                if not first_s:
                    first_s, first_busy_s = time.monotonic(), busy_s()
        usage = answer.usage
        ours = usage["luce"]
        drafts = ours["speculation"] or {"drafted": 0, "accepted": 0}
        return Asked(
            answer,
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens"],
            (first_s or time.monotonic()) - began_s,
            ours["decode_s"],
            busy_s() - first_busy_s,
            drafts["drafted"],
            drafts["accepted"],
        )
