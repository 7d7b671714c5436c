"""Canonical forms: the same for every spelling of a message, and never the same for two that mean different things."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.prompts.canonical_message import canonical_json, said

# A JSON value apart from its spelling: None, bool, str, list, dict, and numbers as exact fractions.
NUMBERS = st.builds(lambda digits, power: Fraction(digits) * Fraction(10) ** power, st.integers(), st.integers(-30, 30))
VALUES = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS,
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4),
    max_leaves=12,
)
SEEDS = st.integers(0, 2**32)


def means_same(one: Any, other: Any) -> bool:
    """Compared by another way than the one under test."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(means_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(means_same(value, other[key]) for key, value in one.items())
    return bool(one == other)


def spelled_number(value: Fraction, rng: random.Random) -> str:
    """One of its spellings, none of which loses a digit."""
    sign = "-" if value < 0 else ""
    digits, power = abs(value), 0
    while digits.denominator != 1:
        digits, power = digits * 10, power - 1
    text = str(digits.numerator)
    zeros = rng.randrange(3)
    if value:
        text, power = text + "0" * zeros, power - zeros
    form = rng.randrange(3)
    if form == 0 or (power > 0 and form == 1):
        return f"{sign}{text}{rng.choice('eE')}{rng.choice(['', '+']) if power >= 0 else ''}{power}"
    if form == 1 and power < 0:
        text = text.rjust(1 - power, "0")
        return f"{sign}{text[:power]}.{text[power:]}"
    point = rng.randrange(1, len(text)) if len(text) > 1 else None
    if point is None:
        return f"{sign}{text}e{power}"
    return f"{sign}{text[:point]}.{text[point:]}e{power + len(text) - point}"


def spelled(value: Any, rng: random.Random) -> str:
    def space() -> str:
        return rng.choice(["", " ", "\n", "\t "])

    if isinstance(value, Fraction):
        return spelled_number(value, rng)
    if isinstance(value, list):
        return "[" + space() + ",".join(space() + spelled(item, rng) + space() for item in value) + "]"
    if isinstance(value, dict):
        members = [(key, item) for key, item in value.items()]
        rng.shuffle(members)
        parts = (f"{space()}{spelled(key, rng)}{space()}:{space()}{spelled(item, rng)}" for key, item in members)
        return "{" + ",".join(parts) + space() + "}"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        return text.replace("/", "\\/") if rng.random() < 0.5 else text
    return json.dumps(value)


@given(VALUES, SEEDS, SEEDS)
def test_every_spelling_of_a_value_has_one_form(value: Any, one: int, other: int) -> None:
    assert canonical_json(spelled(value, random.Random(one))) == canonical_json(spelled(value, random.Random(other)))


@given(VALUES, VALUES, SEEDS)
def test_values_that_differ_have_different_forms(one: Any, other: Any, seed: int) -> None:
    rng = random.Random(seed)
    forms = canonical_json(spelled(one, rng)), canonical_json(spelled(other, rng))
    assert (forms[0] == forms[1]) == means_same(one, other)


@given(VALUES, SEEDS)
def test_a_small_change_is_another_value(value: Any, seed: int) -> None:
    rng = random.Random(seed)
    changed = change(value, rng)
    assert not means_same(value, changed)
    assert canonical_json(spelled(value, rng)) != canonical_json(spelled(changed, rng))


def change(value: Any, rng: random.Random) -> Any:
    """Something else that looks alike."""
    if isinstance(value, Fraction):
        return rng.choice([value + 1, value + Fraction(1, 10**25), -value if value else Fraction(1), str(value)])
    if isinstance(value, str):
        return rng.choice([value + " ", value + "\\n", " " + value, [value]])
    if isinstance(value, list):
        if value and rng.random() < 0.7:
            at = rng.randrange(len(value))
            return [*value[:at], change(value[at], rng), *value[at + 1 :]]
        return [*value, None]
    if isinstance(value, dict):
        if value and rng.random() < 0.7:
            key = rng.choice(list(value))
            return {**value, key: change(value[key], rng)}
        return {**value, "another": None} if "another" not in value else {}
    return str(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }'),
        ("1.0", "1"),
        ("1e3", "1000"),
        ("100e-2", "1"),
        ("0.10", "1E-1"),
        ('"\\u00e9\\/"', '"é/"'),
        ('"\\ud83d\\ude00"', '"😀"'),
        ("1e400", "10e399"),
    ],
)
def test_the_same(one: str, other: str) -> None:
    assert canonical_json(one) == canonical_json(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12345678901234567890", "12345678901234567000"),  # as JavaScript writes it anew
        ("12345678901234567890", "12345678901234567891"),
        ("0.1", "0.1000000000000000055511151231257827"),  # one float
        ("1e400", "1e401"),  # infinite as floats
        ("0", "-0"),
        ("0", "-0.0"),
        ("1", "true"),
        ("1", '"1"'),
        ("null", '"null"'),
        ("{}", "[]"),
        ('{"a":1}', '"{\\"a\\":1}"'),
        ('{"a":1,"a":2}', '{"a":2}'),  # readers differ
        ('{"a":1,"a":2}', '{"a":2,"a":1}'),
        ("NaN", "null"),
        ('"é"', '"e\\u0301"'),  # no two texts of other code points are one
        ("{", "{ "),  # no JSON
        ('{"a":1', '{"a":1}'),
        ("1e99999", "1e99998"),
        ("[" * 5000, "[" * 5001),
    ],
)
def test_not_the_same(one: str, other: str) -> None:
    assert canonical_json(one) != canonical_json(other)


def test_a_number_of_any_length_takes_no_time() -> None:
    assert canonical_json("1e999999999") == canonical_json("10e999999998")
    assert canonical_json("1e" + "9" * 5000) != canonical_json("1e" + "9" * 5001)


def call(name: str, arguments: str, id_: str = "call_1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


TEXTS = st.text(alphabet="ab \n{}\"'\\,[]é", max_size=8)
CALLS = st.lists(st.tuples(st.sampled_from(["f", "g", "f g"]), VALUES), max_size=3)


@given(TEXTS, CALLS, TEXTS, CALLS, SEEDS)
def test_messages_are_the_same_if_texts_and_calls_are(
    text: str, calls: list[Any], other_text: str, other_calls: list[Any], seed: int
) -> None:
    rng = random.Random(seed)

    def form(content: str, made: list[Any]) -> bytes:
        spelt = [call(name, spelled(value, rng), str(rng.random())) for name, value in made]
        return said({"role": "assistant", "content": content, "tool_calls": spelt, "reasoning_content": content})

    trimmed = rng.choice(["", " ", "\n"]) + text.strip() + rng.choice(["", "\n\n"])
    assert form(text, calls) == form(trimmed, calls)
    is_same = text.strip() == other_text.strip() and [name for name, _ in calls] == [name for name, _ in other_calls]
    is_same = is_same and all(means_same(a[1], b[1]) for a, b in zip(calls, other_calls, strict=is_same))
    assert (form(text, calls) == form(other_text, other_calls)) == is_same


def test_decimals_are_read_to_their_last_digit() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        one = f"{rng.randrange(10**20)}.{rng.randrange(10**20):020}e{rng.randrange(-40, 40)}"
        other = f"{rng.randrange(10**20)}.{rng.randrange(10**20):020}e{rng.randrange(-40, 40)}"
        assert (canonical_json(one) == canonical_json(other)) == (Decimal(one) == Decimal(other))
        assert canonical_json(one) == canonical_json(format(Decimal(one), "f"))
