"""Replies to lines and back. Pure; canonical in the one direction, tolerant of what is new in the other.

A key or a line that only a newer daemon knows is kept or passed over; a known line that lacks what it must have is the
daemon's fault and raises RemoteProtocolError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf, isfinite

from .commands import Weights
from .errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from .percent import percent_encode
from .replies import (
    Cancelled,
    Err,
    Fields,
    GenerateOk,
    InlineSnapshot,
    InlineSnapshotFailed,
    LoadProgress,
    Logprobs,
    OutOfMemory,
    Parked,
    PlainOk,
    Pong,
    PoolSize,
    PrefillProgress,
    ReadyLine,
    Reply,
    SlotFreed,
    SlotList,
    SlotSaved,
    SnapReply,
    SnapshotTaken,
    Speculation,
    StatusLine,
    StopReason,
    ThinTaken,
    UnknownLine,
    Unparked,
)
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


# Line -> reply


def _id_of(fields: dict[str, str]) -> int | None:
    return parse_count(fields["id"].encode()) if "id" in fields else None


def _count(fields: dict[str, str], key: str) -> int:
    if key not in fields:
        raise RefusedError(f"{key}= is missing")
    return parse_count(fields[key].encode())


def _measure(fields: dict[str, str], key: str) -> float:
    if key not in fields:
        raise RefusedError(f"{key}= is missing")
    return parse_any_real(fields[key].encode())


def _large(fields: dict[str, str], key: str) -> int:
    if key not in fields:
        raise RefusedError(f"{key}= is missing")
    return parse_integer(fields[key].encode(), 0, MAX_UINT64)


def _text(value: str) -> str:
    return parse_text(value.encode())


def _split_fields(words: Iterable[str]) -> dict[str, str] | None:
    """Nothing if a word is not key=value."""
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key in fields:
            return None
        fields[key] = value
    return fields


_SPECULATION_KEYS = ("drafted", "accepted", "steps", "spec_steps", "draft_s", "verify_s")
_OK_KEYS = {
    *_SPECULATION_KEYS,
    "id",
    "N",
    "gen",
    "reused",
    "tier",
    "miss",
    "restored",
    "prefill_s",
    "decode_s",
    "decode_tok_s",
    "accept",
    "out",
    "stop",
}


def _split_words(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The bare words, and the fields among them."""
    return [word for word in words if "=" not in word], _known_fields([word for word in words if "=" in word])


def _parse_ok(words: list[str]) -> Reply | None:
    """Bare words tell what was done, `N=` that it is a generation; nothing but an id is a plain `ok`."""
    bare = [word for word in words if "=" not in word]
    fields = _split_fields(word for word in words if "=" in word)
    if fields is not None and "N" in fields and not bare:
        return _parse_generate_ok(fields)
    if fields is None or set(fields) - {"id"}:
        return None
    match bare:
        case []:
            return PlainOk(_id_of(fields))
        case ["park", "target" | "draft" as what]:
            return Parked(Weights(what), _id_of(fields))
        case ["unpark", "target" | "draft" as what]:
            return Unparked(Weights(what), _id_of(fields))
        case _:
            return None


def _parse_generate_ok(fields: dict[str, str]) -> GenerateOk:
    stop = fields.get("stop", "")
    if stop not in set(StopReason):
        raise RefusedError(f"stop={stop} is no reason to stop")
    return GenerateOk(
        id=_id_of(fields),
        n_prompt=_count(fields, "N"),
        n_generated=_count(fields, "gen"),
        n_reused=_count(fields, "reused"),
        tier=_text(fields.get("tier", "none")),
        miss=_text(fields.get("miss", "off")),
        restored=_count(fields, "restored") if "restored" in fields else None,
        prefill_s=_measure(fields, "prefill_s"),
        decode_s=_measure(fields, "decode_s"),
        decode_tokens_per_s=_measure(fields, "decode_tok_s"),
        speculation=_parse_speculation(fields),
        output_path=_text(fields["out"]) if "out" in fields else None,
        stop=StopReason(stop),
        extra=tuple((key, _text(value)) for key, value in fields.items() if key not in _OK_KEYS),
    )


