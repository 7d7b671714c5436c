"""An answer that is laid out while it comes ends as one that is laid out at once, whatever its pieces were."""

from __future__ import annotations

import io
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from luce.supervisor.cli.terminal.markdown_answer import MarkdownAnswer

WIDTH, HEIGHT = 40, 8
CODE = "".join(f"line_{number} = {number}\n" for number in range(2 * HEIGHT))
ANSWER = f"""# Title

First, a paragraph that is longer than the screen is wide, with `code`, <b>HTML</b> and **words**.

1. one

2. two
   - nested

   still two
3. three

```python
{CODE}```
| a | b |
|---|---|
| 1 | 2 |

> quoted
lazily

<div>

[site](http://h:1/)

Heading
===
Last words"""
KEYS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def screen(written: str) -> list[str]:
    """The lines that stand there in the end. What has scrolled away cannot be reached any more."""
    lines, row, position = [""], 0, 0
    while position < len(written):
        if key := KEYS.match(written, position):
            position = key.end()
            if key[2] == "A":
                row -= int(key[1] or 1)
                assert row >= len(lines) - HEIGHT, "above the screen"
            elif key[2] == "K":
                lines[row] = ""
            continue
        letter, position = written[position], position + 1
        if letter == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif letter != "\r":
            lines[row] += letter
    return lines


def shown(pieces: list[str], *, redrawn: bool) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=WIDTH, height=HEIGHT, color_system=None)
    answer = MarkdownAnswer(console)
    for piece in pieces:
        answer.add(piece)
        if redrawn:
            answer._live.refresh()
    answer.end()
    return screen(written.getvalue())


AT_ONCE = shown([ANSWER], redrawn=False)


def test_every_block_stands_there_once() -> None:
    code, html = ("line_0 = 0", "line_15 = 15"), ("<b>HTML</b>", "<div>")
    for wanted in ("Title", "still two", *code, "quoted", *html, "(http://h:1/)", "Heading", "Last words"):
        assert sum(wanted in line for line in AT_ONCE) == 1, AT_ONCE
    assert not any("```" in line or "**" in line for line in AT_ONCE)
    assert all(line == line.rstrip() for line in AT_ONCE)


@settings(max_examples=30)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=40), st.booleans())
def test_pieces_make_no_difference(cuts: list[int], redrawn: bool) -> None:
    places = [0, *sorted(cuts), len(ANSWER)]
    pieces = [ANSWER[begin:end] for begin, end in pairwise(places)]
    assert shown(pieces, redrawn=redrawn) == AT_ONCE


def test_a_token_at_a_time() -> None:
    assert shown(list(ANSWER), redrawn=True) == AT_ONCE
