"""`luce experts` through the real command line, with an engine where one is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.cli.experts.profile_file import parse_profile
from tests.cli.conftest import Run
from tests.cli.experts.profiles import IDENTITY, encode, profile

TRANSCRIPTS = Path(__file__).resolve().parents[2] / "data" / "transcripts"
KNOWN = profile(([6.0, 2.0, 0.0, 0.0, 0.0], [5.0] * 5), ([0.0, 1.0, 0.0, 0.0, 1.0], [0.0] * 5))


def write_corpus(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"name": f"text {n}", "text": text}) + "\n" for n, text in enumerate(texts)))
    return path


def read_names(path: Path) -> list[str]:
    return [json.loads(line)["name"] for line in path.read_text().splitlines()]


@pytest.fixture
def known(tmp_path: Path) -> Path:
    path = tmp_path / "known.experts"
    path.write_bytes(encode(KNOWN))
    return path


# corpus


def test_a_corpus_of_sessions_and_what_is_held_back(run: Run, tmp_path: Path) -> None:
    sessions, out = tmp_path / "sessions", tmp_path / "out.jsonl"
    sessions.mkdir()
    for n in range(20):
        line = {"type": "user", "message": {"content": f"Question {n}"}}
        (sessions / f"s{n:02}.jsonl").write_text(json.dumps(line) + "\n{torn\n")
    (sessions / "empty.jsonl").write_text("")
    result = run("luce", "experts", "corpus", out, sessions, TRANSCRIPTS, "--held-back", "0.3")
    assert result.returncode == 0, result.stderr
    assert b"no JSON: 20\n" in result.stderr
    assert b"1 of 24 files have no text" in result.stderr
    learnt, held_back = read_names(out), read_names(tmp_path / "out.held-back.jsonl")
    assert sorted(learnt + held_back) == sorted([*(f"s{n:02}" for n in range(20)),
                                                 *(file.stem for file in TRANSCRIPTS.iterdir())])  # fmt: skip
    assert 0 < len(held_back) < len(learnt)
    run("luce", "experts", "corpus", tmp_path / "few.jsonl", sessions, "--held-back", "0.3")
    assert read_names(tmp_path / "few.held-back.jsonl") == [name for name in held_back if name.startswith("s")]


def test_a_session_is_not_written_over(run: Run, tmp_path: Path) -> None:
    session = tmp_path / "s.jsonl"
    session.write_text(json.dumps({"type": "user", "message": {"content": "mine"}}))
    before = session.read_bytes()
    assert run("luce", "experts", "corpus", session, tmp_path).returncode == 64
    assert session.read_bytes() == before


# show


def test_a_profile_is_shown(run: Run, known: Path) -> None:
    table = run("luce", "experts", "show", known)
    assert table.returncode == 0, table.stderr
    assert b"75.0%" in table.stdout
    shown = json.loads(run("luce", "experts", "show", known, "--json").stdout)
    assert (shown["identity"], shown["experts"]) == (IDENTITY, 10)
    first, second = shown["layers"]
    assert first["decode"]["uses"] == 8
    assert first["decode"]["most_used_share"] == 0.75
    assert first["prefill"]["effective"] == pytest.approx(5)
    assert second["decode"]["effective"] == pytest.approx(2)
    assert second["prefill"]["effective"] is None
    assert [row["share"] for row in shown["hits"]] == [n / 10 for n in range(1, 10)]
    # By shares of their layers: (0, 0), then both of layer 1, then (0, 1).
    assert [row["decode"] for row in shown["hits"][:4]] == pytest.approx([0.6, 0.7, 0.8, 1.0])


def test_a_profile_that_is_none_is_refused(run: Run, known: Path, tmp_path: Path) -> None:
    known.write_bytes(known.read_bytes()[:-1])
    for path, text in ((known, b"damaged"), (tmp_path / "none", b"No such file"), (tmp_path, b"Is a directory")):
        result = run("luce", "experts", "show", path)
        assert (result.returncode, result.stdout) == (1, b"")
        assert text in result.stderr


def test_a_picture_is_drawn(run: Run, known: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="left out: needs matplotlib, which the extra bench installs")
    result = run("luce", "experts", "show", known, "--plot", tmp_path / "it.png")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


# calibrate and validate


def test_what_is_no_mixture_is_refused(run: Run, tiny_model: Path, known: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", "Hello")
    before = known.read_bytes()
    for command in ("calibrate", "validate"):
        result = run("luce", "experts", command, "--model", tiny_model, "--corpus", corpus, "--profile", known)
        assert result.returncode == 1
        assert b"is no mixture" in result.stderr
    assert known.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}\n", '{"name": "a", "text": 1}\n', "text\n"])
def test_what_is_no_corpus_is_refused(run: Run, test_models: Path, tmp_path: Path, content: str) -> None:
    corpus, model = tmp_path / "c.jsonl", test_models / "qwen3moe.gguf"
    corpus.write_text(content)
    result = run("luce", "experts", "calibrate", "--model", model, "--corpus", corpus, "--profile", tmp_path / "p")
    assert result.returncode == 1
    assert str(corpus).encode() in result.stderr
    assert not (tmp_path / "p").exists()


def test_a_profile_of_other_layers_is_refused_before_anything_is_read(
    run: Run, test_models: Path, known: Path, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", "Hello")
    model = test_models / "qwen3moe.gguf"
    result = run("luce", "experts", "validate", "--model", model, "--corpus", corpus, "--profile", known)
    assert result.returncode == 1
    assert b"of another model" in result.stderr


def test_a_mixture_is_calibrated_and_validated(run: Run, test_models: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "it.experts", test_models / "qwen3moe.gguf"
    out.write_bytes(b"an older one")
    texts = ("The cat sat on the mat. " * 8, "def f(x):\n    return x\n" * 8)
    lengths = ("--tokens", "48", "--answer", "9", "--threads", "1")
    corpus = write_corpus(tmp_path / "c.jsonl", *texts)
    result = run("luce", "experts", "calibrate", "--model", model, "--corpus", corpus, "--profile", out, *lengths)
    assert result.returncode == 0, result.stderr
    assert b"2 texts, 96 tokens read and 18 written" in result.stderr
    learnt = parse_profile(out.read_bytes())
    assert list(learnt.shape().values()) == [8] * 4
    # A text's last token is computed for its answer's first one; each layer uses as many experts a token as any other.
    for phase, least in (("prefill", 2 * 47), ("decode", 2 * 8 * 0.9)):
        uses = [sum(counts) for counts in learnt.uses(phase)]  # type: ignore[arg-type]  # of a literal
        assert uses == pytest.approx([uses[0]] * 4)
        assert uses[0] >= least

    held_back = write_corpus(tmp_path / "h.jsonl", "A dog lay on the log. " * 8)
    arguments = ("--model", model, "--corpus", held_back, "--profile", out, *lengths)
    result = run("luce", "experts", "validate", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert (found["identity"], found["experts"]) == (learnt.identity, 32)
    for row in found["hits"]:
        for phase in ("decode", "prefill"):
            assert 0 <= row[phase]["profile"] <= row[phase]["best"] + 1e-9
            assert row[phase]["best"] >= row["chance"]
    assert out.read_bytes() == encode(learnt), "what is validated stays as it is"
    table = run("luce", "experts", "validate", *arguments)
    assert b"chance" in table.stdout
