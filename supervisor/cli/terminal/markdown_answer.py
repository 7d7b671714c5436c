"""MarkdownAnswer: an answer that is laid out as it comes. The block that is being written (a paragraph, a list, a
piece of code) is drawn again and again; once the next one begins it stands for good and can scroll away.

Knows rich and the terminal's size; knows nothing of who wrote the text, which holds no control characters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.theme import Theme

from luce.supervisor.cli.servers import undisturbed

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import RenderResult

_DRAW_S = 0.08
_THEME = Theme({"markdown.code": "bold cyan", "markdown.code_block": "cyan"})  # without a dark box on light screens
# HTML is text like other text: rich would leave it out.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


@dataclass(frozen=True, slots=True)
class _Block:
    first_line: int
    tokens: Sequence[Token]


def answer_console() -> Console:
    return Console(theme=_THEME, highlight=False)


class MarkdownAnswer:
    """Between the first `add` and `end` the cursor is hidden."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = ""  # from the first block on that may go on
        self._is_first = True
        self._is_ended = False
        # Drawn by this thread alone: one beside it could draw while a block is printed above.
        self._live = Live(self, console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._drawn_s = 0.0

    def add(self, text: str) -> None:
        self._open += text
        with undisturbed():
            self._live.start()
            if "\n" in text:
                self._print_finished()
            if time.monotonic() - self._drawn_s >= _DRAW_S:
                self._live.refresh()
                self._drawn_s = time.monotonic()

    def end(self) -> None:
        self._is_ended = True
        with undisturbed():
            self._live.stop()

    def _print_finished(self) -> None:
        """Every block behind which another one has begun with a whole line."""
        lines = self._open.split("\n")
        blocks = _blocks("\n".join(lines[:-1]))
        if len(blocks) < 2:
            return
        self._open = "\n".join(lines[blocks[-1].first_line :])
        self._console.print(_LaidOut(blocks[:-1], are_first=self._is_first))  # above what is live
        self._is_first = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What is live. Of a block that is higher than the screen the end is shown, since what has scrolled away could
        not be drawn again; all of it stands there in the end."""
        laid_out = _LaidOut(_blocks(self._open), are_first=self._is_first)
        lines = console.render_lines(laid_out, options.update(height=None), pad=False)
        for line in lines if self._is_ended else lines[-max(console.height - 1, 1) :]:
            yield from line
            yield Segment.line()


def _blocks(text: str) -> list[_Block]:
    tokens = _PARSER.parse(text)
    starts = [index for index, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=False):
        place = tokens[start].map
        assert place is not None
        blocks.append(_Block(place[0], tokens[start:end]))
    return blocks


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """Blocks with an empty line between each two, and before the first unless nothing stands above."""

    blocks: Sequence[_Block]
    are_first: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for index, block in enumerate(self.blocks):
            if index or not self.are_first:
                yield Segment.line()
            # No hyperlinks: where a link leads shall be read, not hidden in a sequence that the model wrote.
            markdown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
            markdown.parsed = list(block.tokens)
            for line in _without_margins(console.render_lines(markdown, options, pad=False)):
                yield from line
                yield Segment.line()


def _without_margins(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Without empty lines at both ends, and without the blanks that fill a line: who copies it does not want them."""
    lines = [_without_blank_end(line) for line in lines]
    filled = [index for index, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _without_blank_end(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.strip():
        line = line[:-1]
    return [*line[:-1], Segment(line[-1].text.rstrip(), line[-1].style)] if line else []