def _parse_speculation(fields: dict[str, str]) -> Speculation | None:
    """All of it or nothing; `accept` is worked out."""
    if "accept" in fields:
        _measure(fields, "accept")
    if not any(key in fields for key in _SPECULATION_KEYS):
        return None
    return Speculation(
        n_drafted=_large(fields, "drafted"),
        n_accepted=_large(fields, "accepted"),
        n_steps=_large(fields, "steps"),
        n_speculated_steps=_large(fields, "spec_steps"),
        draft_s=_measure(fields, "draft_s"),
        verify_s=_measure(fields, "verify_s"),
    )


def _error_code(name: str) -> ErrorCode | str:
    return ErrorCode(name) if name in set(ErrorCode) else name


def _parse_err(line: str) -> Err:
    match = _ERR.fullmatch(line)
    if match is None:
        raise RefusedError("err without a code")
    code, request_id, text = match.groups()
    return Err(
        code=_error_code(code),
        text=(text or "").strip(" "),
        id=None if request_id is None else parse_count(request_id.encode()),
    )


def _known_fields(words: list[str]) -> dict[str, str]:
    fields = _split_fields(words)
    if fields is None:
        raise RefusedError("a word is not key=value, or a key comes twice")
    return fields


def _parse_cancelled(words: list[str]) -> Cancelled:
    return Cancelled(_count(_known_fields(words), "id"))


def _parse_prefill(words: list[str]) -> PrefillProgress:
    fields = _known_fields(words)
    return PrefillProgress(_count(fields, "done"), _count(fields, "total"), _id_of(fields))


def _parse_logprob(item: str) -> tuple[int, float]:
    token, _, value = item.partition(":")
    return parse_token(token.encode()), -inf if value == "-inf" else parse_any_real(value.encode())


def _parse_logprobs(words: list[str]) -> Logprobs:
    entries, fields = _split_words(words)
    if len(entries) > 1:
        raise RefusedError("more than one list of logprobs")
    items = entries[0].split(",") if entries else []
    return Logprobs(_count(fields, "i"), tuple(map(_parse_logprob, items)), _id_of(fields))


def _parse_slots(value: str) -> tuple[int, ...]:
    return tuple(parse_count(slot.encode()) for slot in value.split(",")) if value else ()


def _parse_snap(words: list[str]) -> SnapReply | None:
    """Bare words tell which; without one it is what a slot holds, or the list of them."""
    bare, fields = _split_words(words)
    request_id = _id_of(fields)
    match bare:
        case [] if "slots" in fields:
            return SlotList(_parse_slots(fields["slots"]), request_id)
        case [] if "from" in fields:
            return ThinTaken(_count(fields, "slot"), _count(fields, "from"), _count(fields, "to"), request_id)
        case []:
            return SnapshotTaken(_count(fields, "slot"), _count(fields, "cur_pos"), request_id)
        case ["freed"]:
            return SlotFreed(_count(fields, "slot"), request_id)
        case ["saved"]:
            return SlotSaved(_count(fields, "slot"), _large(fields, "bytes"), request_id)
        case ["inline"]:
            return InlineSnapshot(_count(fields, "slot"), _count(fields, "cur_pos"), request_id)
        case ["failed", code]:
            return InlineSnapshotFailed(_count(fields, "slot"), _error_code(code), request_id)
        case ["failed"]:
            raise RefusedError("failed without a code")
        case _:
            return None


def _all_fields(words: list[str]) -> Fields:
    return tuple((key, _text(value)) for key, value in _known_fields(words).items())


_TAGGED: dict[str, Callable[[list[str]], Reply | None]] = {
    "[cancel]": _parse_cancelled,
    "[prefill]": _parse_prefill,
    "[lp]": _parse_logprobs,
    "[snap]": _parse_snap,
    "[status]": lambda words: StatusLine(_all_fields(words)),
    "[pool]": lambda words: PoolSize(_count(_known_fields(words), "tokens")),
}


