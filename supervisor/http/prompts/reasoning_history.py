"""ReasoningHistory: whether a template shows the reasoning of earlier turns, where its makers leave that open.

Most templates strip it once the user writes again, and some take an argument that keeps it. Each family has given the
argument another name. Knows templates' texts and what their makers advise; no dialect and no engine.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.text import TemplateError, TextModel

_KEEPING = ("preserve_thinking", "keep_past_thinking", "preserved_thinking")
_STRIPPING = ("clear_thinking", "truncate_history_thinking", "drop_thinking")

_ADVISED = (
    ("preserve_thinking", "<function="),  # Qwen, from 3.6 on, by its format of calls: trained for it
    ("clear_thinking", "<arg_key>"),  # GLM, from 4.7 on
)
"""Templates by two texts in them, whose makers advise it for agents."""


class ReasoningHistory:
    """Of one model. Any thread may use it."""

    def __init__(self, model: TextModel) -> None:
        self._model = model

    @cached_property
    def is_optional(self) -> bool:
        return any(name in self._source for name in (*_KEEPING, *_STRIPPING))

    @cached_property
    def is_advised(self) -> bool:
        return any(argument in self._source and format_ in self._source for argument, format_ in _ADVISED)

    @cached_property
    def _source(self) -> str:
        try:
            return self._model.template.source
        except TemplateError:
            return ""  # whoever renders it hears of it

    def arguments(self, prompt: ChatPrompt) -> dict[str, Any]:
        """For the template, where the prompt or its makers say something of it."""
        wanted = prompt.preserve_thinking
        if not self.is_optional or (wanted == "auto" and not (prompt.tools and self.is_advised)):
            return {}
        keeps = wanted != "off"
        return {**dict.fromkeys(_KEEPING, keeps), **dict.fromkeys(_STRIPPING, not keeps)}
