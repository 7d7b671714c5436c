"""Arguments in a stream are JSON of the same values as those of a whole answer, however they are cut."""

from __future__ import annotations

import json
from collections.abc import Sequence

import jiter
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from luce.supervisor.http.anthropic.streamed_input import StreamedInput
from luce.supervisor.http.prompts.history.arguments import object_of

_VALUES = st.recursive(
    st.sampled_from(
        ["1", "-0", "1e999", "-1e999", "1.5", "true", "null", '"x"', '"\\\\ud83d"', '"\\ud83d"', '"\\ud83d\\ude00"',
         '"\\udc00"', '"a\tb\n"', '"\\u0000 1e999"', '"\\""', '"🤔"']
    ),
    lambda inner: st.lists(inner, max_size=3).map(lambda values: "[" + ", ".join(values) + "]")
    | st.lists(inner, max_size=3).map(
        lambda values: "{" + ",\n".join(f'"k{n}\\ud83d": {value}' for n, value in enumerate(values)) + "}"
    ),
    max_leaves=6,
)  # fmt: skip
_CUTS = st.lists(st.integers(1, 7))


def streamed(text: str, lengths: Sequence[int]) -> str:
    stream, pieces, at = StreamedInput(), [], 0
    for n in (*lengths, len(text)):
        pieces.append(stream.feed(text[at : at + n]))
        at += n
    return "".join(pieces) + stream.finish()


@given(_VALUES.filter(lambda text: text != "null"), _CUTS)  # the parser makes {} of that
@example('{"a": 1e999}', [1] * 12)
@example('{"a": -1e999}', [1] * 13)
@example('{"a": "-", "b": -1}', [1] * 19)
def test_it_is_json_of_the_same_values(text: str, lengths: list[int]) -> None:
    told = streamed(text, lengths)
    assert json.loads(told) == object_of(text)
    jiter.from_json(told.encode())


@given(_VALUES, st.integers(0, 40), _CUTS)
def test_what_is_cut_off_begins_json(text: str, n: int, lengths: list[int]) -> None:
    """As Anthropic's SDK reads what has come."""
    jiter.from_json(streamed(text[:n], lengths).encode() or b"{}", partial_mode=True)


@pytest.mark.parametrize("text", ["", "{}", '{"a": "x"}', '{"a": 1, "b": [2.50, -3e5]}'])
def test_what_is_json_stays_as_it_is(text: str) -> None:
    assert streamed(text, [1] * len(text)) == text
