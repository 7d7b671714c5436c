"""Talk: the turns of a chat: a line in, an answer shown as it comes, its figures; or a command carried out.

Puts conversation, client, lines and screen together. Runs in the main thread; answers come in the background's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from luce.supervisor.cli.chat_background import Background
from luce.supervisor.cli.chat_client import (
    AnswerEnd,
    CallPart,
    ChatClient,
    ChatError,
    ContentText,
    ReasoningText,
)
from luce.supervisor.cli.chat_conversation import Answer, Conversation, NotAConversationError, ToolCall
from luce.supervisor.cli.chat_input import COMMANDS, ChatCommand, Lines, help_text, read_command
from luce.supervisor.cli.chat_screen import Screen, figures
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED


class Talk:
    def __init__(
        self, background: Background[ChatClient], screen: Screen, lines: Lines, options: Mapping[str, Any]
    ) -> None:
        """`options` go with every request."""
        self._background = background
        self._screen = screen
        self._lines = lines
        self._options = options
        self._conversation = Conversation()
        self._has_failed = False

    def run(self, conversation: Conversation) -> int:
        """Until the end of the lines, or /quit. Returns the exit code: where nobody watches, a turn without an answer
        is a failure."""
        self._conversation = conversation
        if self._screen.is_terminal:
            self._screen.note("/help shows the commands; Ctrl-C stops an answer, Ctrl-D leaves")
        goes_on = True
        while goes_on:
            try:
                goes_on = self._next_line()
            except KeyboardInterrupt:  # wherever it comes: also between an answer and the next prompt
                if not self._screen.is_terminal:
                    raise
                self._screen.note("\nCtrl-D or /quit leaves")
        self._screen.end_line()
        return EXIT_REFUSED if self._has_failed and not self._screen.is_terminal else EXIT_OK

    def _next_line(self) -> bool:
        """Whether there may be another one."""
        line = self._lines.read(self._screen.prompt(">"))
        if line is None:
            return False
        command = read_command(line)
        if command is not None and command.name == "quit":
            return False
        if command is not None:
            self._carry_out(command)
        elif line.strip():
            self._conversation.say(line.removeprefix("/") if line.startswith("//") else line)
            self._turn()
        return True

    def _fail(self, text: str) -> None:
        self._has_failed = True
        self._screen.error(text)

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
            return self._lines.read(self._screen.prompt(f"result of {call.name}>"))
        except KeyboardInterrupt:
            if not self._screen.is_terminal:
                raise
            self._screen.note("\nwithout a result: the turn is dropped with your next message")
            return None

    def _answer(self) -> Answer | None:
        """What came, also if it was stopped; None, if it is not part of the conversation."""
        answer = Answer()
        try:
            self._background.call(lambda: self._stream(answer))
        except ChatError as error:
            self._fail(str(error))
            return None
        except KeyboardInterrupt:
            self._screen.note("(stopped)")
            answer.calls.clear()  # perhaps not whole
            if not self._screen.is_terminal:
                raise
        if answer:
            self._conversation.take(answer)
        return answer

    async def _stream(self, answer: Answer) -> None:
        """Runs in the background."""
        began_s = time.monotonic()
        first_s: float | None = None
        parts: dict[int, list[str]] = {}
        events = self._background.value.answer(self._conversation.messages, self._options)
        async with aclosing(events) as stream:  # type: ignore[type-var]  # an async generator
            async for event in stream:
                if first_s is None:
                    first_s = time.monotonic() - began_s
                match event:
                    case ReasoningText(text):
                        answer.reasoning += text
                        self._screen.reasoning(text)
                    case ContentText(text):
                        answer.content += text
                        self._screen.content(text)
                    case CallPart(index, call_id, name, arguments):
                        part = parts.setdefault(index, ["", "", ""])
                        for place, more in enumerate((call_id, name, arguments)):
                            part[place] += more
                    case AnswerEnd(reason, usage):
                        self._end(answer, parts, reason)
                        self._screen.note(figures(usage, first_s, time.monotonic() - began_s))

    def _end(self, answer: Answer, parts: Mapping[int, list[str]], reason: str) -> None:
        self._screen.end_line()
        answer.calls = [ToolCall(*part) for _, part in sorted(parts.items())]
        for call in answer.calls:
            self._screen.call(call.name, call.arguments)
        if reason == "length":
            answer.calls = []  # cut off: there is nothing to give a result to
            self._screen.note("(cut off: the limit of -n or of the context)")

    # Commands

    def _carry_out(self, command: ChatCommand) -> None:
        try:
            self._act(command)
        except (OSError, ValueError, NotAConversationError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._fail(f"/{command.name} {command.argument}: {reason}")

    def _act(self, command: ChatCommand) -> None:
        argument, screen, conversation = command.argument, self._screen, self._conversation
        match command.name:
            case "help":
                screen.note(help_text())
            case "reset":
                conversation.reset()
                screen.note("(the conversation is forgotten)")
            case "system" if argument:
                conversation.set_system(argument)
            case "system":
                screen.note(conversation.system if conversation.system is not None else "(no system message)")
            case "save" if argument:
                Path(argument).expanduser().write_text(conversation.to_json(), encoding="utf-8")
                screen.note(f"({len(conversation.messages)} messages in {argument})")
            case "load" if argument:
                self._conversation = Conversation.from_json(Path(argument).expanduser().read_text(encoding="utf-8"))
                screen.note(f"({len(self._conversation.messages)} messages)")
            case "retry":
                if conversation.retry():
                    self._turn()
                else:
                    self._fail("there is nothing to answer yet")
            case name if name in COMMANDS:
                self._fail(f"/{name} wants a file: /{name} FILE")
            case name:
                self._fail(f"there is no command /{name}: /help shows them; // begins a message with a slash")
