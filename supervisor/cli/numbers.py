"""Numbers as the daemon takes them. Real: one with a fraction, finite, and within what a binary32 holds. Bytes: a count
of them, 8G for short. Tokens: a count of them, 32K for short. NumberOrAuto, TokensOrAuto: one, or the word auto.
PositionSpans: positions. KvOverrides: typed values by key. Seconds: a time. JsonObject: no number, but read like one.
format_bytes: for people."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import click

from luce.supervisor.config.values import byte_count, token_count


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
            self.fail(f"{value} is not a number that the daemon can take: give a finite one", param, ctx)
        return number


class Bytes(click.IntRange):
    """A whole number of bytes, with K, M, G or T behind it for powers of 1024."""

    name = "bytes"

    def __init__(self) -> None:
        super().__init__(min=0, max=1 << 50)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = byte_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return int(super().convert(count, param, ctx))


class Tokens(click.IntRange):
    """A number of tokens, with K or M behind it for powers of 1024."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            count = token_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(count, param, ctx)


class TokensOrAuto(Tokens):
    """The same, or the word auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class NumberOrAuto(click.IntRange):
    """A whole number, or the word auto."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class JsonObject(click.ParamType):  # type: ignore[type-arg]  # as Seconds
    """An object, as JSON; a table of a configuration file is one already."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            read = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            self.fail(f"{value} is not JSON", param, ctx)
        if not isinstance(read, dict):
            self.fail(f"{value} is no JSON object", param, ctx)
        return read


class PositionSpans(click.ParamType):  # type: ignore[type-arg]  # as Seconds
    """Positions as `begin:end,…`, each beginning before it ends."""

    name = "positions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        spans = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for span in spans:
            begin, _, end = span.partition(":")
            if not (_is_position(begin) and _is_position(end) and int(begin) < int(end)):
                self.fail(f"{span!r} is not begin:end, 0:512 say, which begins before it ends", param, ctx)
        return spans


class KvOverrides(click.ParamType):  # type: ignore[type-arg]  # as Seconds
    """Values in place of a model file's, `KEY=TYPE:VALUE,…`; what they mean only the model's loader knows."""

    name = "overrides"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        overrides = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        for override in overrides:
            key, _, typed = override.partition("=")
            if not key or typed.partition(":")[0] not in {"int", "float", "bool", "str"} or ":" not in typed:
                self.fail(f"{override!r} is not KEY=TYPE:VALUE, with int, float, bool or str for TYPE", param, ctx)
        return overrides


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(2**31)) and int(text) < 2**31


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """A time above 0; with `or_none`, also the word none: without bounds."""

    name = "seconds"

    def __init__(self, *, max_s: float | None = None, or_none: bool = False) -> None:
        self._range = click.FloatRange(min=0, min_open=True, max=max_s)
        self._or_none = or_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        if self._or_none and value == "none":
            return None
        seconds = float(self._range.convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is no time that ends" + (": say none" if self._or_none else ""), param, ctx)
        return seconds


def format_bytes(n_bytes: int) -> str:
    """In the unit that leaves a readable number."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"
