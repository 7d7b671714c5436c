"""Replies to lines and back. Pure; canonical in the one direction, tolerant of what is new in the other.

Most lines are rows of one table that both directions read. A key or a line that only a newer daemon knows is kept or
passed over; a known line that lacks what it must have is the daemon's fault and raises RemoteProtocolError.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from . import replies as r
from .command_table import RECORDS
from .commands import PinSpan, Weights
from .errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from .percent import percent_encode
from .records import ExpertReads, Speculation, StopReason
from .scalar_values import (
    MAX_UINT64,
    RefusedError,
    parse_any_real,
    parse_count,
    parse_integer,
    parse_text,
    parse_token,
)

MAX_ERROR_TEXT_BYTES = 1000

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FIELD_KEY = re.compile(r"[^\s=%]+")
_CODE = re.compile(r"[a-z][a-z0-9_]*")
_ERR = re.compile(r"err ([a-z][a-z0-9_]*)(?: id=([0-9]+)(?= |\Z))?(?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Part:
    """A value in a line: `key=value`, or the value alone where the key is empty. None is not written."""

    key: str
    field: str
    read: Callable[[str], Any]
    write: Callable[[Any], str] = str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class _Row:
    reply: type
    tag: str
    words: tuple[str | _Part, ...]

    @property
    def parts(self) -> tuple[_Part, ...]:
        return tuple(word for word in self.words if isinstance(word, _Part))

    def takes(self, bare: Sequence[str]) -> bool:
        """Whether the words without a key may be this row's."""
        literals = [word for word in self.words if isinstance(word, str)]
        n_values = len(bare) - len(literals)
        return list(bare[: len(literals)]) == literals and 0 <= n_values <= sum(not part.key for part in self.parts)

    def has_all(self, fields: dict[str, str]) -> bool:
        return all(part.key in fields for part in self.parts if part.is_required)


def _count(text: str) -> int:
    return parse_count(text.encode())


def _large(text: str) -> int:
    return parse_integer(text.encode(), 0, MAX_UINT64)


def _real(text: str) -> float:
    return parse_any_real(text.encode())


def _text(text: str) -> str:
    return parse_text(text.encode())


def _names(text: str) -> tuple[str, ...]:
    names = _text(text)
    return tuple(names.split(",")) if names else ()


def _slots(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(","))) if text else ()


def _joined_counts(counts: Iterable[int]) -> str:
    return ",".join(map(str, counts))


def _span(text: str) -> PinSpan:
    begin, _, end = text.partition(":")
    span = PinSpan(_count(begin), _count(end))
    if span.begin >= span.end:
        raise RefusedError(f"{text} does not begin before it ends")
    return span


def _spans(text: str) -> tuple[PinSpan, ...]:
    return tuple(map(_span, text.split(","))) if text else ()


def _joined_spans(spans: Iterable[PinSpan]) -> str:
    return ",".join(f"{span.begin}:{span.end}" for span in spans)


def _stop(text: str) -> StopReason:
    if text not in set(StopReason):
        raise RefusedError(f"stop={text} is no reason to stop")
    return StopReason(text)


def _values(text: str) -> bytes:
    """Binary32 values in base64."""
    try:
        values = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise RefusedError(f"values= is not base64: {error}") from None
    if len(values) % 4:
        raise RefusedError("values= holds a part of a value")
    return values


def _base64(values: bytes) -> str:
    return binascii.b2a_base64(values, newline=False).decode()


def _error_code(name: str) -> ErrorCode | str:
    return ErrorCode(name) if name in set(ErrorCode) else name


def _code(code: ErrorCode | str) -> str:
    if not _CODE.fullmatch(code):
        raise LocalProtocolError(f"{code!r} cannot be an error code")
    return code


def _fixed(n_digits: int) -> Callable[[float], str]:
    """A duration, rate or ratio. A division by a duration of zero is no reason for a line that nobody can read."""
    return lambda value: f"{value if isfinite(value) and value > 0 else 0.0:.{n_digits}f}"


def _logprob(item: str) -> tuple[int, float]:
    token, _, value = item.partition(":")
    return parse_token(token.encode()), -inf if value == "-inf" else _real(value)


def _logprobs_text(entries: Iterable[tuple[int, float]]) -> str:
    return ",".join(f"{token}:{value:.5f}" if isfinite(value) else f"{token}:-inf" for token, value in entries)


