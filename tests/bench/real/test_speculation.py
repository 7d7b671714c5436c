"""The cell `speculation` of docs/benchmarks/real.md in short: its prompts for each model, and that it runs to its end
on the packaged model with texts that are plain decoding's. With --full on SmolLM2. No times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGUFReader

from luce.supervisor.text import TextModel
from scripts.bench.real import speculation
from scripts.bench.real.answer_kinds import COPYING, KINDS, as_text, load_prompts, questions
from scripts.bench.real.cut_layers import cut, layers_of
from scripts.bench.real.rows import Row, Setup
from scripts.bench.real.speculation import OURS, PLAIN, SERVER, Answer, Parting, Total, Volume, text_rows

SMALLEST = Volume(n_each=1, n_tokens=12, server_ngrams=(), cuts_drafter=True)


def by_kind(rows: list[Row]) -> dict[str, list[Row]]:
    return {kind: [row for row in rows if row.what.startswith(f"{kind}: ")] for kind in KINDS}


def test_each_kind_is_asked_in_the_models_own_form(tiny_model: Path) -> None:
    prompts = load_prompts(tiny_model, 2)
    assert [prompt.kind for prompt in prompts] == [kind for kind in KINDS for _ in range(2)]
    assert len({prompt.ids for prompt in prompts}) == len(prompts)
    asked = [question for kind in KINDS for question in questions(kind)]
    with TextModel(tiny_model) as model:
        for prompt, question in zip(prompts, asked, strict=True):
            text = model.detokenize(prompt.ids, unparse_special=True).decode()
            assert question.messages[0]["content"].strip() in text, prompt.name
            assert text.rindex("assistant") > text.rindex("user"), prompt.name


def test_a_model_without_a_template_goes_on_with_a_text() -> None:
    question = questions("edit a file")[0]
    text = as_text(question)
    assert question.messages[0]["content"] in text
    assert text.endswith("Answer:\n\n```python\n")


def test_answers_are_measured_and_plain_decodings(luced: Path, test_models: Path) -> None:
    model = test_models / "qwen3.gguf"
    rows = speculation.measure(Setup("qwen3", model, luced, None, 0, 1, "q8_0", 512, quick=True), SMALLEST)
    assert all(len(found) == 3 and found[0].ours > 0 for found in by_kind(rows).values())
    [speed, acceptance] = [row for row in rows if row.what.startswith("drafts by the model's own first quarter")]
    assert speed.ours > 0
    assert 0 <= acceptance.ours <= 100
    same = rows[-2]
    assert same.what == "answers with drafts that are plain decoding's"
    assert same.unit == f"of {len(KINDS)}"


def test_smollm_answers_with_drafts_as_without(luced: Path, smollm: Path, full: bool) -> None:
    if not full:
        pytest.skip("some minutes: with --full")
    rows = speculation.measure(Setup("smollm", smollm, luced, None, 0, 1, "q8_0", 512, quick=True))
    assert rows[-1].is_met, rows[-1].note


def test_an_answer_may_part_only_at_a_near_tie() -> None:
    tie = Parting("edit 1", 20, margin=0.01, moved=0.02, moved_plain=0.015)
    clear, wrong = replace(tie, margin=0.1), replace(tie, moved=0.5)
    assert [one.is_near_tie for one in (tie, clear, wrong)] == [True, False, False]
    same, far = text_rows(5, [tie, wrong])
    assert (same.ours, far.ours, far.is_met) == (3, 1, False)
    assert "edit 1 at token 20" in far.note


def test_a_model_is_cut_to_its_first_layers(test_models: Path, tmp_path: Path) -> None:
    source = GGUFReader(test_models / "qwen3.gguf")
    key, n_all = layers_of(source)
    cut(test_models / "qwen3.gguf", n_all - 1, tmp_path / "cut.gguf")
    short = GGUFReader(tmp_path / "cut.gguf")
    assert layers_of(short) == (key, n_all - 1)
    names = {tensor.name for tensor in source.tensors}
    assert {tensor.name for tensor in short.tensors} == {n for n in names if not n.startswith(f"blk.{n_all - 1}.")}
    same = set(source.fields) - {key}
    assert all(short.fields[name].contents() == source.fields[name].contents() for name in same if "GGUF." not in name)
    with pytest.raises(ValueError, match="layers"):
        cut(test_models / "qwen3.gguf", n_all, tmp_path / "whole.gguf")


def test_only_copies_have_to_beat_llama_server() -> None:
    def total(seconds: float) -> Total:
        return Total.of([Answer(tuple(range(101)), seconds, 50, 40)])

    totals = {(kind, side): total(s) for kind in KINDS for side, s in ((PLAIN, 2.0), (OURS, 1.5), (SERVER, 2.0))}
    rows = by_kind(speculation.speed_rows(totals, on_gpu=False))
    for kind, (to_plain, to_server, accepted, share) in rows.items():
        assert (to_plain.is_met, round(to_plain.ours, 3)) == (True, 1.333)
        assert to_server.is_met is (False if kind in COPYING else None)
        assert bool(to_server.note) is (kind in COPYING)
        assert (accepted.ours, share.ours) == (80, 40)
