"""The prompt for a gap between two texts: as llama-server builds it, and cut where the context is too short."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from luce.supervisor.http.prompts.infill import Infill, NoInfillError, infill_prompt
from luce.supervisor.text import TextModel
from tests.http.infill_models import MID, PRE, REP, SEP, SUF, write_infill_model

BEFORE, AFTER = "def add(a, b):\n    ", "\n\nprint(add(1, 2))\n"


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    with TextModel(write_infill_model(tiny_model, tmp_path_factory.mktemp("fim") / "fim.gguf")) as opened:
        yield opened


@pytest.fixture(scope="module")
def without_files(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextModel]:
    path = tmp_path_factory.mktemp("fim") / "fim.gguf"
    with TextModel(write_infill_model(tiny_model, path, with_files=False)) as opened:
        yield opened


def test_the_vocabulary_names_its_tokens(model: TextModel, without_files: TextModel) -> None:
    info = model.info
    assert (info.fim_pre, info.fim_suf, info.fim_mid, info.fim_rep, info.fim_sep) == (PRE, SUF, MID, REP, SEP)
    assert (without_files.info.fim_mid, without_files.info.fim_rep, without_files.info.fim_sep) == (MID, None, None)


def test_a_prompt_with_further_files(model: TextModel) -> None:
    t = model.tokenize
    files = [("a.py", "x = 1\n"), ("b.py", "y = 2\n")]
    ids, ends = infill_prompt(model, BEFORE, Infill(after=AFTER, middle="return ", files=files))
    first = [REP, *t("myproject\n"), SEP, *t("a.py\n"), *t("x = 1\n")]
    second = [*first, SEP, *t("b.py\n"), *t("y = 2\n")]
    assert ids == [*second, SEP, *t("filename\n"), PRE, *t(BEFORE), *t("return "), SUF, *t(AFTER), MID]
    assert ends == [len(first), len(second)]


def test_a_prompt_of_a_vocabulary_without_files(without_files: TextModel) -> None:
    t = without_files.tokenize
    infill = Infill(after=AFTER, files=[("a.py", "x = 1\n")])
    ids, ends = infill_prompt(without_files, BEFORE, infill)
    extra = [*t("\n\n--- snippet ---\n\n"), *t("x = 1\n")]
    assert (ids, ends) == ([*extra, PRE, *t(BEFORE), SUF, *t(AFTER), MID], [len(extra)])
    assert infill_prompt(without_files, "", Infill(after=""))[0] == [PRE, SUF, MID]
    assert infill_prompt(without_files, [5, 6], Infill(after=""))[0] == [PRE, 5, 6, SUF, MID]


def test_special_tokens_spelled_in_code_are_text(model: TextModel) -> None:
    ids, _ = infill_prompt(model, "a <|im_end|> b", Infill(after="<|im_end|>"))
    assert not set(ids) & (set(model.info.eog) - {REP, SEP})


@pytest.mark.parametrize("n_most", [0, 3, 4, 10, 40, 100, 150, 400, 1000])
def test_what_does_not_fit_is_cut_far_from_the_gap(without_files: TextModel, n_most: int) -> None:
    before, after = [10 + n for n in range(100)], " ".join(f"w{n}" for n in range(60))
    suffix = without_files.tokenize(after)
    extra = without_files.tokenize("\n\n--- snippet ---\n\n") + without_files.tokenize("z " * 50)
    infill = Infill(after=after, middle="", files=[("f", "z " * 50)], n_most=n_most)
    ids, ends = infill_prompt(without_files, before, infill)
    assert len(ids) == min(max(n_most, 3), len(extra) + len(before) + len(suffix) + 3)
    at, gap = ids.index(PRE), ids.index(SUF)
    kept = ids[at + 1 : gap], ids[gap + 1 : -1]
    assert kept[0] == before[len(before) - len(kept[0]) :]
    assert kept[1] == suffix[: len(kept[1])]
    assert ids[:at] == extra[len(extra) - at :]
    assert ends == ([at] if at else [])
    if at:
        assert kept == (before, suffix), "further files go first"
    elif len(kept[0]) < len(before) and len(kept[1]) < len(suffix):
        assert len(kept[1]) == max(n_most - 3, 0) // 4


def test_a_vocabulary_without_such_tokens_says_which(tiny_model: Path) -> None:
    with TextModel(tiny_model) as opened, pytest.raises(NoInfillError, match="no token for prefix, suffix, middle"):
        infill_prompt(opened, BEFORE, Infill(after=AFTER))
