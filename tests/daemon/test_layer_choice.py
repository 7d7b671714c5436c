"""By which layer's queries pages are chosen: found out at the first start, kept for the next ones, named by
`--kvflash-layer`; never a reason not to start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from luce.protocol import ReadyLine
from tests.daemon.conftest import Start
from tests.daemon.exactness import status_of
from tests.daemon_driver import random_prompt

BOUNDED = ("--kvflash", "512", "--ctx", "2048", "--ubatch", "64", "--lanes", "1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luce-daemon" / "layers"


def choice(ready: ReadyLine) -> tuple[str | None, str | None]:
    fields = dict(ready.fields)
    return fields.get("kvflash_layer"), fields.get("kvflash_layer_by")


def test_a_layer_is_found_out_once_for_each_model_and_cache_type(start: Start, cache: Path, test_models: Path) -> None:
    layer, reason = choice(start(*BOUNDED).ready)
    assert (layer in {"7", "11"}, reason) == (True, "calibrated")
    again = start(*BOUNDED)
    assert choice(again.ready) == (layer, "kept")
    status = status_of(again)
    assert (status["kvflash_layer"], status["kvflash_layer_by"]) == (layer, "kept")
    assert choice(start(*BOUNDED, "--cache-type-k", "bf16").ready)[1] == "calibrated"
    # Nothing that retrieves: the last one, which is kept as well.
    random_weights = test_models / "qwen35.gguf"
    assert choice(start(*BOUNDED, model=random_weights).ready) == ("7", "last")
    assert len(list(cache.iterdir())) == 3
    assert choice(start(*BOUNDED, model=random_weights).ready) == ("7", "last")


@pytest.mark.usefixtures("cache")
def test_trying_layers_leaves_the_tokens_as_they_are(start: Start) -> None:
    calibrated, named = start(*BOUNDED), start(*BOUNDED, "--kvflash-layer", "11")
    assert choice(calibrated.ready)[1] == "calibrated"
    prompt = random_prompt(300, seed=4)
    drawn = "ignore_eos=1 temp=1 seed=5"
    assert calibrated.generate(prompt, 40, drawn).tokens == named.generate(prompt, 40, drawn).tokens
    assert status_of(calibrated)["tokens_in"] == status_of(named)["tokens_in"]


def test_a_layer_can_be_named_and_nothing_is_tried_then(start: Start, cache: Path) -> None:
    assert choice(start(*BOUNDED, "--kvflash-layer", "3").ready) == ("3", "asked")
    assert choice(start(*BOUNDED, "--kvflash-policy", "lru").ready) == (None, None)
    assert choice(start("--ctx", "512").ready) == (None, None)
    assert not cache.exists()


def test_damaged_findings_are_found_out_anew(start: Start, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = choice(start(*BOUNDED).ready)
    (kept,) = cache.iterdir()
    good = kept.read_bytes()
    kept.write_bytes(good[:40] + b"\xff" + good[41:])
    assert choice(start(*BOUNDED).ready) == found
    assert "it is damaged" in capfd.readouterr().err
    assert kept.read_bytes() == good


def test_where_nothing_can_be_kept_each_start_finds_out_anew(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        assert choice(start(*BOUNDED).ready)[1] == "calibrated"
        assert capfd.readouterr().err.count("every start finds out anew") == 1


UNASKED = "--kvflash-layer is for --kvflash-policy query (or auto): the one given asks no layer"
NO_LAYER = "takes auto, or a whole number from 0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["0"], "layer 3, 7, 11"), (["4"], "layer 3, 7, 11"), (["-1"], NO_LAYER), (["last"], NO_LAYER), ([""], NO_LAYER),
     (["7", "--kvflash-policy", "lru"], UNASKED), (["auto", "--kvflash-policy", "lru"], UNASKED),
     (["7", "--kvflash-policy", "draft", "--kvflash-scorer", "s.gguf"], UNASKED)],
)  # fmt: skip
def test_a_layer_that_cannot_be_asked_is_refused_with_what_can(
    luced: Path, tiny_model: Path, arguments: list[str], says: str
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, *BOUNDED, "--kvflash-layer", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False, env=os.environ,
    )  # fmt: skip
    assert ended.returncode == 64, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout
