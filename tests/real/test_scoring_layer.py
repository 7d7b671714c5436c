"""By which layer real models' pages are chosen: by one that finds again what a question asks for."""

from __future__ import annotations

from pathlib import Path

from tests.daemon_driver import DaemonDriver

# Of 12 questions about a text of 4,096 tokens, for how many the page that answers is among the four best: SmolLM2's
# layer 18 finds 11 of 11, 20 (at two thirds) 6; Qwen's 9 finds 11 of 11, 16 finds 8; Gemma's 5 finds 12, 17 finds 3.
LAYERS = {"smollm": "18", "qwen": "9", "gemma": "5"}


def chosen_layer(luced: Path, model: Path) -> str:
    with DaemonDriver(
        luced, model, "--lanes", "1", "--ctx", "2048", "--kv-offload", "1024", "--ubatch", "64"
    ) as daemon:
        return dict(daemon.ready.fields)["kvflash_layer"]


def test_smollm_is_asked_by_the_layer_that_finds_most(luced: Path, smollm: Path) -> None:
    assert chosen_layer(luced, smollm) == LAYERS["smollm"]


def test_each_model_is_asked_by_the_layer_that_finds_most(luced: Path, real_models: dict[str, Path]) -> None:
    assert {name: chosen_layer(luced, path) for name, path in real_models.items()} == LAYERS
