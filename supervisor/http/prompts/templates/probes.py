"""Probes: finds the traits of a chat template by what it makes of small conversations. Knows no template by name."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from luce.supervisor.http.prompts.templates.tool_history import call_id
from luce.supervisor.http.prompts.templates.traits import TemplateTraits
from luce.supervisor.text import TemplateError, TextModel

Message = Mapping[str, Any]

logger = logging.getLogger("luce.http.answering")

_MAX_ID_LENGTH = 40
_ID_BEGINS = (f"call_{'0' * 22}", f"toolu_01{'A' * 20}", "functions.read:", "")
"""Of ids as the server makes them itself, and as clients bring them from elsewhere."""
_TOOL_NAME = "probe_tool"
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL_NAME,
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {"probe": {"type": "string"}},
                "required": ["probe"],
            },
        },
    }
]
_NO_THOUGHT = re.compile(r"<think>\s*</think>\s*")
"""Some templates write it before the latest answers alone."""

_ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}

_known: WeakKeyDictionary[TextModel, dict[bool, TemplateTraits]] = WeakKeyDictionary()
_lock = threading.Lock()


def traits_of(model: TextModel, *, with_tools: bool) -> TemplateTraits:
    """`with_tools`: of the template as it is for requests that offer tools. Found once for each model."""
    with _lock:
        known = _known.setdefault(model, {})
        if with_tools not in known:
            known[with_tools] = find_traits(model, with_tools=with_tools)
            if remedies := list(known[with_tools].remedies()):
                offered = "with tools" if with_tools else "without tools"
                logger.info("the chat template, %s, does not take every conversation: %s", offered, "; ".join(remedies))
            if known[with_tools].moves_tools:
                logger.info("the chat template moves the tools to each new question: the text after them is read again")
        return known[with_tools]


def find_traits(model: TextModel, *, with_tools: bool) -> TemplateTraits:
    """Conversations are spelled as _Probe says."""
    probe = _Probe(model, _TOOLS if with_tools else None)
    call_id_length = probe.find_id_length()
    shows_calls = probe.shows("ucrau")
    roles = _system_letters(model)
    leading = [role for role in roles if probe.in_order(f"{role}uau") and probe.continues(f"{role}u", f"{role}uau")]
    first = leading[-1] if leading else ""
    return TemplateTraits(
        shows_tools=probe.shows_tools(),
        parses_calls=probe.parses_calls(),
        shows_calls=shows_calls,
        takes_parallel_calls=shows_calls and probe.shows("uCrrau"),
        takes_text_beside_calls=probe.shows("uwrau") and probe.shows("uWrau"),
        takes_results_alone=probe.shows("urau") and probe.shows("uarau"),
        call_id_length=call_id_length,
        leading_roles=frozenset(map(_ROLES.__getitem__, leading)),
        takes_several_leading=all(probe.in_order(f"{role}{role}uau") for role in leading),
        roles_behind_system=_later_roles(probe, first, roles, shows_calls=shows_calls) if first else frozenset(),
        roles_without_system=_later_roles(probe, "", roles, shows_calls=shows_calls),
        moves_tools=with_tools and probe.in_order("uau") and not probe.continues("u", "uau"),
        alternates=not probe.show_all("uuau", "uaau", *(("ucru", "uacrau") if shows_calls else ())),
        opens_with_user=not probe.show_all("au", "s", *(("crau", "cr") if shows_calls else ())),
    )


def _system_letters(model: TextModel) -> str:
    """A template that does not name the developer would write any word in the place of a role."""
    try:
        return "sd" if "developer" in model.template.source else "s"
    except TemplateError:
        return "s"  # whoever renders it hears of it


def _later_roles(probe: _Probe, first: str, roles: str, *, shows_calls: bool) -> frozenset[str]:
    """Those that are shown where they stand, behind anything, and leave what is before them as it is."""
    before = [f"{first}u", f"{first}uau", *([f"{first}ucr"] if shows_calls else ())]
    return frozenset(
        _ROLES[role]
        for role in roles
        if all(probe.in_order(f"{begin}{role}au") and probe.continues(begin, f"{begin}{role}au") for begin in before)
    )


class _Probe:
    """Renders conversations that are spelled by a letter for each message: s(ystem), d(eveloper), u(ser), a(ssistant),
    c(all), C: two calls, w(ords) beside a call, W: with reasoning too, r(esult)."""

    def __init__(self, model: TextModel, tools: Sequence[Message] | None) -> None:
        self._model = model
        self._tools = tools
        self._id_length: int | None = None
        self._prompts: dict[str, str | None] = {}

    def find_id_length(self) -> int | None:
        """Of the ids that it takes; None: it takes those of all clients, or no calls at all."""
        if all(self._rendered("ucrau", begin) is not None for begin in _ID_BEGINS):
            return None
        for self._id_length in range(1, _MAX_ID_LENGTH + 1):
            if self._rendered("ucrau") is not None:
                return self._id_length
        self._id_length = None
        return None

    def show_all(self, *shapes: str) -> bool:
        return all(map(self.shows, shapes))

    def shows(self, shape: str) -> bool:
        """Whether each text is anywhere in the prompt."""
        prompt = self._render(shape)
        return prompt is not None and all(text in prompt for text in _texts(shape))

    def in_order(self, shape: str) -> bool:
        prompt = self._render(shape)
        places = [-1 if prompt is None else prompt.find(text) for text in _texts(shape)]
        return -1 not in places and places == sorted(places)

    def continues(self, begin: str, whole: str) -> bool:
        """Whether the prompt of `whole` begins as that of its beginning, up to the end of the latter's last text."""
        short, long = self._render(begin), self._render(whole)
        if short is None or long is None:
            return False
        last = _texts(begin)[-1]
        return long.startswith(short[: short.rfind(last) + len(last)])

    def shows_tools(self) -> bool:
        prompt = self._render("u")
        return self._tools is None or (prompt is not None and _TOOL_NAME in prompt)

    def parses_calls(self) -> bool:
        if self._tools is None:
            return True
        try:
            chat = self._model.render(self._messages("u"), tools=self._tools, tool_choice="required")
        except TemplateError:
            return False
        chat.close()
        return chat.grammar != ""

    def _render(self, shape: str) -> str | None:
        """None: the template refuses it."""
        if shape not in self._prompts:
            self._prompts[shape] = self._rendered(shape)
        return self._prompts[shape]

    def _rendered(self, shape: str, id_begin: str = _ID_BEGINS[0]) -> str | None:
        try:
            chat = self._model.render(self._messages(shape, id_begin), tools=self._tools, add_generation_prompt=False)
        except TemplateError:
            return None
        chat.close()
        return _NO_THOUGHT.sub("", chat.prompt)

    def _messages(self, shape: str, id_begin: str = _ID_BEGINS[0]) -> list[Message]:
        messages: list[Message] = []
        open_ids: list[str] = []
        for at, letter in enumerate(shape):
            if letter == "r":
                id_ = open_ids.pop(0) if open_ids else self._id(f"{id_begin}{at}0")
                messages.append({"role": "tool", "content": _text(at), "tool_call_id": id_})
            elif letter in "cCwW":
                open_ids = [self._id(f"{id_begin}{at}{number}") for number in range(2 if letter == "C" else 1)]
                calls = [_call(id_, _argument(at, number)) for number, id_ in enumerate(open_ids)]
                message = {"role": "assistant", "content": _text(at) if letter in "wW" else "", "tool_calls": calls}
                messages.append({**message, "reasoning_content": "Hm."} if letter == "W" else message)
            else:
                messages.append({"role": _ROLES[letter], "content": _text(at)})
        return messages

    def _id(self, id_: str) -> str:
        return id_ if self._id_length is None else call_id(id_, self._id_length)


def _text(at: int) -> str:
    return f"Probe {at}."


def _argument(at: int, number: int) -> str:
    return f"Argument {at} {number}."


def _call(id_: str, argument: str) -> dict[str, Any]:
    return {
        "id": id_,
        "type": "function",
        "function": {"name": _TOOL_NAME, "arguments": json.dumps({"probe": argument})},
    }


def _texts(shape: str) -> list[str]:
    """All that such a conversation says, in its order."""
    texts = []
    for at, letter in enumerate(shape):
        if letter not in "cC":
            texts.append(_text(at))
        if letter in "cCwW":
            texts += [_argument(at, number) for number in range(2 if letter == "C" else 1)]
    return texts
