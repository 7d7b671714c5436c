"""Single values of a line: strict numbers, token ids, texts. Knows no key, no command and no reply.

Strict means that the whole word is the number: no `+`, no hexadecimal, no `-0` for a whole number, nothing non-finite.
A RefusedError says what is wrong with the value; whoever knows the key puts it before.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from math import inf, isfinite

from .errors import ErrorCode
from .percent import percent_decode
from .tokens import MAX_INT32

MIN_INT32 = -(1 << 31)
MAX_UINT64 = (1 << 64) - 1
MAX_QUOTED_BYTES = 40

_INTEGER = re.compile(rb"-?[0-9]+")
_NEGATIVE_ZERO = re.compile(rb"-0+")
_REAL = re.compile(rb"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NONZERO_MANTISSA = re.compile(rb"[^eE]*[1-9]")
_FLOAT32 = struct.Struct("<f")


class RefusedError(Exception):
    """Why a value, a key or a line is refused; stays inside the parsers."""

    def __init__(self, text: str, code: ErrorCode = ErrorCode.BAD_ARGS) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def shortened(text: bytes) -> str:
    """A piece of the line as an error text may show it."""
    head = text[:MAX_QUOTED_BYTES].decode("utf-8", "ignore")
    return head if len(text) <= MAX_QUOTED_BYTES else head + "..."


def looks_like_integer(text: bytes) -> bool:
    return _INTEGER.fullmatch(text) is not None


def _is_strict_integer(text: bytes) -> bool:
    return looks_like_integer(text) and _NEGATIVE_ZERO.fullmatch(text) is None


def _to_integer(text: bytes) -> int:
    """REQUIRES: _is_strict_integer(text). What no field could hold stays just as far out of every range."""
    digits = text.lstrip(b"-").lstrip(b"0") or b"0"
    magnitude = int(digits) if len(digits) <= 20 else MAX_UINT64 + 1
    return -magnitude if text.startswith(b"-") else magnitude


def parse_integer(text: bytes, minimum: int, maximum: int) -> int:
    if not _is_strict_integer(text):
        raise RefusedError("is not a whole number")
    value = _to_integer(text)
    if not minimum <= value <= maximum:
        raise RefusedError(f"must be from {minimum} to {maximum}")
    return value


def parse_count(text: bytes) -> int:
    return parse_integer(text, 0, MAX_INT32)


def parse_token(text: bytes) -> int:
    if not _is_strict_integer(text):
        raise RefusedError(f"'{shortened(text)}' is not a token id")
    value = _to_integer(text)
    if not 0 <= value <= MAX_INT32:
        raise RefusedError(f"no vocabulary has the token id {shortened(text)}", ErrorCode.TOKEN_OUT_OF_RANGE)
    return value


def _parse_finite(text: bytes) -> tuple[float, float]:
    """The number, and the binary32 that the daemon makes of it."""
    if _REAL.fullmatch(text) is None:
        raise RefusedError("is not a number")
    value = float(text)
    lost_its_digits = value == 0 and _NONZERO_MANTISSA.match(text) is not None
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    except OverflowError:
        rounded = inf
    if lost_its_digits or abs(rounded) == inf:
        raise RefusedError("is not a finite number that a float can hold")
    return value, rounded


def _real_reader(accepts: Callable[[float], bool], range_text: str) -> Callable[[bytes], float]:
    def read(text: bytes) -> float:
        value, rounded = _parse_finite(text)
        if not accepts(rounded):
            raise RefusedError(range_text)
        return value

    return read


parse_any_real = _real_reader(isfinite, "must be finite")
parse_not_negative = _real_reader(lambda value: value >= 0, "must be 0 or more")
parse_positive = _real_reader(lambda value: value > 0, "must be above 0")
parse_probability = _real_reader(lambda value: 0 <= value <= 1, "must be from 0 to 1")
parse_positive_probability = _real_reader(lambda value: 0 < value <= 1, "must be above 0 and at most 1")


def parse_text(text: bytes) -> str:
    """Percent-decoded; what comes out must be UTF-8 without a NUL."""
    decoded = percent_decode(text)
    if decoded is None:
        raise RefusedError("has a % without two hexadecimal digits after it")
    if b"\0" in decoded:
        raise RefusedError("holds a NUL byte")
    try:
        return decoded.decode("utf-8")
    except UnicodeDecodeError:
        raise RefusedError("does not decode to UTF-8") from None
