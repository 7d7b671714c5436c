"""List values of a command line: ids, biases, triggers, snapshot points, spans. Knows no key and no command.

Items are cut first and percent-decoded afterwards, so that an encoded separator is text. An empty value is an empty
list.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import TypeVar

from luce.protocol.commands import (
    MAX_MARKS,
    GrammarTrigger,
    ImageAt,
    PinSpan,
    SnapshotPoint,
    TriggerKind,
)
from luce.protocol.records import SamplerKind, SamplingArgs
from luce.protocol.scalar_values import (
    MAX_UINT64,
    RefusedError,
    parse_any_real,
    parse_count,
    parse_integer,
    parse_not_negative,
    parse_positive,
    parse_positive_probability,
    parse_text,
    parse_token,
    shortened,
)
from luce.protocol.tokens import MAX_INT32

Item = TypeVar("Item")


def _parse_list(text: bytes, separator: bytes, parse: Callable[[bytes], Item]) -> tuple[Item, ...]:
    return tuple(map(parse, text.split(separator))) if text else ()


def parse_tokens(text: bytes) -> tuple[int, ...]:
    """`1,2,3`. Prompts have millions of ids: the usual case is read in bulk, only a wrong one item by item."""
    items = text.split(b",") if text else []
    if items and not text.translate(None, b"0123456789,") and all(items) and max(map(len, items)) <= 10:
        tokens = tuple(map(int, items))
        if max(tokens) <= MAX_INT32:
            return tokens
    return tuple(map(parse_token, items))


def parse_token_alternatives(text: bytes) -> tuple[tuple[int, ...], ...]:
    """`1,2|3`: alternatives, none of them empty."""

    def parse_alternative(piece: bytes) -> tuple[int, ...]:
        if not piece:
            raise RefusedError("has an empty alternative")
        return parse_tokens(piece)

    return _parse_list(text, b"|", parse_alternative)


def _split_pair(text: bytes, shape: str) -> tuple[bytes, bytes]:
    """Cut at the first colon: what follows may hold more of them."""
    left, colon, right = text.partition(b":")
    if not colon:
        raise RefusedError(f"'{shortened(text)}' is not {shape}")
    return left, right


def _named(what: str, parse: Callable[[bytes], Item], text: bytes) -> Item:
    try:
        return parse(text)
    except RefusedError as refusal:
        raise RefusedError(f"{what} {refusal.text}", refusal.code) from None


def _parse_number(text: bytes) -> int:
    """A position or a slot."""
    return _named(f"'{shortened(text)}'", parse_count, text)


def _parse_bias(text: bytes) -> float:
    return -inf if text == b"-inf" else parse_any_real(text)


def parse_logit_bias(text: bytes) -> tuple[tuple[int, float], ...]:
    """`id:bias,…`; a bias may be `-inf`."""

    def parse_biased_token(piece: bytes) -> tuple[int, float]:
        token, bias = _split_pair(piece, "id:bias")
        return parse_token(token), _named(f"bias '{shortened(bias)}'", _parse_bias, bias)

    return _parse_list(text, b",", parse_biased_token)


_TRIGGER_KINDS = {kind.value.encode(): kind for kind in TriggerKind}


def _parse_trigger(text: bytes) -> GrammarTrigger:
    name, colon, value = text.partition(b":")
    kind = _TRIGGER_KINDS.get(name) if colon else None
    if kind is None:
        raise RefusedError(f"'{shortened(text)}' is none of word:, pattern:, full: and token:")
    if kind is TriggerKind.TOKEN:
        return GrammarTrigger(kind, token=parse_token(value))
    decoded = parse_text(value)
    if not decoded:
        raise RefusedError("a trigger has no text")
    return GrammarTrigger(kind, text=decoded)


def parse_triggers(text: bytes) -> tuple[GrammarTrigger, ...]:
    """`word:<text>,pattern:<text>,full:<text>,token:<id>`."""
    return _parse_list(text, b",", _parse_trigger)


def parse_texts(text: bytes) -> tuple[str, ...]:
    """Texts, none of them empty."""

    def parse_item(piece: bytes) -> str:
        if not piece:
            raise RefusedError("has an empty text")
        return parse_text(piece)

    return _parse_list(text, b",", parse_item)


_SAMPLERS = {kind.value.encode(): kind for kind in SamplerKind}


def parse_samplers(text: bytes) -> tuple[SamplerKind, ...]:
    """`top_k,temperature`, each at most once."""

    def parse_sampler(piece: bytes) -> SamplerKind:
        if piece not in _SAMPLERS:
            raise RefusedError(f"'{shortened(piece)}' is no sampler")
        return _SAMPLERS[piece]

    kinds = _parse_list(text, b",", parse_sampler)
    if len(set(kinds)) < len(kinds):
        raise RefusedError("names a sampler twice")
    return kinds


def parse_marks(text: bytes) -> tuple[int, ...]:
    """`64,128`, at most MAX_MARKS."""
    marks = _parse_list(text, b",", _parse_number)
    if len(marks) > MAX_MARKS:
        raise RefusedError(f"has more than {MAX_MARKS} positions")
    return marks


def parse_slots(text: bytes) -> tuple[int, ...]:
    """`0,3`."""
    return _parse_list(text, b",", _parse_number)


def _parse_colon_numbers(text: bytes, shape: str) -> tuple[int, int]:
    left, right = _split_pair(text, shape)
    return _parse_number(left), _parse_number(right)


def parse_snapshots(text: bytes) -> tuple[SnapshotPoint, ...]:
    """`pos:slot,…`, no slot twice."""
    points = _parse_list(text, b",", lambda piece: SnapshotPoint(*_parse_colon_numbers(piece, "pos:slot")))
    slots = sorted(point.slot for point in points)
    for slot, following in pairwise(slots):
        if slot == following:
            raise RefusedError(f"names slot {slot} twice")
    return points


def _parse_pin(text: bytes) -> PinSpan:
    span = PinSpan(*_parse_colon_numbers(text, "begin:end"))
    if span.begin >= span.end:
        raise RefusedError("must begin before it ends")
    return span


def parse_pins(text: bytes) -> tuple[PinSpan, ...]:
    """`begin:end,…`, each prefix before it ends, at most MAX_MARKS."""
    pins = _parse_list(text, b",", _parse_pin)
    if len(pins) > MAX_MARKS:
        raise RefusedError(f"has more than {MAX_MARKS} spans")
    return pins


def _parse_image(text: bytes) -> ImageAt:
    position, path = _split_pair(text, "pos:path")
    number = _parse_number(position)
    if not path:
        raise RefusedError("has an empty text")
    return ImageAt(number, parse_text(path))


def parse_images(text: bytes) -> tuple[ImageAt, ...]:
    """`pos:<path>,…`, positions rise, at most MAX_MARKS."""
    images = _parse_list(text, b",", _parse_image)
    if len(images) > MAX_MARKS:
        raise RefusedError(f"has more than {MAX_MARKS} images")
    if any(first.position >= second.position for first, second in pairwise(images)):
        raise RefusedError("has positions that do not rise")
    return images


def parse_samp(text: bytes) -> SamplingArgs:
    """`temperature,top_p,top_k,repeat[,seed]`."""
    items = text.split(b",", 5)
    if not 4 <= len(items) <= 5:
        raise RefusedError("is not temperature,top_p,top_k,repeat[,seed]")
    return SamplingArgs(
        temperature=_named("temperature", parse_not_negative, items[0]),
        top_p=_named("top_p", parse_positive_probability, items[1]),
        top_k=_named("top_k", parse_count, items[2]),
        repeat_penalty=_named("repeat", parse_positive, items[3]),
        seed=_named("seed", lambda item: parse_integer(item, 0, MAX_UINT64), items[4]) if len(items) == 5 else None,
    )
