"""Lines of a chat: from a terminal, with an editor and a history, or from a pipe, one turn a line; and which of them
are commands. Knows nothing of what is done with them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from luce.supervisor.cli.input import STDIN, utf8, utf8_argument

_LOOK_S = 0.25

COMMANDS = {
    "help": "show these commands",
    "reset": "forget the conversation; the system message stays",
    "system": "TEXT: set the system message; without TEXT, show it",
    "save": "FILE: write the conversation as JSON",
    "load": "FILE: go on from a conversation that was saved",
    "retry": "have the last message answered again",
    "quit": "leave (so does Ctrl-D)",
}


@dataclass(frozen=True, slots=True)
class ChatCommand:
    name: str
    argument: str


def read_command(line: str) -> ChatCommand | None:
    """None: it is said to the model; `//` begins a message with a slash. A command's name need not be known."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    return ChatCommand(name.strip().lower(), argument.strip())


def help_text() -> str:
    lines = [f"/{name:<7}{what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "Ctrl-C stops an answer. A message that begins with a slash is written with two."])


class Lines:
    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        if is_terminal:
            with suppress(ImportError):  # gives input() its editor and history
                import readline  # noqa: F401

    def read(self, prompt: str) -> str | None:
        """The next line; None at the end. Raises KeyboardInterrupt, or Failure for what is no text."""
        if not self._is_terminal:
            line = sys.stdin.buffer.readline() if sys.stdin is not None else b""
            return utf8(line, STDIN).rstrip("\r\n") if line else None
        try:
            with _signals_are_noticed():
                return utf8_argument(input(prompt), STDIN)
        except EOFError:
            return None


@contextmanager
def _signals_are_noticed() -> Iterator[None]:
    """readline looks whether a signal has come and then waits for a key: one that comes in between would be noticed
    with the next key only. A clock interrupts the wait, and readline looks again. REQUIRES the main thread."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
