"""What is kept of a text as text again: whole characters, a word where something was left out, the question gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from luce.supervisor.text import TextModel
from luce.supervisor.text.excerpt import SEPARATOR, Excerpt, ExcerptTask

TEXT = "naïve café 🙂👩‍🌾 東京は雨です。 def f(x):\n\treturn x  # <|im_end|> ok " * 12


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> TextModel:
    return TextModel(tiny_model)


def excerpt(
    model: TextModel, chosen: tuple[tuple[int, int], ...], *, text: str = TEXT, separator: str = SEPARATOR
) -> Excerpt:
    task = ExcerptTask.of(model.tokenize(text), model.tokenize("\n\nWhy?"), 100, ())
    return Excerpt.of(task, chosen, model, separator=separator, given=text)


def test_all_of_a_text_is_the_text(model: TextModel) -> None:
    ids = model.tokenize(TEXT)
    whole = excerpt(model, ((0, len(ids) + 5),))
    assert whole == Excerpt(TEXT, tuple(ids), ((0, len(ids)),), len(ids))


def test_parts_cut_within_characters_break_nothing(model: TextModel, full: bool) -> None:
    ids = model.tokenize(TEXT)
    rng = random.Random(3)
    n_cut = 0
    for _ in range(2000 if full else 200):
        cuts = sorted(rng.sample(range(1, len(ids)), 4))
        kept = excerpt(model, ((0, cuts[0]), (cuts[1], cuts[2]), (cuts[3], len(ids))))
        pieces = kept.content.split(SEPARATOR)
        assert "\ufffd" not in kept.content
        assert len(pieces) == 3
        assert TEXT.startswith(pieces[0])
        assert pieces[1] in TEXT
        assert TEXT.endswith(pieces[2])
        data = b"".join(model.piece(token, special=True) for token in kept.tokens)
        assert len(data) - sum(len(piece.encode()) for piece in pieces) <= 4 * 3
        n_cut += len(data) > sum(len(piece.encode()) for piece in pieces)
    assert n_cut > 20, "some of them were"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (((0, 1), (2, 3)), "ab|cd|"),
        (((0, 1), (3, 4)), "ab|ef"),
        (((1, 2),), "|bc|"),
        (((3, 4), (5, 9)), "|ef"),
        (((0, 9),), "abbccdef"),
    ],
)
def test_a_separator_stands_wherever_something_is_left_out(chosen: tuple[tuple[int, int], ...], expected: str) -> None:
    class Pairs:
        def piece(self, token: int, *, special: bool = False) -> bytes:
            assert special
            return (b"ab", b"bc", b"cd", b"ef")[token]

    task = ExcerptTask.of((0, 1, 2, 3), (9, 9, 9, 9, 9), 2, ())
    kept = Excerpt.of(task, chosen, Pairs(), separator="|", given=None)
    assert kept.content == expected
    assert all(end <= 4 for _, end in kept.parts)
    assert kept.n_text == 4


def test_blanks_of_the_separator_are_not_the_texts_ends(model: TextModel) -> None:
    n_ids = len(model.tokenize(TEXT))
    kept = excerpt(model, ((10, 20), (30, 40)))
    assert kept.content.startswith("[…] ")
    assert kept.content.endswith(" […]")
    assert n_ids > 40
    assert SEPARATOR not in excerpt(model, ((10, 20), (30, 40)), separator="").content


def test_bytes_that_are_no_text_come_as_such(model: TextModel) -> None:
    """Ids may be anything, other than a text."""
    half = model.tokenize("🙂")[:-1]
    assert half
    task = ExcerptTask.of(half, (), 9, ())
    assert Excerpt.of(task, ((0, len(half)),), model, separator=" ", given=None).content == "\ufffd"


@pytest.mark.parametrize(("n_text", "n_question", "n_wanted"), [(3000, 12, 600), (4_000_000, 9, 1), (100, 0, 99)])
def test_the_share_is_of_the_text_and_the_question_is_beside_it(n_text: int, n_question: int, n_wanted: int) -> None:
    task = ExcerptTask.of(range(n_text), range(n_question), n_wanted, [(3, 5)])
    n = n_text + n_question
    assert n_wanted + n_question - 1 < task.share * n < n_wanted + n_question
    assert task.keep == ((3, 5), *(((n_text, n),) if n_question else ()))


def test_a_text_that_is_short_enough_is_wanted_whole() -> None:
    assert ExcerptTask.of(range(10), range(3), 10, ()).share == ExcerptTask.of(range(10), (), 99, ()).share == 1.0