def _counts(*named: tuple[str, str]) -> list[_Part]:
    return [_Part(key, field, _count) for key, field in named]


_ID = _Part("id", "id", _count, is_required=False)
[_SLOT, _CUR_POS] = _counts(("slot", "slot"), ("cur_pos", "cur_pos"))
[_INDEX, _AT] = _counts(("i", "index"), ("at", "position"))
_STATS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "count": (_count, str),
    "large": (_large, str),
    "rate": (_real, _fixed(2)),
    "seconds": (_real, _fixed(6)),
    "stop": (_stop, str),
    "text": (_text, str),
}
"""How the values of statistics are read and written."""


def _stats(record: str) -> tuple[_Part, ...]:
    return tuple(_Part(key.key, key.field, *_STATS[key.value], is_required=key.required) for key in RECORDS[record])


*_GENERATED, _STOP = _stats("GenerationStats")
_ACCEPT = _Part("accept", "acceptance", _real, _fixed(4))  # worked out of the others, so only checked when read
_SPECULATION, _EXPERTS = _stats("Speculation"), _stats("ExpertReads")
_END = (_Part("out", "output_path", _text, is_required=False), _STOP)
_OK_KEYS = {part.key for part in (_ID, *_GENERATED, _ACCEPT, *_SPECULATION, *_EXPERTS, *_END)}

_COMPRESSED = (_ID, *_counts(("in", "n_in"), ("out", "n_out")), _Part("parts", "parts", _spans, _joined_spans))

# Where several rows have the same words, the first one counts whose keys are all there.
_ROWS = (
    _Row(r.PlainOk, "ok", (_ID,)),
    _Row(r.CompressOk, "ok", _COMPRESSED),
    _Row(r.Parked, "ok", (_ID, "park", _Part("", "what", Weights))),
    _Row(r.Unparked, "ok", (_ID, "unpark", _Part("", "what", Weights))),
    _Row(r.Cancelled, "[cancel]", (_Part("id", "id", _count),)),
    _Row(
        r.Embedding,
        "[embedding]",
        (_Part("id", "id", _count), _Part("N", "n_tokens", _count), _Part("values", "values", _values, _base64)),
    ),
    _Row(r.PrefillProgress, "[prefill]", (_ID, *_counts(("done", "n_done"), ("total", "n_total")))),
    _Row(r.SlotList, "[snap]", (_ID, _Part("slots", "slots", _slots, _joined_counts))),
    _Row(r.ThinTaken, "[snap]", (_ID, _SLOT, *_counts(("from", "begin"), ("to", "end")))),
    _Row(r.SnapshotTaken, "[snap]", (_ID, _SLOT, _CUR_POS)),
    _Row(r.SlotFreed, "[snap]", (_ID, "freed", _SLOT)),
    _Row(r.SlotSaved, "[snap]", (_ID, "saved", _SLOT, _Part("bytes", "bytes", _large))),
    _Row(r.InlineSnapshot, "[snap]", ("inline", _ID, _SLOT, _CUR_POS)),
    _Row(r.InlineSnapshotFailed, "[snap]", ("failed", _ID, _SLOT, _Part("", "code", _error_code, _code))),
    _Row(r.PoolSize, "[pool]", (_Part("tokens", "n_tokens", _count),)),
    _Row(r.LoadProgress, "[daemon]", ("loading", _Part("percent", "percent", _count))),
    _Row(r.ImageDescribed, "[image]", (_Part("id", "id", _count), _Part("ids", "ids", _slots, _joined_counts))),
    _Row(
        r.FilesLine,
        "[files]",
        (_Part("id", "id", _count), _Part("next", "next", _large), _Part("files", "files", _names, ",".join)),
    ),
    _Row(
        r.Adopted,
        "[adopted]",
        (*_counts(("id", "id"), ("new", "n_new"), ("known", "n_known"), ("missing", "n_missing")),),
    ),
    _Row(
        r.Probed,
        "[probe]",
        (*_counts(("id", "id"), ("N", "n_tokens"), ("known", "n_known"), ("pages", "n_pages")),),
    ),
    _Row(r.OutOfMemory, "[daemon]", ("out_of_memory", _Part("reason", "reason", _text, is_required=False))),
)
_ROW_OF = {row.reply: row for row in _ROWS}
_TAGS_OF_NEW_WORDS = {"ok", "[snap]", "[daemon]"}  # a word of a newer daemon may follow these


