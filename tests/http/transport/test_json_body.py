"""Bodies as JSON: what is none is refused, and what clients repeat is put right, always in the same way."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.transport.json_body import MAX_DEPTH, MAX_MESSAGES, MAX_VALUES, Mended, parse_object


def nested(depth: int, opening: str, closing: str) -> bytes:
    return ('{"a":' + opening * depth + "1" + closing * depth + "}").encode()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b'"text"', "JSON object"),
        (b"null", "JSON object"),
        (b"1", "JSON object"),
        (b"NaN", "JSON object"),
        (b'{"a": NaN}', "a: NaN"),
        (b'{"b": [NaN], "a": -Infinity}', "a: NaN"),
        (b'{"a": "\x00"}', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} {"b": 2}', "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (nested(100_000, "[", ""), "not JSON"),
        (b'{"a": ' + b"[" * 300 + b'"' + b'\\"' * 100_000, "not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "JSON object"),
    ],
)
def test_what_is_no_object_of_json(data: bytes, text: str) -> None:
    with pytest.raises(ApiError, match=text) as caught:
        parse_object(data)
    assert caught.value.kind is ErrorKind.INVALID


LARGEST = 1.7976931348623157e308


@pytest.mark.parametrize(
    ("data", "value", "what"),
    [
        (rb'{"a": "\ud800"}', "\ufffd", Mended.SURROGATE),
        (rb'{"a": ["x\udfffx", "\ud83d\ude00"]}', ["x\ufffdx", "\U0001f600"], Mended.SURROGATE),
        (rb'{"a": "\udc00\ud800\ud83d\ude00\ud83d"}', "\ufffd\ufffd\U0001f600\ufffd", Mended.SURROGATE),
        (rb'{"a": {"\udc00": 1}}', {"\ufffd": 1}, Mended.SURROGATE),
        (b'{"a": "\xff"}', "\ufffd", Mended.BYTES),
        (b'{"a": "cut \xf0\x9f\xa6"}', "cut \ufffd", Mended.BYTES),
        (b'{"a": "\xed\xa0\x80"}', "\ufffd" * 3, Mended.BYTES),
        (b'{"a": [NaN, Infinity, {"b": -Infinity}]}', [None, None, {"b": None}], Mended.CONSTANT),
        (b'{"a": 1e999}', LARGEST, Mended.NUMBER),
        (b'{"a": -1e999}', -LARGEST, Mended.NUMBER),
        (b'{"a": ' + b"9" * 309 + b"}", LARGEST, Mended.NUMBER),
        (b'{"a": -' + b"9" * 100_000 + b"}", -LARGEST, Mended.NUMBER),
        (b'{"a": 1, "a": 2}', 2, Mended.TWICE),
        (b'{"a": [{"b": 1, "c": 3, "b": 2}]}', [{"b": 2, "c": 3}], Mended.TWICE),
    ],
)
def test_what_is_put_right(data: bytes, value: Any, what: Mended) -> None:
    mended: set[Mended] = set()
    assert parse_object(data, mended=mended) == {"a": value}
    assert mended == {what}


@pytest.mark.parametrize("text", [str(2**64), str(-(2**63) - 1), str(2**256 - 1), "1" + "0" * 308])
def test_a_whole_number_is_taken_as_it_is(text: str) -> None:
    mended: set[Mended] = set()
    assert parse_object(f'{{"a": [{text}]}}'.encode(), mended=mended) == {"a": [int(text)]}
    assert not mended


@pytest.mark.parametrize("before", [1, 100, 308, 309])
def test_a_long_number_is_found_wherever_the_body_is_cut(before: int) -> None:
    """A long text is looked through piece by piece."""
    begin = '{"a": "'
    text = "x" * ((1 << 18) - len(begin) - len('", "n": ') - before)
    assert parse_object(f'{begin}{text}", "n": {"2" * 5000}}}'.encode())["n"] == LARGEST


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('["]", {"\\"[": ', "}]")])
def test_what_is_nested_too_deeply_is_a_text_at_last(depth: int, opening: str, closing: str) -> None:
    mended: set[Mended] = set()
    data = nested(depth, opening, closing)
    value: Any = parse_object(data, mended=mended)
    for _ in range(MAX_DEPTH):
        value = value[-1] if isinstance(value, list) else next(iter(value.values()))
    assert value.encode() in data
    assert value.startswith(tuple("[{"))
    assert value.endswith(tuple("]}"))
    assert mended == {Mended.DEPTH}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=4), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(_VALUES)
def test_what_was_put_right_needs_it_no_more(value: Any) -> None:
    """Also what a client repeats of what it was told."""
    taken = parse_object(json.dumps({"messages": [value]}).encode())
    said = json.dumps(taken, ensure_ascii=False, allow_nan=False).encode()
    mended: set[Mended] = set()
    assert parse_object(said, mended=mended) == taken
    assert not mended


@pytest.mark.parametrize(
    ("encoding", "charset", "is_mended"),
    [
        ("utf-8", None, False),
        ("utf-8", "utf-8", False),
        ("utf-8-sig", None, False),
        ("utf-8-sig", "utf-8", False),
        ("utf-8", "us-ascii", False),
        ("utf-8", "of-tomorrow", False),
        ("utf-16", None, False),
        ("utf-16", "utf-16", False),
        ("utf-16-le", None, False),
        ("utf-16-be", "utf-16", False),
        ("utf-32", None, False),
        ("latin-1", "ISO-8859-1", False),
        ("cp1252", "windows-1252", False),
        ("latin-1", None, True),
        ("latin-1", "", True),
        ("latin-1", "us-ascii", True),
    ],
)
def test_charsets(encoding: str, charset: str | None, is_mended: bool) -> None:
    mended: set[Mended] = set()
    value = parse_object('{"a": "Käse"}'.encode(encoding), charset=charset, mended=mended)
    assert value == {"a": "K\ufffdse" if is_mended else "Käse"}
    assert mended == ({Mended.BYTES} if is_mended else set())


@pytest.mark.parametrize("charset", ["of-tomorrow", "rot13", "punycode", "a\0b"])
def test_a_charset_that_is_unknown_is_told_of(charset: str) -> None:
    with pytest.raises(ApiError, match="send UTF-8") as caught:
        parse_object('{"a": "Käse"}'.encode("latin-1"), charset=charset)
    assert caught.value.code == "bad_charset"


@pytest.mark.parametrize("name", ["messages", "input"])
def test_messages_are_counted_before_anything_is_made_of_them(name: str) -> None:
    items = ",".join(["{}"] * (MAX_MESSAGES + 1))
    with pytest.raises(ApiError, match=f"{name} has 100,001 items") as caught:
        parse_object(f'{{"{name}": [{items}]}}'.encode())
    assert (caught.value.kind, caught.value.code) == (ErrorKind.INVALID, "too_many_messages")


@pytest.mark.parametrize("data", [b"[" + b"[]," * MAX_VALUES + b"1]", b'{"a":[' + b"0," * MAX_VALUES + b"0]}"])
def test_values_are_counted_before_they_are_made(data: bytes) -> None:
    with pytest.raises(ApiError, match="more than") as caught:
        parse_object(data)
    assert caught.value.kind is ErrorKind.TOO_LARGE


@pytest.mark.parametrize(
    "value",
    [
        {"seed": 2**64 - 1, "low": -(2**63), "zero": 0, "small": 1e-999, "big": 1e308},
        {"emoji": "\U0001f600", "zero byte": "\0", "separators": "\u2028\x85"},
        {"digits in a text": "9" * 1000, "a\\ud800b": "an escaped backslash before it"},
        {"": ""},
    ],
)
def test_what_is_unusual_and_right(value: dict[str, Any]) -> None:
    for escapes in (True, False):
        assert parse_object(json.dumps(value, ensure_ascii=escapes).encode()) == json.loads(json.dumps(value))


def test_the_deepest_that_is_taken_as_it_is() -> None:
    mended: set[Mended] = set()
    assert parse_object(nested(MAX_DEPTH - 1, "[", "]"), mended=mended)["a"]
    assert not mended


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_the_clients_error(data: bytes) -> None:
    with suppress(ApiError):
        json.dumps(parse_object(data), ensure_ascii=False, allow_nan=False).encode()
