"""Which drafts are refused for which models, each with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from luce.supervisor.models.drafts import DraftError, check_fits
from tests.conversion.checkpoints import N_EMBD, vocabulary, write_target


def write_draft(path: Path, architecture: str, metadata: dict[str, Any], shapes: dict[str, list[int]]) -> Path:
    """A draft's header: counts, texts and lists by their types, tensors by their shapes as numpy has them."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        name = key if "." in key else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif value is not None:
            writer.add_int32(name, value)
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


DFLASH: dict[str, Any] = {
    "embedding_length": N_EMBD,
    "block_count": 2,
    "block_size": 4,
    "target_layers": [1, 3],
    "tokenizer.ggml.tokens": vocabulary(),
    "tokenizer.ggml.mask_token_id": 31,
}
EAGLE3: dict[str, Any] = {
    "embedding_length": 32,
    "block_count": 1,
    "target_hidden_size": N_EMBD,
    "target_layers": [1, 2, 4],
    "tokenizer.ggml.tokens": vocabulary(),
}
OTHER_TOKENS = [*vocabulary()[:7], "other", *vocabulary()[8:]]


def dflash(path: Path, **changes: Any) -> Path:
    metadata = DFLASH | {key.replace("__", "."): value for key, value in changes.items()}
    return write_draft(path, "dflash", metadata, {"fc.weight": [N_EMBD, 2 * N_EMBD]})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target_layers": None}, "target_layers: a list of layers"),
        ({"target_layers": 3}, "target_layers: a list of layers"),
        ({"target_layers": ["1", "3"]}, "target_layers: a list of layers"),
        ({"target_layers": [1.0, 3.0]}, "target_layers: a list of layers"),
        ({"target_layers": [1, 5]}, "layer 5 of .* which has 4: this draft was made for another model"),
        ({"target_layers": [-1, 3]}, "layer -1 of"),
        ({"target_layers": [1, 4]}, "the output of the last layer, which this version does not hand to DFlash"),
        ({"target_layers": [1, 2, 3]}, "fc.weight does not join 3 layers"),
        ({"embedding_length": 128}, "it is 128, the hidden size of .* 64"),
        ({"embedding_length": None}, "embedding_length: it is missing"),
        ({"embedding_length": -1}, "embedding_length: a count was expected"),
        ({"embedding_length": "64"}, "embedding_length: a count was expected"),
        ({"block_size": 1}, "block_size: it is 1"),
        (
            {"selector_top_k": 4},
            r"selector_top_k: drafters with a selector \(DFlash2\) are not known .*: name a DFlash",
        ),
        ({"selector_top_k": -1}, "selector_top_k: a count was expected"),
        ({"selector_top_k": "4"}, "selector_top_k: a count was expected"),
        ({"tokenizer__ggml__mask_token_id": None}, "mask_token_id is missing"),
        ({"tokenizer__ggml__mask_token_id": 32}, "mask_token_id is 32, and there are 32 tokens"),
        ({"tokenizer__ggml__tokens": vocabulary(31), "tokenizer__ggml__mask_token_id": 3}, "knows 31 tokens"),
        ({"tokenizer__ggml__tokens": OTHER_TOKENS}, "token 7 is 'other' in .* and 't7' in"),
    ],
    ids=str,
)
def test_dflash_drafts_that_do_not_fit(changes: dict[str, Any], reason: str, tmp_path: Path, target: Path) -> None:
    with pytest.raises(DraftError, match=reason):
        check_fits(dflash(tmp_path / "draft.gguf", **changes), target)


def test_dspark_drafts_are_no_dflash_drafts(tmp_path: Path, target: Path) -> None:
    """Though they bear the name of the same architecture."""
    shapes = {"fc.weight": [N_EMBD, 2 * N_EMBD], "markov_w1.weight": [32, 8]}
    by_tensor = write_draft(tmp_path / "markov.gguf", "dflash", DFLASH, shapes)
    reason = r"markov\.gguf: it is a DSpark drafter \(it has markov_w1\.weight\), which this version does not run: name"
    with pytest.raises(DraftError, match=reason):
        check_fits(by_tensor, target)
    reason = r"it is a DSpark drafter \(it has dflash\.hyper_connection\.count\), which this version does not run: name"
    with pytest.raises(DraftError, match=reason):
        check_fits(dflash(tmp_path / "hyper.gguf", dflash__hyper_connection__count=4), target)
    with pytest.raises(DraftError, match=r"hyper_connection\.count: a count was expected"):
        check_fits(dflash(tmp_path / "bad.gguf", dflash__hyper_connection__count="4"), target)
    check_fits(dflash(tmp_path / "none.gguf", dflash__hyper_connection__count=0), target)  # llama.cpp: no DSpark


