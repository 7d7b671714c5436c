"""The commands about slots, weights and caches: in capitals, without an id, and by name, with one.

The forms by name are tables of keys, those in capitals are words by their place. Whether a slot exists, or holds
something, is the daemon's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from luce.protocol.commands import (
    AdoptFiles,
    Clear,
    DescribeImage,
    ForgetText,
    FreeScorer,
    FreeSlot,
    HoldText,
    ListFiles,
    ListSlots,
    ListTexts,
    LoadSlot,
    MemoryCommand,
    Park,
    ProbeText,
    SaveSlot,
    Snapshot,
    TextCommand,
    ThinSnapshot,
    Unpark,
    WatchPages,
    Weights,
    WriteText,
)
from luce.protocol.scalar_values import MAX_UINT64, RefusedError, parse_count, parse_integer, parse_text, shortened

from .generations import NAMED_KEYS, Key, next_word, read_named_args, sets, words_of
from .lists import parse_texts
from .scalars import parse_flag, parse_placed_count

_BLANKS = b" \t"

ParkCommand = TypeVar("ParkCommand", Park, Unpark)
SlotCommand = TypeVar("SlotCommand", Snapshot, FreeSlot)
FileCommand = TypeVar("FileCommand", SaveSlot, LoadSlot)


# Forms by name


def _parse_path(value: bytes) -> str:
    if not value:
        raise RefusedError("has no path")
    return parse_text(value)


def _parse_weights(value: bytes) -> Weights:
    if value not in (b"target", b"draft"):
        raise RefusedError("must be target or draft")
    return Weights(value.decode())


def _parse_uint64(value: bytes) -> int:
    return parse_integer(value, 0, MAX_UINT64)


_ID: dict[bytes, Key] = {b"id": ("", sets("id", parse_count))}
_SLOT: dict[bytes, Key] = _ID | {b"slot": ("", sets("slot", parse_count))}
_OF: dict[bytes, Key] = {b"of": ("", sets("of", parse_count))}
_RANGE: dict[bytes, Key] = {b"from": ("", sets("begin", parse_count)), b"to": ("", sets("end", parse_count))}
_PATH: dict[bytes, Key] = {b"path": ("", sets("path", _parse_path))}
_IMAGE_SALT: dict[bytes, Key] = {b"salt": ("", sets("salt", _parse_uint64))}
_WHAT: dict[bytes, Key] = {b"what": ("", sets("what", _parse_weights))}
_PAGE: dict[bytes, Key] = {b"page": ("", sets("page", _parse_path))}
_ON: dict[bytes, Key] = {b"on": ("", sets("on", parse_flag))}
_FROM: dict[bytes, Key] = {b"from": ("", sets("first", parse_count)), b"n": ("", sets("n_most", parse_count))}
_DISK: dict[bytes, Key] = {b"disk": ("", sets("disk", parse_flag))}
_FILES: dict[bytes, Key] = {b"files": ("", sets("files", parse_texts))}
_SINCE: dict[bytes, Key] = {b"since": ("", sets("since", _parse_uint64)), b"n": ("", sets("n_most", parse_count))}
_PROMPT: dict[bytes, Key] = {b"prompt": NAMED_KEYS[b"prompt"]}
_SALT: dict[bytes, Key] = {
    b"salt": ("", sets("salt", _parse_uint64)),
    b"salt_from": ("", sets("salt_from", parse_count)),
}


def _read(arguments: bytes, required: dict[bytes, Key], optional: dict[bytes, Key] | None = None) -> dict[str, Any]:
    return read_named_args(arguments, required | (optional or {}), required=tuple(required))[""]


def _checked(thin: ThinSnapshot) -> ThinSnapshot:
    if thin.begin >= thin.end:
        raise RefusedError("from must be before to")
    return thin


def _parse_probe(arguments: bytes) -> ProbeText:
    probe = ProbeText(**_read(arguments, _ID | _PROMPT, _SALT))
    if probe.salt_from is not None and probe.salt is None:
        raise RefusedError("salt_from= needs salt=")
    return probe


def _parse_free(arguments: bytes) -> FreeSlot | FreeScorer:
    word, rest = next_word(arguments)
    if word == b"drafter":
        if next_word(rest)[0] is not None:
            raise RefusedError("free drafter takes no arguments")
        return FreeScorer()
    return FreeSlot(**_read(arguments, _SLOT))


def _parse_park(arguments: bytes, command: type[ParkCommand]) -> ParkCommand:
    """The one verb that has both forms. Its first word tells which."""
    word, rest = next_word(arguments)
    if word is None:
        return command()
    if b"=" in word:
        return command(**_read(arguments, _ID, _WHAT))
    try:
        what = _parse_weights(word)
    except RefusedError as refusal:
        raise RefusedError(f"'{shortened(word)}' {refusal.text}") from None
    if next_word(rest)[0] is not None:
        raise RefusedError("one of target and draft, and nothing more")
    return command(what)


# Forms in capitals


def _read_numbers(arguments: bytes, *names: str) -> tuple[int, ...]:
    """Numbers by their place, all of them needed and nothing after them."""
    words = words_of(arguments)
    numbers = tuple(parse_placed_count(name, next(words, None)) for name in names)
    more = next(words, None)
    if more is not None:
        raise RefusedError(f"'{shortened(more)}' is one word too many")
    return numbers


def _parse_slot_words(arguments: bytes, command: type[SlotCommand]) -> SlotCommand:
    return command(*_read_numbers(arguments, "slot"))


def _parse_list_words(arguments: bytes) -> ListSlots:
    if arguments.strip(_BLANKS):
        raise RefusedError("LIST_SLOTS takes no arguments")
    return ListSlots()


def _parse_file_words(arguments: bytes, command: type[FileCommand]) -> FileCommand:
    """The path is what follows the slot, exactly as it is written."""
    word, rest = next_word(arguments)
    slot = parse_placed_count("slot", word)
    path = rest.strip(_BLANKS)
    if not path:
        raise RefusedError("path is missing")
    return command(slot, path.decode("utf-8"))


def _parse_clear_words(arguments: bytes) -> Clear:
    what = arguments.strip(_BLANKS)
    if what not in (b"", b"disk"):
        raise RefusedError("CLEAR takes nothing but disk")
    return Clear(disk=bool(what))


Parser = Callable[[bytes], MemoryCommand | TextCommand | FreeScorer | DescribeImage]

_IN_CAPITALS: dict[str, Parser] = {
    "SNAPSHOT": lambda arguments: _parse_slot_words(arguments, Snapshot),
    "SNAPSHOT_THIN": lambda arguments: _checked(ThinSnapshot(*_read_numbers(arguments, "slot", "from", "to"))),
    "FREE_SNAPSHOT": lambda arguments: _parse_slot_words(arguments, FreeSlot),
    "LIST_SLOTS": _parse_list_words,
    "SAVE": lambda arguments: _parse_file_words(arguments, SaveSlot),
    "LOAD": lambda arguments: _parse_file_words(arguments, LoadSlot),
    "CLEAR": _parse_clear_words,
}
_BY_NAME: dict[str, Parser] = {
    "snapshot": lambda arguments: Snapshot(**_read(arguments, _SLOT, _OF)),
    "thin": lambda arguments: _checked(ThinSnapshot(**_read(arguments, _SLOT | _RANGE, _OF))),
    "free": _parse_free,
    "list": lambda arguments: ListSlots(**_read(arguments, _ID)),
    "save": lambda arguments: SaveSlot(**_read(arguments, _SLOT | _PATH)),
    "load": lambda arguments: LoadSlot(**_read(arguments, _SLOT | _PATH)),
    "image": lambda arguments: DescribeImage(**_read(arguments, _ID | _PATH, _IMAGE_SALT)),
    "clear": lambda arguments: Clear(**_read(arguments, _ID, _DISK)),
    "texts": lambda arguments: ListTexts(**_read(arguments, _ID, _FROM)),
    "pages": lambda arguments: WatchPages(**_read(arguments, _ID, _ON)),
    "hold": lambda arguments: HoldText(**_read(arguments, _ID | _PAGE, _ON)),
    "forget": lambda arguments: ForgetText(**_read(arguments, _ID | _PAGE)),
    "adopt": lambda arguments: AdoptFiles(**_read(arguments, _ID | _FILES)),
    "files": lambda arguments: ListFiles(**_read(arguments, _ID, _SINCE)),
    "write": lambda arguments: WriteText(**_read(arguments, _ID | _PAGE)),
    "probe": _parse_probe,
    "park": lambda arguments: _parse_park(arguments, Park),
    "unpark": lambda arguments: _parse_park(arguments, Unpark),
}
MEMORY_PARSERS: dict[str, Parser] = _IN_CAPITALS | _BY_NAME
VERBS_WITHOUT_ID: frozenset[str] = frozenset(_IN_CAPITALS)
