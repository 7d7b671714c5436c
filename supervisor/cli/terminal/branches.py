"""Branches: the ways that a conversation took, each by its name, and the one that goes on now. Pure.

What two branches share the server has in memory, so that a branch costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from luce.supervisor.cli.terminal.conversation import Conversation

_FIRST = "main"


class Branches:
    def __init__(self, conversation: Conversation) -> None:
        self.name = _FIRST
        self._by_name = {_FIRST: conversation}

    @property
    def conversation(self) -> Conversation:
        return self._by_name[self.name]

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    def replace(self, conversation: Conversation) -> None:
        """In place of what the branch was until now."""
        self._by_name[self.name] = conversation

    def go_to(self, name: str, n_turns: int | None = None) -> bool:
        """To the branch of this name. Where there is none it is made: of the first turns of the one we are in, or all
        of them. Returns whether it was. Raises ValueError."""
        is_new = name not in self._by_name
        if is_new:
            self._by_name[name] = self.conversation.forked(n_turns)
        elif n_turns is not None:
            raise ValueError(f"there is a branch {name} already: choose another name, or leave the number out")
        self.name = name
        return is_new

    def described(self) -> Iterator[str]:
        """A line a branch, and below it the turns of the one we are in."""
        for name, conversation in self._by_name.items():
            turns = conversation.turns
            yield f"{'*' if name == self.name else ' '} {name}: {count_of(turns)}"
            if name == self.name:
                yield from (f"    {number} {_shortened(text)}" for number, text in enumerate(turns, start=1))


def count_of(turns: Sequence[str]) -> str:
    return "1 turn" if len(turns) == 1 else f"{len(turns)} turns"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:69] + "…"
