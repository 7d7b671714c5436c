"""FittedTemplate: renders conversations with a template that does not take all of them as they are.

What it takes is found out once; conversations are then always changed in the same way, so that a longer one begins as
the shorter one did. Knows templates by their traits; no answers that were given, and no engine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from luce.supervisor.http.prompts.templates.probes import traits_of
from luce.supervisor.http.prompts.templates.refusals import reason_of, refusal
from luce.supervisor.http.prompts.templates.role_order import (
    alternating,
    opened_by_user,
    place_system_messages,
    without_marks,
)
from luce.supervisor.http.prompts.templates.tool_history import in_words, one_call_each, text_apart, with_call_ids
from luce.supervisor.http.prompts.templates.traits import STRICTEST, TemplateTraits
from luce.supervisor.text import RenderedChat, TemplateError, TextModel

Message = Mapping[str, Any]

logger = logging.getLogger("luce.http.answering")


@dataclass(frozen=True, slots=True)
class FittedChat:
    chat: RenderedChat
    messages: Sequence[Message]
    """Of which it was rendered, but for the ids of calls."""
    traits: TemplateTraits
    """For which they were fitted."""


class FittedTemplate:
    """Of one model. Any thread may use it."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._said: set[str] = set()

    def traits(self, *, with_tools: bool) -> TemplateTraits:
        """For requests that offer tools, and for others."""
        return traits_of(self._model, with_tools=with_tools)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None, **options: Any
    ) -> FittedChat:
        """`messages`: normalised. `options`: those of TextModel.render. Raises ApiError where the template refuses
        them, and what else TextModel.render raises."""
        traits = self.traits(with_tools=bool(tools))
        try:
            return self._render(fitted(messages, traits), traits, tools, options)
        except TemplateError as error:
            unmarked = without_marks(messages)
            for taken in (traits, STRICTEST):
                with suppress(TemplateError):
                    chat = self._render(fitted(unmarked, taken), taken, tools, options)
                    self._say_changed(error, "in plain turns" if taken is STRICTEST else "without marks in its answers")
                    return chat
            strict = fitted(unmarked, STRICTEST)
            raise refusal(error, is_about_tools=bool(tools) and self._takes(strict, options)) from error

    def _render(
        self,
        shown: Sequence[Message],
        traits: TemplateTraits,
        tools: Sequence[Message] | None,
        options: Mapping[str, Any],
    ) -> FittedChat:
        named = shown if traits.call_id_length is None else with_call_ids(shown, traits.call_id_length)
        return FittedChat(self._model.render(named, tools=tools, **options), shown, traits)

    def _takes(self, messages: Sequence[Message], options: Mapping[str, Any]) -> bool:
        """Without the tools."""
        try:
            self._model.render(messages, **{**options, "tool_choice": "auto"}).close()
        except TemplateError:
            return False
        return True

    def _say_changed(self, error: TemplateError, how: str) -> None:
        logger.debug("the chat template refuses a conversation: %s", error)
        if how not in self._said:
            self._said.add(how)
            logger.warning(
                "the chat template refuses a conversation, which is told %s instead: %s", how, reason_of(error)
            )


def fitted(messages: Sequence[Message], traits: TemplateTraits) -> Sequence[Message]:
    """The conversation as a template with these traits takes it, but for the ids of calls."""
    if traits.parts_text_from_calls:
        messages = text_apart(messages)
    if not traits.takes_parallel_calls and traits.shows_calls:
        messages = one_call_each(messages)
    if not (traits.shows_calls and traits.takes_results_alone):
        messages = in_words(messages, calls=not traits.shows_calls, results_alone=not traits.takes_results_alone)
    messages = place_system_messages(messages, traits)
    if traits.opens_with_user:
        messages = opened_by_user(messages)
    if traits.alternates:
        messages = alternating(messages)
    return messages
