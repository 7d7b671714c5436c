"""One id of a rendered prompt becomes those of an image, and positions move."""

from __future__ import annotations

import pytest

from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.image_places import ImagePlaces

IDS = {"a": (901, 902, 903), "b": (904,), "c": ()}


def test_positions_move_with_what_stands_before_them() -> None:
    placed = ImagePlaces([1, 100, 2, 101, 3], 100, ["a", "b"], IDS)
    assert list(placed.ids) == [1, 901, 902, 903, 2, 904, 3]
    assert placed.images == [(1, "a"), (5, "b")]
    assert [placed.moved(position) for position in range(6)] == [0, 1, 4, 5, 6, 7]


def test_the_same_image_twice_and_one_of_no_ids() -> None:
    placed = ImagePlaces([100, 101, 102], 100, ["a", "c", "a"], IDS)
    assert tuple(placed.ids) == (*IDS["a"], *IDS["a"])
    assert placed.images == [(0, "a"), (3, "c"), (3, "a")]
    assert [placed.moved(position) for position in range(4)] == [0, 3, 3, 6]


def test_without_images_nothing_moves() -> None:
    placed = ImagePlaces([1, 2, 3], 100, [], {})
    assert (placed.ids, placed.images, placed.moved(2)) == ([1, 2, 3], [], 2)


@pytest.mark.parametrize("names", [["x"], ["a"]])
def test_an_image_that_is_none_of_the_requests_is_refused(names: list[str]) -> None:
    with pytest.raises(ApiError):
        ImagePlaces([100, 101], 100, names, IDS)
