"""Applies our patches to an unpacked tree of llama.cpp: apply_patches.py TREE PATCH...

The tree is pinned, so a hunk fits at its line, to the letter, or the patch is out of date. A tree that has them all is
left alone. Written here because a machine that builds has Python, but not always patch or git. It must not know what
the patches are for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass
class Hunk:
    """Lines of a file, and those that shall stand in their place, from `line` on (counted from 1)."""

    file: str
    line: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


class PatchError(Exception):
    """A patch that cannot be applied, and why."""


def hunks_of(text: str) -> Iterator[Hunk]:
    """The hunks of a unified diff, in its order; what stands before the first file is its reason."""
    file = ""
    n_old = n_new = n_hunks = 0
    hunk = Hunk("", 0)
    for line in text.splitlines():
        if n_old > 0 or n_new > 0:
            if line[:1] != "+":
                hunk.old.append(line[1:])
                n_old -= 1
            if line[:1] != "-":
                hunk.new.append(line[1:])
                n_new -= 1
            if n_old == 0 and n_new == 0:
                n_hunks += 1
                yield hunk
        elif line.startswith("+++ "):
            file = line.removeprefix("+++ ").split("\t")[0].removeprefix("b/")
        elif file and (begins := HUNK.match(line)):
            n_old, n_new = int(begins[1] or 1), int(begins[3] or 1)
            hunk = Hunk(file, int(begins[2]))
    if n_hunks == 0 or n_old != 0 or n_new != 0:
        raise PatchError("it is no whole unified diff")


def apply_hunk(tree: Path, hunk: Hunk) -> None:
    path = tree / hunk.file
    if not path.is_file():
        raise PatchError(f"{hunk.file} is not there")
    lines = path.read_text().split("\n")
    begin = hunk.line - 1
    if lines[begin : begin + len(hunk.new)] == hunk.new:
        return
    if lines[begin : begin + len(hunk.old)] != hunk.old:
        raise PatchError(f"{hunk.file} has other lines at {hunk.line}")
    lines[begin : begin + len(hunk.old)] = hunk.new
    path.write_text("\n".join(lines))


def has_all(tree: Path, patches: list[Path]) -> bool:
    """Whether each file is as the last patch that changes it leaves it: that one may have changed what patches before
    it have left there."""
    last: dict[str, list[Hunk]] = {}
    for patch in patches:
        of_patch: dict[str, list[Hunk]] = {}
        for hunk in hunks_of(patch.read_text()):
            of_patch.setdefault(hunk.file, []).append(hunk)
        last |= of_patch
    return all(is_applied(tree, hunk) for hunks in last.values() for hunk in hunks)


def is_applied(tree: Path, hunk: Hunk) -> bool:
    path = tree / hunk.file
    begin = hunk.line - 1
    return path.is_file() and path.read_text().split("\n")[begin : begin + len(hunk.new)] == hunk.new


def main(arguments: list[str]) -> int:
    tree, *patches = map(Path, arguments)
    for patch in patches:
        try:
            if has_all(tree, patches):
                return 0
            for hunk in hunks_of(patch.read_text()):
                apply_hunk(tree, hunk)
        except (PatchError, OSError) as e:
            print(f"{patch} does not fit {tree}: {e}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
