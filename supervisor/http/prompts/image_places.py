"""Images in a rendered prompt: one id each becomes those that stand for the image, and what is behind moves. Pure.

The text layer gives number k of a prompt's images the one id n_vocab + k; which ids stand for it only an engine knows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from luce.supervisor.http.errors import ApiError, ErrorKind


class ImagePlaces:
    """`names`: of the prompt's images, in order; `ids`: what stands for each, by its name. Raises ApiError where one is
    none of the request's."""

    def __init__(
        self, rendered: Sequence[int], n_vocab: int, names: Sequence[str], ids: Mapping[str, Sequence[int]]
    ) -> None:
        self._places = [place for place, token in enumerate(rendered) if token >= n_vocab] if names else []
        self._ends: list[int] = []  # by how much what stands behind each moves
        self.images: list[tuple[int, str]] = []
        """Where the ids of each begin, and its name."""
        self.ids: Sequence[int] = rendered
        if not self._places:
            return
        whole: list[int] = []
        taken = 0
        for place in self._places:
            number = rendered[place] - n_vocab
            name = names[number] if number < len(names) else ""
            if name not in ids:
                raise ApiError(ErrorKind.INVALID, "bad_messages", "a message spells a marker of an image")
            whole += rendered[taken:place]
            self.images.append((len(whole), name))
            whole += ids[name]
            taken = place + 1
            self._ends.append(len(whole) - taken)
        self.ids = array("i", (*whole, *rendered[taken:]))

    @property
    def is_empty(self) -> bool:
        """No image: nothing moves."""
        return not self._places

    def moved(self, position: int) -> int:
        """Where a position of the rendered prompt is now."""
        n_before = bisect_left(self._places, position)
        return position + self._ends[n_before - 1] if n_before else position
