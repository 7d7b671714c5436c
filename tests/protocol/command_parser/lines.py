"""One line (without its end) -> the command, or why it is none. Pure.

What a line was meant to be is found out before its text is judged, so that also the refusal of a broken line can say
which request it was for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from luce.protocol.commands import Cancel, Command, Embed, Ping, Quit, Status
from luce.protocol.errors import ErrorCode, RemoteProtocolError
from luce.protocol.scalar_values import RefusedError, parse_count, shortened

from .generations import (
    NAMED_KEYS,
    Key,
    is_positional_generate,
    parse_compress,
    parse_file_generate,
    parse_named_generate,
    parse_positional_generate,
    parse_restore,
    parse_restore_chain,
    read_named_args,
    sets,
    words_of,
)
from .memory import MEMORY_PARSERS, VERBS_WITHOUT_ID
from .scalars import parse_flag


class CommandError(RemoteProtocolError):
    """A line that is no command: what the daemon answers to it, and whether it was meant to generate."""

    def __init__(self, code: ErrorCode, text: str, id: int | None = None, *, generating: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.id = id
        self.generating = generating


_FIRST_WORD = re.compile(rb"[ \t]*([^ \t]*)")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_ID_KEY: dict[bytes, Key] = {b"id": ("", sets("id", parse_count))}
_EMBED_KEYS: dict[bytes, Key] = {name: NAMED_KEYS[name] for name in (b"id", b"prompt")}
_STATUS_KEYS: dict[bytes, Key] = _ID_KEY | {b"check": ("", sets("check", parse_flag))}


class _Form(Enum):
    GEN = auto()
    GENERATE = auto()
    COMPRESS = auto()
    EMBED = auto()
    CANCEL = auto()
    STATUS = auto()
    PING = auto()
    QUIT = auto()
    RESTORE = auto()
    RESTORE_CHAIN = auto()
    MEMORY = auto()
    MEMORY_WORDS = auto()
    POSITIONAL = auto()
    UNKNOWN = auto()


_FORMS: dict[str, _Form] = {
    "gen": _Form.GEN,
    "generate": _Form.GENERATE,
    "compress": _Form.COMPRESS,
    "embed": _Form.EMBED,
    "cancel": _Form.CANCEL,
    "status": _Form.STATUS,
    "ping": _Form.PING,
    "quit": _Form.QUIT,
    "exit": _Form.QUIT,
    "RESTORE": _Form.RESTORE,
    "RESTORE_CHAIN": _Form.RESTORE_CHAIN,
    **{verb: _Form.MEMORY_WORDS if verb in VERBS_WITHOUT_ID else _Form.MEMORY for verb in MEMORY_PARSERS},
}
VERBS: tuple[str, ...] = tuple(_FORMS)

_FORM_OF_VERB: dict[bytes, _Form] = {verb.encode(): form for verb, form in _FORMS.items()}

_GENERATING = {
    _Form.GEN,
    _Form.GENERATE,
    _Form.COMPRESS,
    _Form.RESTORE,
    _Form.RESTORE_CHAIN,
    _Form.POSITIONAL,
}
GENERATING_VERBS: tuple[str, ...] = tuple(verb.decode() for verb, form in _FORM_OF_VERB.items() if form in _GENERATING)
# In these a word that begins with id= is a piece of a path, or the word to echo.
_WITHOUT_ID = {
    _Form.GENERATE,
    _Form.PING,
    _Form.RESTORE,
    _Form.RESTORE_CHAIN,
    _Form.MEMORY_WORDS,
    _Form.POSITIONAL,
}


@dataclass(frozen=True, slots=True)
class _Line:
    form: _Form
    text: bytes
    verb: bytes
    arguments: bytes


def _classify(text: bytes) -> _Line:
    match = _FIRST_WORD.match(text)
    assert match is not None, "the pattern matches the empty string"
    verb = match.group(1)
    form = _FORM_OF_VERB.get(verb)
    if form is None:
        form = _Form.POSITIONAL if is_positional_generate(text) else _Form.UNKNOWN
    return _Line(form, text, verb, text[match.end() :])


def _id_in(line: _Line) -> int | None:
    if line.form in _WITHOUT_ID:
        return None
    for word in words_of(line.arguments):
        if word.startswith(b"id="):
            try:
                return parse_count(word[3:])
            except RefusedError:
                continue
    return None


def _parse_cancel(arguments: bytes) -> Cancel:
    return Cancel(**read_named_args(arguments, _ID_KEY, required=(b"id",))[""])


def _parse_embed(arguments: bytes) -> Embed:
    return Embed(**read_named_args(arguments, _EMBED_KEYS, required=(b"id", b"prompt"))[""])


def _parse_status(arguments: bytes) -> Status:
    return Status(**read_named_args(arguments, _STATUS_KEYS, required=()).get("", {}))


def _parse_ping(arguments: bytes) -> Ping:
    words = words_of(arguments)
    word = next(words, b"")
    if next(words, None) is not None:
        raise RefusedError("ping takes one word at most")
    if _CONTROL.search(word):
        raise RefusedError("ping's word holds a control character")
    return Ping(word.decode("utf-8"))


def _parse_quit(line: _Line) -> Quit:
    if next(words_of(line.arguments), None) is not None:
        raise RefusedError(f"{line.verb.decode()} takes no arguments")
    return Quit()


# Of the forms whose arguments are all there is to know.
_PARSERS: dict[_Form, Callable[[bytes], Command]] = {
    _Form.GEN: parse_named_generate,
    _Form.GENERATE: parse_file_generate,
    _Form.COMPRESS: parse_compress,
    _Form.RESTORE: parse_restore,
    _Form.RESTORE_CHAIN: parse_restore_chain,
    _Form.EMBED: _parse_embed,
    _Form.CANCEL: _parse_cancel,
    _Form.STATUS: _parse_status,
    _Form.PING: _parse_ping,
}


def _parse_classified(line: _Line) -> Command:
    if line.form in _PARSERS:
        return _PARSERS[line.form](line.arguments)
    match line.form:
        case _Form.POSITIONAL:
            return parse_positional_generate(line.text)
        case _Form.MEMORY | _Form.MEMORY_WORDS:
            return MEMORY_PARSERS[line.verb.decode()](line.arguments)
        case _Form.QUIT:
            return _parse_quit(line)
        case _:
            raise RefusedError(f"there is no command '{shortened(line.verb)}'", ErrorCode.UNKNOWN_COMMAND)


def _check_text(text: bytes) -> None:
    if b"\0" in text:
        raise RefusedError("the line holds a NUL byte")
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise RefusedError("the line is not UTF-8") from None
    if not text.strip(b" \t"):
        raise RefusedError("the line is empty")


def parse_command(text: bytes) -> Command:
    """Raises CommandError, and nothing else, on a line that is no command."""
    line = _classify(text)
    try:
        _check_text(text)
        return _parse_classified(line)
    except RefusedError as refusal:
        raise CommandError(refusal.code, refusal.text, _id_in(line), generating=line.form in _GENERATING) from None