_OF_DAEMON: dict[str, Callable[[list[str]], Reply]] = {
    "ready": lambda words: ReadyLine(_all_fields(words)),
    "loading": lambda words: LoadProgress(_count(_known_fields(words), "percent")),
    "out_of_memory": lambda words: OutOfMemory(_text(_known_fields(words).get("reason", ""))),
}


def _parse_line(line: str) -> Reply | None:
    tag, *words = [word for word in line.split(" ") if word] or [""]
    if tag == "err":
        return _parse_err(line)
    if tag == "ok":
        return _parse_ok(words)
    if tag == "pong" and len(words) <= 1:
        return Pong(*words)
    if tag == "[daemon]" and words and words[0] in _OF_DAEMON:
        return _OF_DAEMON[words[0]](words[1:])
    return _TAGGED[tag](words) if tag in _TAGGED else None


def parse_reply(line: bytes) -> Reply:
    """One line without its end. Raises RemoteProtocolError, and nothing else, if a known line is malformed."""
    try:
        text = line.decode("utf-8")
        return _parse_line(text) or UnknownLine(text)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a reply line is not UTF-8") from None
    except RefusedError as refusal:
        raise RemoteProtocolError(f"reply line {text[:80]!r}: {refusal.text}") from None


# Reply -> line


def _fixed(value: float, n_digits: int) -> str:
    """A duration, rate or ratio. A division by a duration of zero is no reason for a line that nobody can read."""
    return f"{value if isfinite(value) and value > 0 else 0.0:.{n_digits}f}"


def _logprob(entry: tuple[int, float]) -> str:
    token, value = entry
    return f"{token}:{value:.5f}" if isfinite(value) else f"{token}:-inf"


def _clean(text: str) -> str:
    """One line of UTF-8 for people, not longer than the limit."""
    spaced = _CONTROL.sub(" ", text).strip(" ").encode("utf-8", "replace")
    return spaced[:MAX_ERROR_TEXT_BYTES].decode("utf-8", "ignore").strip(" ")


def _fields_line(start: str, fields: Iterable[tuple[str, str | int]]) -> str:
    words = [start]
    for key, value in fields:
        if not _FIELD_KEY.fullmatch(key):
            raise LocalProtocolError(f"{key!r} cannot be the key of a field")
        words.append(f"{key}={percent_encode(str(value))}")
    return " ".join(words)


def _id_field(request_id: int | None) -> list[tuple[str, str | int]]:
    return [] if request_id is None else [("id", request_id)]


def _speculation_fields(speculation: Speculation) -> list[tuple[str, str | int]]:
    acceptance = speculation.acceptance
    return [
        *([] if acceptance is None else [("accept", _fixed(acceptance, 4))]),
        ("drafted", speculation.n_drafted),
        ("accepted", speculation.n_accepted),
        ("steps", speculation.n_steps),
        ("spec_steps", speculation.n_speculated_steps),
        ("draft_s", _fixed(speculation.draft_s, 6)),
        ("verify_s", _fixed(speculation.verify_s, 6)),
    ]


def _ok_line(ok: GenerateOk) -> str:
    restored: list[tuple[str, str | int]] = [] if ok.restored is None else [("restored", ok.restored)]
    optional = [] if ok.speculation is None else _speculation_fields(ok.speculation)
    if ok.output_path is not None:
        optional.append(("out", ok.output_path))
    return _fields_line(
        "ok",
        [
            *_id_field(ok.id),
            ("N", ok.n_prompt),
            ("gen", ok.n_generated),
            ("reused", ok.n_reused),
            ("tier", ok.tier),
            ("miss", ok.miss),
            *restored,
            ("prefill_s", _fixed(ok.prefill_s, 6)),
            ("decode_s", _fixed(ok.decode_s, 6)),
            ("decode_tok_s", _fixed(ok.decode_tokens_per_s, 2)),
            *optional,
            ("stop", ok.stop),
            *ok.extra,
        ],
    )


