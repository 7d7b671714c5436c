"""What a person types in a chat: lines with an editor, a history that outlives the chat, and completion.

Knows prompt_toolkit, the commands' names and a file; nothing of what is done with a line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output.vt100 import Vt100_Output

from luce.supervisor.cli.entry import say
from luce.supervisor.cli.terminal.commands import BRANCH, COMMANDS, FILE

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.key_binding import KeyPressEvent


def default_history() -> Path:
    """Where programs keep what shall outlive them but is no setting."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "luce-daemon" / "chat_history"


def open_editor(history: Path, branch_names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """Call what it gives with a prompt. REQUIRES a terminal at stdin and stdout."""
    session: PromptSession[str] = PromptSession(
        history=_history(history),
        completer=ChatCompleter(branch_names),
        complete_while_typing=Condition(lambda: get_app().current_buffer.text.startswith("/")),
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation=FormattedText([("", "… ")]),
        enable_open_in_editor=True,
        # It would ask the terminal where the cursor is, and take the answer for typed where we have ended by then.
        output=Vt100_Output(sys.stdout, _screen_size, term=os.environ.get("TERM"), enable_cpr=False),
    )
    return lambda prompt: session.prompt(FormattedText([("bold", prompt)]))


def _screen_size() -> Size:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return Size(rows=rows or 24, columns=columns or 80)  # not every terminal says


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


class ChatCompleter(Completer):
    """Commands, and what they take."""

    def __init__(self, branch_names: Callable[[], Iterable[str]]) -> None:
        self._branch_names = branch_names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, argument = text[1:].partition(" ")
        if not space:
            for known, command in COMMANDS.items():
                if known.startswith(name):
                    yield Completion(known, -len(name), display_meta=command.does)
        elif name in COMMANDS and COMMANDS[name].takes == FILE:
            yield from self._paths.get_completions(Document(argument), complete_event)
        elif name in COMMANDS and COMMANDS[name].takes == BRANCH:
            yield from (
                Completion(known, -len(argument)) for known in self._branch_names() if known.startswith(argument)
            )


class _SavedHistory(FileHistory):
    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a disk that is full by now costs the history, not the chat
            super().store_string(string)


def _history(path: Path) -> History:
    """In a file that its owner alone can read."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        say(f"what you type is not kept for another time: {path}: {error.strerror}")
        return InMemoryHistory()
    return _SavedHistory(path)