# Line -> reply


def _split_fields(words: Iterable[str]) -> dict[str, str] | None:
    """Nothing if a word is not key=value, or a key comes twice."""
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key in fields:
            return None
        fields[key] = value
    return fields


def _known_fields(words: Iterable[str]) -> dict[str, str]:
    fields = _split_fields(words)
    if fields is None:
        raise RefusedError("a word is not key=value, or a key comes twice")
    return fields


def _arguments(parts: Iterable[_Part], fields: dict[str, str]) -> dict[str, Any]:
    """The values that are there. Raises RefusedError if one is missing."""
    found = {}
    for part in parts:
        if part.key in fields:
            found[part.field] = part.read(fields[part.key])
        elif part.is_required:
            raise RefusedError(f"{part.key or part.field} is missing")
    return found


def _parse_row(tag: str, bare: Sequence[str], fields: dict[str, str]) -> r.Reply | None:
    rows = [row for row in _ROWS if row.tag == tag and row.takes(bare)]
    if not rows and tag in _TAGS_OF_NEW_WORDS:
        return None
    if not rows:
        raise RefusedError("a word is not key=value")
    row = next((row for row in rows if row.has_all(fields)), rows[-1])
    n_literals = sum(isinstance(word, str) for word in row.words)
    value = {"": bare[-1]} if len(bare) > n_literals else {}
    reply: r.Reply = row.reply(**_arguments(row.parts, fields | value))
    return reply


def _parse_generate_ok(fields: dict[str, str]) -> r.GenerateOk:
    _arguments([_ACCEPT] if _ACCEPT.key in fields else [], fields)
    has_speculation = any(part.key in fields for part in _SPECULATION)
    has_experts = any(part.key in fields for part in _EXPERTS)
    return r.GenerateOk(
        **_arguments((_ID, *_GENERATED, *_END), fields),
        speculation=Speculation(**_arguments(_SPECULATION, fields)) if has_speculation else None,
        experts=ExpertReads(**_arguments(_EXPERTS, fields)) if has_experts else None,
        extra=tuple((key, _text(value)) for key, value in fields.items() if key not in _OK_KEYS),
    )


def _parse_ok(bare: Sequence[str], words: Iterable[str]) -> r.Reply | None:
    """Bare words tell what was done, `N=` that it is a generation, `in=` that it is a compression; nothing but an id is
    a plain `ok`."""
    fields = _split_fields(words)
    if fields is not None and "N" in fields and not bare:
        return _parse_generate_ok(fields)
    if fields is not None and "in" in fields and not bare:
        return r.CompressOk(**_arguments(_COMPRESSED, fields))
    if fields is None or fields.keys() - {"id"} or (bare and bare[1:] not in [[str(what)] for what in Weights]):
        return None
    return _parse_row("ok", bare, fields)


def _parse_err(line: str) -> r.Err:
    match = _ERR.fullmatch(line)
    if match is None:
        raise RefusedError("err without a code")
    code, request_id, text = match.groups()
    return r.Err(_error_code(code), (text or "").strip(" "), None if request_id is None else _count(request_id))


def _parse_logprobs(tag: str, bare: Sequence[str], fields: dict[str, str]) -> r.Logprobs | r.PromptLogprobs:
    if len(bare) > 1:
        raise RefusedError("more than one list of logprobs")
    entries = tuple(map(_logprob, bare[0].split(","))) if bare else ()
    if tag == "[lp]":
        return r.Logprobs(**_arguments([_ID, _INDEX], fields), entries=entries)
    return r.PromptLogprobs(**_arguments([_ID, _AT], fields), entries=entries)


def _all_fields(words: Iterable[str]) -> r.Fields:
    return tuple((key, _text(value)) for key, value in _known_fields(words).items())


def _parse_pages(fields: dict[str, str]) -> r.PagesLine:
    if "pages" not in fields:
        raise RefusedError("pages is missing")
    return r.PagesLine(_names(fields["pages"]), begins_anew=fields.get("anew") == "1")