def _err_line(err: Err) -> str:
    start = _fields_line(f"err {err.code}", _id_field(err.id))
    text = _clean(err.text)
    # A text that itself begins like an id is set off by a second space, so that nobody reads it as one.
    blank = "  " if err.id is None and text.startswith("id=") else " "
    return start + blank + text if text else start


def _one_line(text: str, *, one_word: bool) -> str:
    if _CONTROL.search(text) or (one_word and " " in text):
        raise LocalProtocolError(f"{text[:80]!r} does not fit into a reply line")
    return text


def _code(code: ErrorCode | str) -> str:
    if not _CODE.fullmatch(code):
        raise LocalProtocolError(f"{code!r} cannot be an error code")
    return code


def _snap_line(reply: SnapReply) -> str:
    request_id = _id_field(reply.id)
    if isinstance(reply, SlotList):
        return _fields_line("[snap]", [*request_id, ("slots", ",".join(map(str, reply.slots)))])
    slot: list[tuple[str, str | int]] = [("slot", reply.slot)]
    match reply:
        case SnapshotTaken():
            return _fields_line("[snap]", [*request_id, *slot, ("cur_pos", reply.cur_pos)])
        case ThinTaken():
            return _fields_line("[snap]", [*request_id, *slot, ("from", reply.begin), ("to", reply.end)])
        case SlotFreed():
            return _fields_line(_fields_line("[snap]", request_id) + " freed", slot)
        case SlotSaved():
            return _fields_line(_fields_line("[snap]", request_id) + " saved", [*slot, ("bytes", reply.bytes)])
        case InlineSnapshot():
            return _fields_line("[snap] inline", [*request_id, *slot, ("cur_pos", reply.cur_pos)])
        case InlineSnapshotFailed():
            return f"{_fields_line('[snap] failed', [*request_id, *slot])} {_code(reply.code)}"


def _engine_line(reply: StatusLine | ReadyLine | PoolSize | LoadProgress | OutOfMemory) -> str:
    """What it says of itself."""
    match reply:
        case StatusLine(fields=fields):
            return _fields_line("[status]", fields)
        case ReadyLine(fields=fields):
            return _fields_line("[daemon] ready", fields)
        case PoolSize(n_tokens=n_tokens):
            return _fields_line("[pool]", [("tokens", n_tokens)])
        case LoadProgress(percent=percent):
            return _fields_line("[daemon] loading", [("percent", percent)])
        case OutOfMemory(reason=reason):
            return _fields_line("[daemon] out_of_memory", [("reason", reason)])


def _line_of(reply: Reply) -> str:
    match reply:
        case GenerateOk():
            return _ok_line(reply)
        case Err():
            return _err_line(reply)
        case Pong(word=word):
            return f"pong {_one_line(word, one_word=True)}" if word else "pong"
        case PlainOk():
            return _fields_line("ok", _id_field(reply.id))
        case Parked() | Unparked():
            verb = "park" if isinstance(reply, Parked) else "unpark"
            return f"{_fields_line('ok', _id_field(reply.id))} {verb} {reply.what}"
        case Cancelled(id=request_id):
            return _fields_line("[cancel]", _id_field(request_id))
        case PrefillProgress():
            counts = [("done", reply.n_done), ("total", reply.n_total)]
            return _fields_line("[prefill]", [*_id_field(reply.id), *counts])
        case Logprobs():
            start = _fields_line("[lp]", [*_id_field(reply.id), ("i", reply.index)])
            return " ".join([start, *([",".join(map(_logprob, reply.entries))] if reply.entries else [])])
        case StatusLine() | ReadyLine() | PoolSize() | LoadProgress() | OutOfMemory():
            return _engine_line(reply)
        case UnknownLine(text=text):
            return _one_line(text, one_word=False)
        case _:
            return _snap_line(reply)


def format_reply(reply: Reply) -> bytes:
    """The line with its `\\n`. Raises LocalProtocolError if the protocol cannot say it."""
    return _line_of(reply).encode("utf-8", "replace") + b"\n"
