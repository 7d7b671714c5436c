"""Real: an option's number with a fraction, such as the daemon takes it: finite, and within what a binary32 holds."""

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
