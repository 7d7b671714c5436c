"""Values of a command line -> their text, or RefusedError where the daemon would refuse it. Knows no key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import inf
from typing import Any

from .commands import MAX_LOGPROBS, MAX_MARKS, GrammarTrigger, ImageAt, PinSpan, SnapshotPoint, TriggerKind
from .percent import percent_encode
from .records import SamplerKind
from .scalar_values import (
    MAX_UINT64,
    MIN_INT32,
    RefusedError,
    parse_any_real,
    parse_integer,
    parse_not_negative,
    parse_positive,
    parse_positive_probability,
    parse_probability,
)
from .tokens import MAX_INT32

Writer = Callable[[Any], str]


def _integer(minimum: int, maximum: int) -> Writer:
    def write(value: Any) -> str:
        text = str(value)
        parse_integer(text.encode(), minimum, maximum)
        return text

    return write


def _real(parse: Callable[[bytes], float]) -> Writer:
    def write(value: Any) -> str:
        text = repr(float(value))
        parse(text.encode())
        return text

    return write


write_count = _integer(0, MAX_INT32)
_write_real = _real(parse_any_real)


def _list(items: Iterable[Any], write: Writer, separator: str = ",") -> str:
    return separator.join(map(write, items))


def _counts(items: tuple[int, ...]) -> str:
    """Prompts have millions of ids: their range is looked at once, for all of them."""
    if items and not 0 <= min(items) <= max(items) <= MAX_INT32:
        raise RefusedError("a number is outside 0 .. 2^31-1")
    return ",".join(map(str, items))


def _at_most(write: Writer) -> Writer:
    def write_few(items: tuple[Any, ...]) -> str:
        if len(items) > MAX_MARKS:
            raise RefusedError(f"has more than {MAX_MARKS} items")
        return write(items)

    return write_few


def _not_empty(write: Writer) -> Writer:
    def write_some(value: Any) -> str:
        if not value:
            raise RefusedError("is empty")
        return write(value)

    return write_some


def write_text(text: str) -> str:
    """A lone surrogate has no bytes, and a NUL would end the text."""
    try:
        if b"\0" in text.encode("utf-8"):
            raise RefusedError("holds a NUL byte")
    except UnicodeEncodeError as error:
        raise RefusedError(f"is not representable as UTF-8: {error}") from None
    return percent_encode(text)


def write_file(path: str) -> str:
    return "@" + _not_empty(write_text)(path)


def _text_or_file(text: str) -> str:
    """A leading @ would name a file."""
    encoded = write_text(text)
    return "%40" + encoded[1:] if encoded.startswith("@") else encoded


def _biased_token(pair: tuple[int, float]) -> str:
    token, bias = pair
    return f"{write_count(token)}:{'-inf' if bias == -inf else _write_real(bias)}"


def _item(text: str) -> str:
    """A text in a list."""
    return write_text(text).replace(",", "%2C")


def _trigger(trigger: GrammarTrigger) -> str:
    if trigger.kind is TriggerKind.TOKEN:
        if trigger.text:
            raise RefusedError("a token trigger has no text")
        return f"token:{write_count(trigger.token)}"
    if trigger.token or not trigger.text:
        raise RefusedError(f"a {trigger.kind} trigger has a text and no token")
    return f"{trigger.kind}:{_item(trigger.text)}"


def _samplers(kinds: tuple[SamplerKind, ...]) -> str:
    if len(set(kinds)) < len(kinds):
        raise RefusedError("names a sampler twice")
    return _list(kinds, lambda kind: SamplerKind(kind).value)


def _snapshots(points: tuple[SnapshotPoint, ...]) -> str:
    if len({point.slot for point in points}) < len(points):
        raise RefusedError("names a slot twice")
    return _list(points, lambda point: f"{write_count(point.position)}:{write_count(point.slot)}")


def _pin(span: PinSpan) -> str:
    if span.begin >= span.end:
        raise RefusedError("must begin before it ends")
    return f"{write_count(span.begin)}:{write_count(span.end)}"


def _images(images: tuple[ImageAt, ...]) -> str:
    if any(first.position >= second.position for first, second in pairwise(images)):
        raise RefusedError("has positions that do not rise")
    return _list(images, lambda image: f"{write_count(image.position)}:{_not_empty(_item)(image.path)}")


def _flag(value: bool) -> str:
    return str(int(value))


WRITERS: dict[str, Writer] = {
    "count": write_count,
    "flag": _flag,
    "grammar": _not_empty(_text_or_file),
    "images": _at_most(_images),
    "int32": _integer(MIN_INT32, MAX_INT32),
    "logit_bias": lambda pairs: _list(pairs, _biased_token),
    "logprobs": _integer(0, MAX_LOGPROBS),
    "marks": _at_most(_counts),
    "not_negative": _real(parse_not_negative),
    "path": _not_empty(write_text),
    "pins": _at_most(lambda spans: _list(spans, _pin)),
    "positive": _real(parse_positive),
    "positive_probability": _real(parse_positive_probability),
    "probability": _real(parse_probability),
    "prompt": _not_empty(_counts),
    "reading": str,
    "real": _write_real,
    "samplers": _samplers,
    "slots": _counts,
    "snapshots": _snapshots,
    "text": write_text,
    "texts": lambda texts: _list(texts, _not_empty(_item)),
    "token_alternatives": lambda ends: _list(ends, _not_empty(_counts), "|"),
    "tokens": _counts,
    "triggers": lambda triggers: _list(triggers, _trigger),
    "uint64": _integer(0, MAX_UINT64),
    "weights": str,
}
