"""Pins: which parts of a prompt a request wants in sight all the time, where texts may outgrow the engine's pool.

Reads what clients say of it, in each dialect's parser, and finds the parts in the rendered prompt. Knows no engine: a
pin that is too large for the pool is the engine's to refuse. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from luce.protocol import MAX_MARKS
from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.prompts.answer_request import ChatPrompt, Pin, TextPrompt
from luce.supervisor.text import MessageMark

PinKind = Literal["system", "message", "span"]

_SHAPES: dict[PinKind, str] = {
    "system": '"system"',
    "message": "the number of a message, from 0",
    "span": "[begin, end], positions of the prompt's tokens",
}
_SYSTEM_ROLES = frozenset({"system", "developer"})


def read_pins(value: Any, *kinds: PinKind) -> tuple[Pin, ...]:
    """The field `pin`: one part of the prompt or a list of them, of the kinds that the dialect has."""
    if value is None:
        return ()
    entries = value if isinstance(value, list) else [value]
    if len(entries) > MAX_MARKS:
        raise _invalid(f"Invalid 'pin': {len(entries)} parts are more than {MAX_MARKS}.")
    return tuple(_read(entry, kinds) for entry in entries)


def _read(entry: Any, kinds: Sequence[PinKind]) -> Pin:
    if entry == "system" and "system" in kinds:
        return "system"
    if "message" in kinds and _is_count(entry):
        return int(entry)
    is_pair = isinstance(entry, list) and len(entry) == 2 and all(map(_is_count, entry))
    if "span" in kinds and is_pair and entry[0] < entry[1]:
        return (entry[0], entry[1])
    shapes = ", or ".join(_SHAPES[kind] for kind in kinds)
    raise _invalid(f"Invalid 'pin': {str(entry)[:80]!r} is not {shapes}; a list may name several.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def pinned_spans(
    pins: Sequence[Pin],
    prompt: ChatPrompt | TextPrompt,
    turns: Sequence[tuple[MessageMark, int | None]],
    n_prompt: int,
) -> tuple[tuple[int, int], ...]:
    """Positions of the prompt's ids. `turns`: where the template's messages begin in them, in order; None: within what
    an earlier answer stands for. A system prompt that is not there takes nothing. Raises ApiError."""
    spans = []
    for pin in pins:
        if isinstance(pin, tuple):
            spans.append(pin)
            continue
        assert isinstance(prompt, ChatPrompt)
        begin, end = _system(turns) if pin == "system" else _message(int(pin), prompt, turns, n_prompt)
        if begin < end:
            spans.append((begin, end))
    return tuple(spans)


def _system(turns: Sequence[tuple[MessageMark, int | None]]) -> tuple[int, int]:
    """All that stands before the first message of somebody else: what the template says of tools among it."""
    others = (position for mark, position in turns if mark.role not in _SYSTEM_ROLES)
    return 0, next(others, None) or 0


def _message(
    number: int, prompt: ChatPrompt, turns: Sequence[tuple[MessageMark, int | None]], n_prompt: int
) -> tuple[int, int]:
    if number >= len(prompt.messages):
        raise _invalid(f"Invalid 'pin': there is no message {number}: there are {len(prompt.messages)}, from 0.")
    opens_answer = prompt.opens_answer and not prompt.continues_last
    own = list(turns[:-1] if opens_answer else turns)
    if len(own) == len(prompt.messages) + 1 and not _is_system(prompt.messages[0]):
        own = own[1:]  # the template's own system message
    if len(own) != len(prompt.messages):
        raise _invalid(
            f"Invalid 'pin': the model's template makes {len(own)} messages of these {len(prompt.messages)}, so it"
            f' cannot be told where message {number} is; pin "system", or leave it out.'
        )
    behind = list(turns)[len(turns) - len(own) - opens_answer :]
    places = [position for _, position in behind] + [n_prompt]
    begin = places[number]
    end = next(place for place in places[number + 1 :] if place is not None)
    assert end is not None
    return (end, end) if begin is None else (begin, end)


def _is_system(message: Mapping[str, Any]) -> bool:
    return message.get("role") in _SYSTEM_ROLES


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorKind.INVALID, "invalid_pin", text, param="pin")
