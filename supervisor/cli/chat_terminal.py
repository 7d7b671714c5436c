"""The terminal of a chat. Lines come from an editor with a history, or from a pipe, one turn a line. The answer goes to
stdout; reasoning and figures stand dimmed beside it in a terminal, else on stderr. Knows no servers, no conversations.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from luce.supervisor.cli.entry import say
from luce.supervisor.cli.input import STDIN, utf8, utf8_argument
from luce.supervisor.cli.output import write_output

_LOOK_S = 0.25
_DIM, _BOLD, _RED, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"
# What a model writes is no command to the terminal: control characters are shown as their pictures.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Terminal:
    def __init__(self, *, is_terminal: bool | None = None) -> None:
        """None: stdin and stdout say whether it is one."""
        if is_terminal is None:
            is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self.is_terminal = is_terminal
        self._is_dim = False
        self._at_line_start = True
        if is_terminal:
            with suppress(ImportError):  # gives input() its editor and history
                import readline  # noqa: F401

    def read(self, prompt: str) -> str | None:
        """The next line; None at the end. Raises KeyboardInterrupt, or Failure for what is no text."""
        if not self.is_terminal:
            line = sys.stdin.buffer.readline() if sys.stdin is not None else b""
            return utf8(line, STDIN).rstrip("\r\n") if line else None
        try:
            with _signals_are_noticed():  # readline has to be told which characters take no room
                return utf8_argument(input(f"\x01{_BOLD}\x02{prompt}\x01{_PLAIN}\x02 "), STDIN)
        except EOFError:
            return None

    def content(self, text: str) -> None:
        self._end_reasoning()
        self._write(text)

    def reasoning(self, text: str) -> None:
        if not self.is_terminal:
            say(text, nl=False)
            return
        if not self._is_dim:
            self._is_dim = True
            write_output(_DIM.encode())
        self._write(text)

    def end_line(self) -> None:
        """The answer is complete, or was stopped."""
        self._end_reasoning()
        if not self._at_line_start:
            self._write("\n")

    def note(self, text: str) -> None:
        """A word beside the conversation."""
        self._beside(_DIM, text)

    def error(self, text: str) -> None:
        self._beside(_RED, text if self.is_terminal else f"Error: {text}")

    def _beside(self, colour: str, text: str) -> None:
        if self.is_terminal:
            self.end_line()
            write_output(f"{colour}{safe(text)}{_PLAIN}\n".encode(errors="replace"))
        else:
            say(text)

    def _end_reasoning(self) -> None:
        if self._is_dim:
            self._is_dim = False
            write_output(_PLAIN.encode())
            if not self._at_line_start:
                self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._at_line_start = text.endswith("\n")
            shown = safe(text) if self.is_terminal else text
            write_output(shown.encode(errors="replace"))


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


def safe(text: str) -> str:
    return _CONTROLS.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)


def figures(usage: Mapping[str, Any], first_s: float | None, whole_s: float) -> str:
    """How fast the answer was, and how much of its prompt the cache had."""
    n_prompt, n_answer = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    ours = usage.get("luce") or {}
    speed = ""
    decode_s = ours.get("decode_s") or (whole_s - first_s if first_s is not None else 0.0)
    if n_answer > 1 and decode_s > 0:
        speed = f", {(n_answer - 1) / decode_s:,.0f} a second"
    first = "" if first_s is None else f", the first after {first_s:.2f} s"
    cached = f"{n_cached:,} from the cache ({n_cached / n_prompt:.0%})" if n_prompt else "none"
    miss = ours.get("cache_miss", "none")
    why = "" if miss == "none" else f", not more: {miss}"
    return f"[{n_answer:,} tokens{speed}{first}; prompt {n_prompt:,}, {cached}{why}]"
