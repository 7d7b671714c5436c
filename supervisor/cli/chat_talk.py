"""Talk: the turns of a chat: a line in, an answer shown as it comes, its figures; or a command carried out.

Puts conversation, server and terminal together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from luce.supervisor.cli.chat_conversation import Conversation
from luce.supervisor.cli.chat_terminal import Terminal, figures
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED
from luce.supervisor.cli.server_client import CHAT_PATH, Answer, ServerClient, ServerError, ToolCall

COMMANDS = {
    "help": "show these commands",
    "reset": "forget the conversation; the system message stays",
    "system": "TEXT: set the system message; without TEXT, show it",
    "save": "FILE: write the conversation as JSON",
    "load": "FILE: go on from a conversation that was saved",
    "retry": "have the last message answered again",
    "quit": "leave (so does Ctrl-D)",
}


def help_text() -> str:
    lines = [f"/{name:<7}{what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "Ctrl-C stops an answer. A message that begins with a slash is written with two."])


class Talk:
    def __init__(
        self, server: ServerClient, terminal: Terminal, options: Mapping[str, Any], conversation: Conversation
    ) -> None:
        """`options` go with every request."""
        self._server = server
        self._terminal = terminal
        self._options = options
        self._conversation = conversation
        self._has_failed = False

    def run(self) -> int:
        """Until the end of the lines, or /quit. Returns the exit code: where nobody watches, a turn without an answer
        is a failure."""
        if self._terminal.is_terminal:
            self._terminal.note("/help shows the commands; Ctrl-C stops an answer, Ctrl-D leaves")
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
        line = self._terminal.read(">")
        if line is None:
            return False
        if line.startswith("/") and not line.startswith("//"):
            name, _, argument = line[1:].partition(" ")
            return self._carry_out(name.strip().lower(), argument.strip())
        if line.strip():
            self._conversation.say(line.removeprefix("/") if line.startswith("//") else line)
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
                self._conversation.give_result(call, result)

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
            self._conversation.take(answer)
        return answer

    def _stream(self, answer: Answer) -> None:
        began_s = time.monotonic()
        first_s: float | None = None
        body = {**self._options, "messages": self._conversation.messages}
        with closing(self._server.stream(CHAT_PATH, body, answer)) as pieces:
            for kind, text in pieces:
                if first_s is None:
                    first_s = time.monotonic() - began_s
                if kind == "reasoning":
                    self._terminal.reasoning(text)
                elif kind == "content":
                    self._terminal.content(text)
        self._terminal.end_line()
        for call in answer.calls:
            self._terminal.content(f"→ {call.name}({call.arguments})\n")
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
        note, conversation = self._terminal.note, self._conversation
        match name:
            case "quit":
                pass
            case "help":
                note(help_text())
            case "reset":
                conversation.reset()
                note("(the conversation is forgotten)")
            case "system" if argument:
                conversation.system = argument
            case "system":
                note(conversation.system if conversation.system is not None else "(no system message)")
            case "save" if argument:
                Path(argument).expanduser().write_text(conversation.to_json(), encoding="utf-8")
                note(f"({len(conversation.messages)} messages in {argument})")
            case "load" if argument:
                self._conversation = Conversation.from_json(Path(argument).expanduser().read_text(encoding="utf-8"))
                note(f"({len(self._conversation.messages)} messages)")
            case "retry":
                if conversation.retry():
                    self._turn()
                else:
                    self._fail("there is nothing to answer yet")
            case _ if name in COMMANDS:
                self._fail(f"/{name} wants a file: /{name} FILE")
            case _:
                self._fail(f"there is no command /{name}: /help shows them; // begins a message with a slash")