def _parse_line(line: str) -> r.Reply | None:
    tag, *words = [word for word in line.split(" ") if word] or [""]
    bare, keyed = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if tag == "err":
        return _parse_err(line)
    if tag == "ok":
        return _parse_ok(bare, keyed)
    if tag == "pong" and len(words) <= 1:
        return r.Pong(*words)
    if tag == "[status]":
        return r.StatusLine(_all_fields(words))
    if tag == "[texts]":
        return r.TextsLine(_all_fields(words))
    if tag == "[pages]":
        return _parse_pages(_known_fields(words))
    if tag == "[daemon]" and words[:1] == ["ready"]:
        return r.ReadyLine(_all_fields(words[1:]))
    if tag in {"[lp]", "[plp]"}:
        return _parse_logprobs(tag, bare, _known_fields(keyed))
    return _parse_row(tag, bare, _known_fields(keyed)) if any(row.tag == tag for row in _ROWS) else None


def parse_reply(line: bytes) -> r.Reply:
    """One line without its end. Raises RemoteProtocolError, and nothing else, if a known line is malformed."""
    try:
        text = line.decode("utf-8")
        return _parse_line(text) or r.UnknownLine(text)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a reply line is not UTF-8") from None
    except RefusedError as refusal:
        raise RemoteProtocolError(f"reply line {text[:80]!r}: {refusal.text}") from None


# Reply -> line


def _words(reply: object, parts: Iterable[str | _Part]) -> list[str]:
    words = []
    for part in parts:
        if isinstance(part, str):
            words.append(part)
        elif (value := getattr(reply, part.field)) is not None:
            text = percent_encode(part.write(value))
            words.append(f"{part.key}={text}" if part.key else text)
    return words


def _field_words(fields: r.Fields) -> list[str]:
    for key, _ in fields:
        if not _FIELD_KEY.fullmatch(key):
            raise LocalProtocolError(f"{key!r} cannot be the key of a field")
    return [f"{key}={percent_encode(value)}" for key, value in fields]


def _err_line(err: r.Err) -> str:
    start = " ".join([f"err {err.code}", *_words(err, [_ID])])
    # One line of UTF-8 for people, not longer than the limit.
    spaced = _CONTROL.sub(" ", err.text).strip(" ").encode("utf-8", "replace")
    text = spaced[:MAX_ERROR_TEXT_BYTES].decode("utf-8", "ignore").strip(" ")
    # A text that itself begins like an id is set off by a second space, so that nobody reads it as one.
    blank = "  " if err.id is None and text.startswith("id=") else " "
    return start + blank + text if text else start


def _one_line(text: str, *, one_word: bool) -> str:
    if _CONTROL.search(text) or (one_word and " " in text):
        raise LocalProtocolError(f"{text[:80]!r} does not fit into a reply line")
    return text


def _line_of(reply: r.Reply) -> str:
    match reply:
        case r.Err():
            return _err_line(reply)
        case r.UnknownLine(text=text):
            return _one_line(text, one_word=False)
        case r.Pong(word=word):
            words = ["pong", *([_one_line(word, one_word=True)] if word else [])]
        case r.GenerateOk(speculation=speculation, experts=experts):
            did = _words(speculation, (_ACCEPT, *_SPECULATION)) if speculation is not None else []
            did += _words(experts, _EXPERTS) if experts is not None else []
            words = ["ok", *_words(reply, (_ID, *_GENERATED)), *did, *_words(reply, _END), *_field_words(reply.extra)]
        case r.Logprobs(entries=entries):
            words = ["[lp]", *_words(reply, [_ID, _INDEX]), *([_logprobs_text(entries)] if entries else [])]
        case r.PromptLogprobs(entries=entries):
            words = ["[plp]", *_words(reply, [_ID, _AT]), *([_logprobs_text(entries)] if entries else [])]
        case r.StatusLine(fields=fields):
            words = ["[status]", *_field_words(fields)]
        case r.TextsLine(fields=fields):
            words = ["[texts]", *_field_words(fields)]
        case r.PagesLine(pages=pages, begins_anew=begins_anew):
            words = ["[pages]", *(["anew=1"] if begins_anew else []), f"pages={percent_encode(','.join(pages))}"]
        case r.ReadyLine(fields=fields):
            words = ["[daemon] ready", *_field_words(fields)]
        case _:
            row = _ROW_OF[type(reply)]
            words = [row.tag, *_words(reply, row.words)]
    return " ".join(words)


def format_reply(reply: r.Reply) -> bytes:
    """The line with its `\\n`. Raises LocalProtocolError if the protocol cannot say it."""
    return _line_of(reply).encode("utf-8", "replace") + b"\n"
