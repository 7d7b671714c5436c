"""Screen: what a chat shows and where: the answer on stdout; in a terminal, reasoning and figures dimmed beside it,
else both on stderr. Knows nothing of servers and conversations.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from luce.supervisor.cli.entry import say
from luce.supervisor.cli.output import write_output

_DIM, _BOLD, _RED, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[0m"
# What a model writes is no command to the terminal: control characters are shown as their pictures.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen:
    def __init__(self) -> None:
        self.is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._is_dim = False
        self._at_line_start = True

    def prompt(self, text: str) -> str:
        """For readline, which has to be told what takes no room."""
        return f"\x01{_BOLD}\x02{text}\x01{_PLAIN}\x02 "

    def content(self, text: str) -> None:
        self._end_reasoning()
        self._write(text)

    def reasoning(self, text: str) -> None:
        if not self.is_terminal:
            say(text, nl=False)
        elif not self._is_dim:
            self._is_dim = True
            write_output(_DIM.encode())
            self._write(text)
        else:
            self._write(text)

    def call(self, name: str, arguments: str) -> None:
        self.end_line()
        self._write(f"→ {name}({arguments})\n")

    def end_line(self) -> None:
        """The answer is complete, or was stopped."""
        self._end_reasoning()
        if not self._at_line_start:
            self._write("\n")

    def note(self, text: str) -> None:
        """A word beside the conversation."""
        if self.is_terminal:
            self.end_line()
            write_output(f"{_DIM}{safe(text)}{_PLAIN}\n".encode(errors="replace"))
        else:
            say(text)

    def error(self, text: str) -> None:
        if self.is_terminal:
            self.end_line()
            write_output(f"{_RED}{safe(text)}{_PLAIN}\n".encode(errors="replace"))
        else:
            say(f"Error: {text}")

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
