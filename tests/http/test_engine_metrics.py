"""What an engine says of itself, read as numbers."""

from __future__ import annotations

import pytest

from luce.supervisor.http.engine_metrics import lane_pages, numbers


def test_numbers_are_numbers_and_words_stay_words() -> None:
    assert numbers({"a": "12", "b": "0.5", "c": "none", "d": "-1", "e": "1e5"}) == {
        "a": 12, "b": 0.5, "c": "none", "d": "-1", "e": "1e5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "pages"),
    [
        ("none", {}),
        ("0:12/30/2", {0: (12, 30, 2)}),
        ("0:12/30/0,3:0/0/0", {0: (12, 30, 0), 3: (0, 0, 0)}),
        ("", {}),
        ("0:12/30,1:a/2/3,-1:1/2/3,2:1/2/3/4", {}),
    ],
)
def test_where_a_running_texts_pages_lie(said: str, pages: dict[int, tuple[int, int, int]]) -> None:
    assert lane_pages(numbers({"lane_pages": said})) == pages


def test_an_engine_without_such_texts_says_nothing_of_them() -> None:
    assert lane_pages({}) == {}
