"""Talk: the turns of a chat: a line in, an answer shown as it comes, its figures; or a command carried out.

Puts conversation, server and terminal together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED
from luce.supervisor.cli.server_client import CHAT_PATH, Answer, ServerClient, ServerError, ToolCall
from luce.supervisor.cli.terminal.branches import Branches, count_of
from luce.supervisor.cli.terminal.commands import COMMANDS, FILE, help_text
from luce.supervisor.cli.terminal.conversation import Conversation
from luce.supervisor.cli.terminal.screen import Terminal, figures
from luce.supervisor.private_file import write_private

_MAX_FILE_BYTES = 8 << 20  # a server takes no more than 32 MiB with each turn


class Talk:
    def __init__(
        self, server: ServerClient, terminal: Terminal, options: Mapping[str, Any], branches: Branches
    ) -> None:
        """`options` go with every request."""
        self._server = server
        self._terminal = terminal
        self._options = options
        self._branches = branches
        self._files: list[tuple[str, str]] = []  # that go with the next message
        self._has_failed = False

    def run(self) -> int:
        """Until the end of the lines, or /quit. Returns the exit code: where nobody watches, a turn without an answer
        is a failure."""
        goes_on = True
        while goes_on:
            try:
                goes_on = self._next_line()
            except KeyboardInterrupt:  # wherever it comes: also between an answer and the next prompt
                if not self._terminal.is_terminal:
                    raise
                self._terminal.note("\nCtrl-D or /quit leaves")
        self._terminal.end_line()
        return EXIT_REFUSED if self._has_failed and not self._terminal.is_terminal else EXIT_OK

    def _next_line(self) -> bool:
        """Whether there may be another one."""
        names = self._branches.names
        line = self._terminal.read(">" if len(names) == 1 else f"{self._branches.name}>")
        if line is None:
            return False
        if line.startswith("/") and not line.startswith("//"):
            name, _, argument = line[1:].partition(" ")
            return self._carry_out(name.strip().lower(), argument.strip())
        if line.strip():
            text = line.removeprefix("/") if line.startswith("//") else line
            self._branches.conversation.say(text, self._files)
            self._files = []
            self._turn()
        return True

    def _fail(self, text: str) -> None:
        self._has_failed = True
        self._terminal.error(text)

    def _turn(self) -> None:
        """The model's part of it: an answer, and more of them while it calls tools."""
        while True:
            answer = self._answer()
            if answer is None or not answer.calls:
                return
            for call in answer.calls:
                result = self._result_of(call)
                if result is None:
                    return
                self._branches.conversation.give_result(call, result)

    def _result_of(self, call: ToolCall) -> str | None:
        try:
            return self._terminal.read(f"result of {call.name}>")
        except KeyboardInterrupt:
            if not self._terminal.is_terminal:
                raise
            self._terminal.note("\nwithout a result: the turn is dropped with your next message")
            return None

    def _answer(self) -> Answer | None:
        """What came, also if it was stopped; None, if it is not part of the conversation."""
        answer = Answer()
        try:
            self._stream(answer)
        except ServerError as error:
            self._fail(str(error))
            return None
        except KeyboardInterrupt:
            self._terminal.note("(stopped)")
            answer.calls.clear()  # perhaps not whole
            if not self._terminal.is_terminal:
                raise
        if answer:
            self._branches.conversation.take(answer)
        return answer

    def _stream(self, answer: Answer) -> None:
        began_s = time.monotonic()
        first_s: float | None = None
        body = {**self._options, "messages": self._branches.conversation.messages}
        try:
            with closing(self._server.stream(CHAT_PATH, body, answer)) as pieces:
                for kind, text in pieces:
                    if first_s is None:
                        first_s = time.monotonic() - began_s
                    if kind == "reasoning":
                        self._terminal.reasoning(text)
                    elif kind == "content":
                        self._terminal.content(text)
        finally:
            self._terminal.end_line()
        for call in answer.calls:
            self._terminal.line(f"→ {call.name}({call.arguments})")
        if answer.reason == "length":
            answer.calls = []  # cut off: there is nothing to give a result to
            self._terminal.note("(cut off: the limit of -n or of the context)")
        self._terminal.note(figures(answer.usage, first_s, time.monotonic() - began_s))

    def _carry_out(self, name: str, argument: str) -> bool:
        """False: it was /quit."""
        try:
            self._act(name, argument)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._fail(f"/{name} {argument}: {reason}")
        return name != "quit"

    def _act(self, name: str, argument: str) -> None:
        if name not in COMMANDS:
            self._fail(f"there is no command /{name}: /help shows them; // begins a message with a slash")
        elif COMMANDS[name].takes == FILE:
            if not argument:
                raise ValueError(f"it wants a file: /{name} FILE")
            self._with_file(name, Path(argument).expanduser())
        else:
            self._without_file(name, argument)

    def _with_file(self, name: str, path: Path) -> None:
        match name:
            case "file":
                text = _text_in(path)
                self._files.append((path.name, text))
                self._terminal.note(f"({path.name}, {len(text):,} characters, goes with your next message)")
            case "save":
                conversation = self._branches.conversation
                write_private(path, conversation.to_json().encode())
                self._terminal.note(f"({len(conversation.messages)} messages in {path})")
            case "load":
                self._branches.replace(Conversation.from_json(_text_in(path)))
                self._terminal.note(f"({len(self._branches.conversation.messages)} messages)")

    def _without_file(self, name: str, argument: str) -> None:
        note, conversation = self._terminal.note, self._branches.conversation
        match name:
            case "help":
                note(help_text())
            case "reset":
                conversation.reset()
                self._files = []
                note("(the conversation is forgotten)")
            case "system" if argument:
                conversation.system = argument
            case "system":
                note(conversation.system if conversation.system is not None else "(no system message)")
            case "branch" if argument:
                self._branch(argument)
            case "branch":
                note("\n".join(self._branches.described()))
            case "retry" if conversation.retry():
                self._turn()
            case "retry":
                self._fail("there is nothing to answer yet")

    def _branch(self, argument: str) -> None:
        name, *rest = argument.split()
        if len(rest) > 1 or not all(word.isascii() and word.isdigit() for word in rest):
            raise ValueError("it wants a name, and a number of turns if not all: /branch NAME [N]")
        is_new = self._branches.go_to(name, int(rest[0]) if rest else None)
        turns = count_of(self._branches.conversation.turns)
        self._terminal.note(f"({'a new branch' if is_new else 'the branch'} {name}, {turns} so far)")


def _text_in(path: Path) -> str:
    """Raises OSError or ValueError."""
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is no file")
    if size > _MAX_FILE_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than the {_MAX_FILE_BYTES:,} that go with a message")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: byte {error.start:,} is none") from None
