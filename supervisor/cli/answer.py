"""Answer: the tokens of one generation on their way to text that is shown. Plain, or read as a chat model's answer.

Knows text, no engine: it says when a stop text has come, others act on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from luce.supervisor.cli.entry import say
from luce.supervisor.text import (
    AnswerFormatError,
    AnswerParser,
    ContentDelta,
    Delta,
    ReasoningDelta,
    RenderedChat,
    StopStrings,
    TextModel,
)


class Answer(Protocol):
    """What `luce run` needs of an answer."""

    text: str
    reasoning: str

    def has_stopped(self) -> bool:
        """A stop text has come: no more is wanted."""

    def feed(self, token: int) -> str:
        """What is to be shown now."""

    def finish(self) -> str:
        """What was still waiting."""


class PlainAnswer:
    """Text as the tokens spell it."""

    def __init__(self, model: TextModel, stops: Sequence[str]) -> None:
        self._detokenizer = model.detokenizer()
        self._stops = StopStrings(stops)
        self.text = ""
        self.reasoning = ""

    def has_stopped(self) -> bool:
        return self._stops.match is not None

    def feed(self, token: int) -> str:
        return self._show(self._stops.feed(self._detokenizer.feed(token)))

    def finish(self) -> str:
        return self._show(self._stops.feed(self._detokenizer.finish()) + self._stops.finish())

    def _show(self, shown: str) -> str:
        self.text += shown
        return shown


class ChatAnswer:
    """The content of a chat model's answer; reasoning goes to stderr, tool calls are shown at its end."""

    def __init__(self, model: TextModel, chat: RenderedChat, stops: Sequence[str]) -> None:
        self._parser = AnswerParser(chat)
        self._ends = frozenset(model.info.eog)
        self._stops = StopStrings([*stops, *chat.additional_stops])
        self.text = ""
        self.reasoning = ""

    def has_stopped(self) -> bool:
        return self._stops.match is not None

    def feed(self, token: int) -> str:
        return "" if token in self._ends else self._show(self._parser.feed(token))

    def finish(self) -> str:
        try:
            finished = self._parser.finish(truncated=True)
        except AnswerFormatError as error:
            say(f"the answer is not in the model's own format: {error}")
            return self._finish_text()
        shown = self._show(finished.deltas) + self._finish_text()
        return shown + "".join(f"\n{call.name}({call.arguments})" for call in finished.message.tool_calls)

    def _finish_text(self) -> str:
        rest = self._stops.finish()
        self.text += rest
        return rest

    def _show(self, deltas: Sequence[Delta]) -> str:
        shown = ""
        for delta in deltas:
            if isinstance(delta, ReasoningDelta):
                self.reasoning += delta.text
                say(delta.text, nl=False)
            elif isinstance(delta, ContentDelta):
                shown += self._stops.feed(delta.text)
        self.text += shown
        return shown