def test_dflash_drafts_that_fit(tmp_path: Path, target: Path) -> None:
    check_fits(dflash(tmp_path / "draft.gguf"), target)
    unused = [*vocabulary()[:31], "<|another_name|>"]  # of a token that no text has
    types = [1] * 31 + [3]
    renamed = {"tokenizer__ggml__tokens": unused, "tokenizer__ggml__token_type": types}
    check_fits(dflash(tmp_path / "renamed.gguf", **renamed), target)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"target_layers": [1, 2]}, "there are 2, and EAGLE-3 reads three"),
        ({"target_layers": [1, 2, 5]}, "layer 5 of"),
        ({"target_hidden_size": 128}, "it is 128, the hidden size of"),
        ({"target_hidden_size": None}, "target_hidden_size: it is missing"),
        ({"tokenizer.ggml.tokens": vocabulary(40)}, "knows 40 tokens"),
    ],
    ids=str,
)
def test_eagle3_drafts(changes: dict[str, Any], reason: str | None, tmp_path: Path, target: Path) -> None:
    shapes = {"fc.weight": [32, 3 * N_EMBD], "token_embd.weight": [32, 32]}
    draft = write_draft(tmp_path / "draft.gguf", "eagle3", EAGLE3 | changes, shapes)
    if reason is None:
        check_fits(draft, target)
        shapes.pop("token_embd.weight")  # then it reads the target's, which is twice as wide
        reason = "embedding_length: it is 32, the hidden size of"
        draft = write_draft(tmp_path / "shared.gguf", "eagle3", EAGLE3, shapes)
    with pytest.raises(DraftError, match=reason):
        check_fits(draft, target)


def test_plain_drafts(tmp_path: Path, target: Path) -> None:
    check_fits(write_target(tmp_path / "smaller.gguf", n_embd=32, n_layers=1), target)
    padded = [*vocabulary(), *(f"[PAD{token}]" for token in range(100))]  # llama.cpp's own tolerance is 128
    check_fits(write_target(tmp_path / "padded.gguf", tokens=padded), target)
    with pytest.raises(DraftError, match="knows 200 tokens"):
        check_fits(write_target(tmp_path / "large.gguf", tokens=vocabulary(200)), target)
    with pytest.raises(DraftError, match="token 7 is 'other'"):
        check_fits(write_target(tmp_path / "other.gguf", tokens=OTHER_TOKENS), target)


@pytest.mark.parametrize(
    ("architecture", "metadata", "tensor"),
    [
        ("qwen3-assistant", {"embedding_length": 32, "embedding_length_out": N_EMBD}, "blk.0.attn_norm.weight"),
        ("qwen3", {"embedding_length": N_EMBD, "nextn_predict_layers": 1}, "blk.4.attn_norm.weight"),
    ],
)
def test_heads_and_assistants(
    architecture: str, metadata: dict[str, Any], tensor: str, tmp_path: Path, target: Path
) -> None:
    whole = metadata | {"block_count": 5, "tokenizer.ggml.tokens": vocabulary()}
    draft = write_draft(tmp_path / "draft.gguf", architecture, whole, {tensor: [8]})
    check_fits(draft, target)
    with pytest.raises(DraftError, match=r"of the architecture qwen3, .* is gemma4"):
        check_fits(draft, write_target(tmp_path / "other.gguf", architecture="gemma4"))
    with pytest.raises(DraftError, match=r"it is 64, the hidden size of .* 128"):
        check_fits(draft, write_target(tmp_path / "wide.gguf", n_embd=128))


FITTING = ["dflash-qwen3", "dflash-qwen35", "dflash-gemma4", "eagle3-qwen35", "simple-qwen3", "assistant-gemma4"]


@pytest.mark.parametrize("name", FITTING)
def test_the_test_models_drafts_fit(name: str, test_models: Path) -> None:
    check_fits(test_models / "drafts" / f"{name}.gguf", test_models / f"{name.split('-')[1]}.gguf")


@pytest.mark.parametrize("name", ["dflash-deep", "dflash-narrow", "eagle3-deep", "other-vocabulary"])
def test_the_test_models_spoilt_drafts_do_not(name: str, test_models: Path) -> None:
    with pytest.raises(DraftError, match="made for another model"):
        check_fits(test_models / "drafts" / f"{name}.gguf", test_models / "qwen3.gguf")


def test_the_packaged_drafter_fits_the_packaged_model_alone(
    tiny_model: Path, data_models: Path, test_models: Path
) -> None:
    draft = tiny_model.parent / "luce-tiny-dflash-Q8_0.gguf"
    check_fits(draft, tiny_model)
    check_fits(data_models / "luce-tiny-scorer-Q8_0.gguf", tiny_model)
    with pytest.raises(DraftError, match="made for another model"):
        check_fits(draft, test_models / "gemma4.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + bytes(40), b"GGUF\x03\x00\x00\x00" + bytes(16)])
def test_files_that_are_no_models(content: bytes, tmp_path: Path, target: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(DraftError, match=r"bad\.gguf"):
        check_fits(path, target)
    with pytest.raises(DraftError, match=r"bad\.gguf"):
        check_fits(target, path)
