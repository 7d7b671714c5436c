"""The terminal of a chat. Lines come from an editor, or from a pipe, one turn a line. The answer goes to stdout;
reasoning and figures stand dimmed beside it in a terminal, else on stderr. Knows no servers, no conversations.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from luce.supervisor.cli.entry import say
from luce.supervisor.cli.input import STDIN, utf8, utf8_argument
from luce.supervisor.cli.output import safe, write_output
from luce.supervisor.cli.terminal.miss_words import miss_reason

if TYPE_CHECKING:
    from luce.supervisor.cli.terminal.markdown_answer import MarkdownAnswer

_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"

Editor = Callable[[str], str]
"""Reads what a person types behind a prompt. Raises EOFError at the end, and KeyboardInterrupt."""


def is_terminal() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


class Terminal:
    def __init__(self, editor: Editor | None, *, lays_out: bool = True) -> None:
        """Without an editor nobody sits there, and lines come from stdin. `lays_out`: answers to people are taken for
        Markdown."""
        self.is_terminal = editor is not None
        self._editor = editor
        # One that cannot move its cursor could draw nothing twice.
        self._lays_out = self.is_terminal and lays_out and os.environ.get("TERM") not in {"dumb", "unknown"}
        self._answer: MarkdownAnswer | None = None
        self._is_dim = False
        self._at_line_start = True

    def read(self, prompt: str) -> str | None:
        """The next line; None at the end. Raises KeyboardInterrupt, or Failure for what is no text."""
        if self._editor is None:
            line = sys.stdin.buffer.readline() if sys.stdin is not None else b""
            return utf8(line, STDIN).rstrip("\r\n") if line else None
        try:
            return utf8_argument(self._editor(f"{prompt} "), STDIN)
        except EOFError:
            return None

    def content(self, text: str) -> None:
        self._end_reasoning()
        if not self._lays_out:
            self._write(text)
            return
        if self._answer is None:
            from luce.supervisor.cli.terminal.markdown_answer import MarkdownAnswer, answer_console

            self._answer = MarkdownAnswer(answer_console())
        self._answer.add(safe(text))

    def reasoning(self, text: str) -> None:
        self._end_answer()
        if not self.is_terminal:
            say(text, nl=False)
            return
        if not self._is_dim:
            self._is_dim = True
            write_output(_DIM.encode())
        self._write(text)

    def line(self, text: str) -> None:
        """Part of the answer as it stands."""
        self.end_line()
        self._write(f"{text}\n")

    def end_line(self) -> None:
        """The answer is complete, or was stopped."""
        self._end_answer()
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

    def _end_answer(self) -> None:
        if self._answer is not None:
            self._answer.end()
            self._answer = None

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
    reason = miss_reason(str(ours.get("cache_miss", "none")))
    why = f"; not more because {reason}" if reason else ""
    return f"[{n_answer:,} tokens{speed}{first}; prompt {n_prompt:,}, {cached}{why}]"
