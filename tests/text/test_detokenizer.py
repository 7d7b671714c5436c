"""Incremental UTF-8 and stop strings, with no model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.text import Detokenizer, StopStrings


@given(st.text(max_size=60), st.lists(st.integers(1, 7), max_size=60))
def test_any_cut_of_utf8_gives_the_text(text: str, sizes: list[int]) -> None:
    data, pieces = text.encode(errors="replace"), []
    for size in [*sizes, len(data) + 1]:
        pieces.append(data[:size])
        data = data[size:]
    detokenizer = Detokenizer(lambda token: pieces[token])
    parts = [detokenizer.feed(token) for token in range(len(pieces))]
    assert "".join(parts) + detokenizer.finish() == text.encode(errors="replace").decode()
    assert "\ufffd" not in "".join(parts) or "\ufffd" in text


def test_a_sequence_that_is_never_finished() -> None:
    pieces = [b"a\xe6\x97", b"\xa5", b"\xf0\x9f"]
    detokenizer = Detokenizer(lambda token: pieces[token])
    assert [detokenizer.feed(token) for token in range(3)] == ["a", "日", ""]
    assert detokenizer.finish() == "\ufffd"


def test_only_a_possible_stop_waits() -> None:
    stops = StopStrings(["</s>", "STOP"])
    assert stops.feed("one <") == "one "
    assert stops.feed("b> S") == "<b> "
    assert stops.feed("TO") == ""
    assert stops.feed("RM ST") == "STORM "
    assert stops.feed("OP here") == ""
    assert stops.match is not None
    assert (stops.match.stop, stops.match.rest) == ("STOP", " here")
    assert stops.feed("more") == ""
    assert stops.finish() == ""


def test_what_waits_comes_out_at_the_end() -> None:
    stops = StopStrings(["</s>"])
    assert stops.feed("x </") == "x "
    assert stops.finish() == "</"
    assert stops.match is None


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stops_nothing_waits(stops: list[str]) -> None:
    assert StopStrings(stops).feed("text") == "text"


@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    st.lists(st.integers(1, 5), max_size=40),
)
def test_any_cut_finds_the_first_stop(text: str, stops: list[str], sizes: list[int]) -> None:
    """What comes out is a prefix of the text without a stop in it; then the stop itself follows."""
    finder, rest, emitted = StopStrings(stops), text, ""
    for size in [*sizes, len(text) + 1]:
        emitted += finder.feed(rest[:size])
        rest = rest[size:]
    emitted += finder.finish()
    if finder.match is None:
        assert emitted == text
        assert not any(stop in text for stop in stops)
    else:
        assert text.startswith(emitted + finder.match.stop)
        # No stop was complete earlier than the piece in which this one was found.
        assert not any(stop in emitted for stop in stops)
