"""Numbers as the daemon takes them. Real: one with a fraction, finite, and within what a binary32 holds. Bytes: a count
of them, 8G for short."""

from __future__ import annotations

import math
import struct
from typing import Any

import click


class Real(click.FloatRange):
    """Without bounds: any such number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        try:
            (rounded,) = struct.unpack("<f", struct.pack("<f", number))
        except OverflowError:
            rounded = math.inf
        if not math.isfinite(rounded):
            self.fail(f"{value} is no number that the daemon can take: give a finite one", param, ctx)
        return number


class Bytes(click.IntRange):
    """A whole number of bytes, with K, M, G or T behind it for powers of 1024."""

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(min=0, max=1 << 50)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        shift = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper(), 0)
        digits = text[:-1] if shift else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            self.fail(f"{value!r} is no number of bytes: 1000, 64M or 8G, say", param, ctx)
        return int(super().convert(int(digits) << shift, param, ctx))
