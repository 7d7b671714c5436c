"""By which layer's queries pages are chosen: the one that copies best, or the one that `--kv-offload-layer` names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from luce.protocol import ReadyLine
from tests.daemon.conftest import Start
from tests.daemon.exactness import status_of

BOUNDED = ("--kv-offload", "512", "--ctx", "2048", "--ubatch", "64", "--lanes", "1")


def choice(ready: ReadyLine) -> tuple[str | None, str | None]:
    fields = dict(ready.fields)
    return fields.get("kvflash_layer"), fields.get("kvflash_layers")


def test_a_layer_is_chosen_and_the_others_are_told(start: Start, test_models: Path) -> None:
    daemon = start(*BOUNDED)
    assert choice(daemon.ready) == ("11", "3,7,11")
    status = status_of(daemon)
    assert (status["kvflash_layer"], status["kvflash_layers"]) == ("11", "3,7,11")
    assert choice(start(*BOUNDED, "--kv-offload-layer", "auto").ready) == ("11", "3,7,11")
    assert choice(start(*BOUNDED, model=test_models / "qwen35.gguf").ready) == ("7", "3,7")


def test_a_layer_can_be_named_and_is_told_only_where_layers_are_asked(start: Start) -> None:
    assert choice(start(*BOUNDED, "--kv-offload-layer", "3").ready) == ("3", "3,7,11")
    assert choice(start(*BOUNDED, "--kv-offload-policy", "lru").ready) == (None, None)
    assert choice(start("--ctx", "512").ready) == (None, None)


UNASKED = "--kv-offload-layer is for --kv-offload-policy query (or auto): the one given asks no layer"
NO_LAYER = "takes auto, or a whole number from 0"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["0"], "layer 3, 7, 11"), (["4"], "layer 3, 7, 11"), (["-1"], NO_LAYER), (["last"], NO_LAYER), ([""], NO_LAYER),
     (["7", "--kv-offload-policy", "lru"], UNASKED), (["auto", "--kv-offload-policy", "lru"], UNASKED),
     (["7", "--kv-offload-policy", "draft", "--kv-offload-scorer", "s.gguf"], UNASKED)],
)  # fmt: skip
def test_a_layer_that_cannot_be_asked_is_refused_with_what_can(
    luced: Path, tiny_model: Path, arguments: list[str], says: str
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, *BOUNDED, "--kv-offload-layer", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False, env=os.environ,
    )  # fmt: skip
    assert ended.returncode == 64, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout
