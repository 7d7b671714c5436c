"""Numbers within bounds, and multiples, as GBNF. Knows no schemas.

Within bounds numbers are written without exponents, so that digits can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from luce.supervisor.text.schemas.notes import Never, UnsupportedError
from luce.supervisor.text.schemas.rules import INTEGER, NUMBER, Rules

_MAX_DIGITS = 80  # of a bound; 2^256 has 78
_FRACTION_DIGITS = 16
_MAX_LISTED = 500
_MAX_DIVISOR = 64
_ANY_FRACTION = f'("." [0-9]{{1,{_FRACTION_DIGITS}}})?'


@dataclass(frozen=True, slots=True)
class Bound:
    value: Decimal
    is_excluded: bool = False


def integer_rule(least: Bound | None, most: Bound | None, divisor: Decimal | None, rules: Rules) -> str:
    """Raises UnsupportedError; Never, where there is none."""
    first = None if least is None else _whole_from(least)
    last = None if most is None else -_whole_from(Bound(-most.value, most.is_excluded))
    if first is not None and last is not None and first > last:
        raise _no_number()
    if divisor is not None and divisor != 1:
        return _multiples(first, last, divisor, rules)
    if first is None and last is None:
        return INTEGER
    return " | ".join(_integers(first, last))


def number_rule(least: Bound | None, most: Bound | None, divisor: Decimal | None, rules: Rules) -> str:
    """Raises UnsupportedError; Never, where there is none."""
    if divisor is not None and divisor == divisor.to_integral_value():
        return integer_rule(least, most, divisor, rules)
    if divisor is not None:
        exponent = divisor.normalize().as_tuple().exponent
        is_power = divisor.normalize().as_tuple().digits == (1,)
        if not is_power or not isinstance(exponent, int) or exponent < -_FRACTION_DIGITS or least or most:
            raise UnsupportedError("multiples of this number have no grammar")
        return f'{INTEGER} ("." [0-9]{{1,{-exponent}}})?'
    if least is None and most is None:
        return NUMBER
    ways = _positive(least, most) if most is None or most.value >= 0 else []
    if least is None or least.value < 0:
        from_zero = Bound(Decimal(0), is_excluded=True)
        mirrored = from_zero if most is None or most.value >= 0 else Bound(-most.value, most.is_excluded)
        negative = _positive(mirrored, None if least is None else Bound(-least.value, least.is_excluded))
        if negative:
            ways.append(f'"-" ({" | ".join(negative)})')
    if not ways:
        raise _no_number()
    return " | ".join(ways)


def check_bound(value: Decimal) -> None:
    """Raises UnsupportedError."""
    parts = value.as_tuple()
    if not isinstance(parts.exponent, int) or len(parts.digits) + abs(parts.exponent) > _MAX_DIGITS:
        raise UnsupportedError(f"a bound of more than {_MAX_DIGITS} digits has no grammar")


def _no_number() -> Never:
    return Never("minimum", "no number lies within the bounds")


def _whole_from(bound: Bound) -> int:
    """The first whole number that is no less."""
    check_bound(bound.value)
    whole = int(bound.value.to_integral_value("ROUND_CEILING"))
    return whole + 1 if bound.is_excluded and whole == bound.value else whole


def _integers(first: int | None, last: int | None) -> list[str]:
    ways = []
    if last is None or last >= 0:
        ways += _unsigned(max(first or 0, 0), last)
    if first is None or first < 0:
        least = 1 if last is None or last >= 0 else -last
        ways.append(f'"-" ({" | ".join(_unsigned(least, None if first is None else -first))})')
    return ways


def _unsigned(first: int, last: int | None) -> list[str]:
    """Whole numbers from `first` >= 0; empty if there is none."""
    if last is None:
        n_digits = len(str(first))
        ways = _unsigned(first, 10**n_digits - 1)
        return [*ways, f"[1-9] [0-9]{{{n_digits},{max(15, n_digits)}}}"]
    if first > last:
        return []
    ways = []
    while first <= last:
        end = min(10 ** len(str(first)) - 1, last)
        ways.append(_between(str(first), str(end)))
        first = end + 1
    return ways


def _between(first: str, last: str) -> str:
    """Digits from `first` to `last`, which are as many."""
    if not first:
        return '""'
    rest = len(first) - 1
    low, high = int(first[0]), int(last[0])
    if low == high:
        return f'"{first[0]}"' if rest == 0 else f'"{first[0]}" {_grouped(_between(first[1:], last[1:]))}'
    ways = []
    if set(first[1:]) - {"0"}:
        ways.append(f'"{low}" {_grouped(_between(first[1:], "9" * rest))}')
        low += 1
    tail = None
    if set(last[1:]) - {"9"}:
        tail = f'"{high}" {_grouped(_between("0" * rest, last[1:]))}'
        high -= 1
    if low <= high:
        ways.append(f"[{low}-{high}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return " | ".join([*ways, tail] if tail is not None else ways)


def _grouped(written: str) -> str:
    return f"({written})" if "|" in written else written


def _positive(least: Bound | None, most: Bound | None) -> list[str]:
    """Numbers without a sign from `least` (or 0) to `most`."""
    if least is None or least.value < 0:
        least = Bound(Decimal(0))
    for bound in (least, *(() if most is None else (most,))):
        check_bound(bound.value)
    first, first_fraction = _split(least.value)
    if most is None:
        return [
            *_one_whole(first, _Fractions(first_fraction, None, least.is_excluded)),
            *_any_fraction(first + 1, None),
        ]
    if (least.value, least.is_excluded or most.is_excluded) >= (most.value, True):
        return []
    last, last_fraction = _split(most.value)
    if first == last:
        fractions = _Fractions(first_fraction, last_fraction, least.is_excluded, most.is_excluded)
        return _one_whole(first, fractions)
    return [
        *_one_whole(first, _Fractions(first_fraction, None, least.is_excluded)),
        *_any_fraction(first + 1, last - 1),
        *_one_whole(last, _Fractions("", last_fraction, False, most.is_excluded)),
    ]


def _any_fraction(first: int, last: int | None) -> list[str]:
    ways = _unsigned(first, last)
    return [f"({' | '.join(ways)}) {_ANY_FRACTION}"] if ways else []


def _one_whole(whole: int, fractions: _Fractions) -> list[str]:
    written = fractions.write()
    return [] if written is None else [f'"{whole}" {written}'.rstrip()]


def _split(value: Decimal) -> tuple[int, str]:
    """The whole part, and the digits behind the point without the last zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


class _Fractions:
    """What may stand behind a whole number: a point and digits from `low` to `high` (None: no limit), or nothing."""

    def __init__(self, low: str, high: str | None, low_excluded: bool = False, high_excluded: bool = False) -> None:
        self._n = max(len(low), len(high or ""), 1)
        self._low = low.ljust(self._n, "0")
        self._high = None if high is None else high.ljust(self._n, "0")
        self._excluded = low_excluded, high_excluded

    def write(self) -> str | None:
        """None: nothing may, not even an end."""
        digits = self._digits(0, True, self._high is not None)
        written = None if digits is None else f'"." {digits}'
        if self._may_end(0, True, self._high is not None):
            return "" if written is None else f"({written})?"
        return written

    def _may_end(self, at: int, by_low: bool, by_high: bool) -> bool:
        """Whether the number may end behind `at` digits; `by_low`, `by_high`: they are those of the limit."""
        low_excluded, high_excluded = self._excluded
        if by_low and (low_excluded or self._low[at:].strip("0")):
            return False
        return not (by_high and high_excluded and self._high is not None and not self._high[at:].strip("0"))

    def _digits(self, at: int, by_low: bool, by_high: bool) -> str | None:
        """At least one digit more; None: there is none that may follow."""
        low_excluded, high_excluded = self._excluded
        left = max(_FRACTION_DIGITS - at, 1)
        if not by_low and not by_high:
            return f"[0-9]{{1,{left}}}"
        if at == self._n:
            if by_high:
                return None if high_excluded or (by_low and low_excluded) else f'"0"{{1,{left}}}'
            return f'"0"{{0,{left}}} [1-9] [0-9]{{0,{left}}}' if low_excluded else f"[0-9]{{1,{left}}}"
        low = int(self._low[at]) if by_low else 0
        high = int(self._high[at]) if by_high and self._high is not None else 9
        ways = []
        for first, last, is_low, is_high in _digit_spans(low, high, by_low, by_high):
            more = self._digits(at + 1, is_low, is_high)
            digit = f'"{first}"' if first == last else f"[{first}-{last}]"
            if self._may_end(at + 1, is_low, is_high):
                ways.append(digit if more is None else f"{digit} ({more})?")
            elif more is not None:
                ways.append(f"{digit} {_grouped(more)}")
        return _grouped(" | ".join(ways)) if ways else None


def _digit_spans(low: int, high: int, by_low: bool, by_high: bool) -> list[tuple[int, int, bool, bool]]:
    """Spans of digits, and whether each goes on along the lower and the upper limit."""
    if low > high:
        return []
    if low == high:
        return [(low, high, by_low, by_high)]
    spans = [(low, low, True, False)] if by_low else []
    begin, end = low + by_low, high - by_high
    if begin <= end:
        spans.append((begin, end, False, False))
    return [*spans, (high, high, False, True)] if by_high else spans


def _multiples(first: int | None, last: int | None, divisor: Decimal, rules: Rules) -> str:
    if divisor != divisor.to_integral_value() or divisor <= 0 or len(divisor.as_tuple().digits) > _MAX_DIGITS:
        raise UnsupportedError("multiples of this number have no grammar")
    step = int(divisor)
    if first is not None and last is not None:
        begin = -(-first // step) * step
        if begin > last:
            raise Never("multipleOf", "no multiple lies within the bounds")
        if (last - begin) // step < _MAX_LISTED:
            return " | ".join(f'"{value}"' for value in range(begin, last + 1, step))
    if step > _MAX_DIVISOR or last is not None or first not in {None, 0, 1}:
        raise UnsupportedError("multiples of this number within these bounds have no grammar")
    # One rule for each remainder of what has been written.
    names = [rules.reserve() for _ in range(step)]
    for remainder, name in enumerate(names):
        ways = _digit_ways(remainder, range(10), names)
        rules.define(name, " | ".join(['""', *ways] if remainder == 0 else ways))
    positive = " | ".join(_digit_ways(0, range(1, 10), names))
    if first == 1:
        return positive
    sign = '"-"? ' if first is None else ""
    return f'{sign}("0" | {positive})'


def _digit_ways(remainder: int, digits: range, names: list[str]) -> list[str]:
    step = len(names)
    return [f'"{digit}" {names[(remainder * 10 + digit) % step]}' for digit in digits]
