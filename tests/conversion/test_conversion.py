"""What a conversion writes: for the packaged drafter the very bytes of the GGUF file beside it, and for each entry of a
configuration the metadata that llama.cpp reads."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from luce.supervisor.conversion import ConversionError, OutputType, convert_checkpoint, prepare
from luce.supervisor.models.gguf_header import MetadataValue, read_gguf_header
from tests.conversion.checkpoints import (
    N_EMBD,
    N_HEADS,
    N_VOCAB,
    Checkpoint,
    byte_level_tokenizer,
    checkpoint,
    vocabulary,
    with_selector,
    write_target,
)

# Of luce-tiny-dflash-BF16.gguf, which is not in the repository: llama.cpp's own converter wrote it.
BF16_SHA256 = "4a13dcbff1d72bb934d7df8a5006281eab2622f9a0b63feccd789bc8e2bc8247"


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        tensor.name: (tensor.tensor_type.name, tuple(int(extent) for extent in tensor.shape), tensor.data.tobytes())
        for tensor in GGUFReader(path).tensors
    }


@pytest.mark.parametrize("from_folder", [False, True], ids=["GGUF", "folder"])
def test_the_packaged_drafter_becomes_the_same_file(
    packaged_checkpoint: Path, tiny_model: Path, target_folder: Path, tmp_path: Path, from_folder: bool
) -> None:
    out = tmp_path / "draft.gguf"
    convert_checkpoint(packaged_checkpoint, target_folder if from_folder else tiny_model, out, OutputType.BF16)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == BF16_SHA256


def test_it_is_the_file_beside_the_checkpoint(
    shared_models: Path, packaged_checkpoint: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "draft.gguf"
    convert_checkpoint(packaged_checkpoint, tiny_model, out, OutputType.BF16)
    assert out.read_bytes() == (shared_models / "luce-tiny-dflash-BF16.gguf").read_bytes()


@pytest.mark.parametrize("from_folder", [False, True], ids=["GGUF", "folder"])
def test_its_targets_vocabulary_beside_it_changes_nothing(
    packaged_checkpoint: Path, tiny_model: Path, target_folder: Path, tmp_path: Path, from_folder: bool
) -> None:
    folder = tmp_path / packaged_checkpoint.name
    shutil.copytree(packaged_checkpoint, folder)
    shutil.copy(target_folder / "tokenizer.json", folder)
    out = tmp_path / "draft.gguf"
    convert_checkpoint(folder, target_folder if from_folder else tiny_model, out, OutputType.BF16)
    assert hashlib.sha256(out.read_bytes()).hexdigest() == BF16_SHA256


def test_q8_0_is_the_packaged_file(packaged_checkpoint: Path, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft.gguf"
    convert_checkpoint(packaged_checkpoint, tiny_model, out, OutputType.Q8_0)
    packaged = tiny_model.parent / "luce-tiny-dflash-Q8_0.gguf"
    assert tensors_of(out) == tensors_of(packaged)
    ours, theirs = read_gguf_header(out), read_gguf_header(packaged)
    assert ours.metadata == theirs.metadata
    assert ours.array_lengths == theirs.array_lengths


def convert(source: Checkpoint, folder: Path, target: Path | None, kind: OutputType = OutputType.BF16) -> Path:
    out = folder / "draft.gguf"
    convert_checkpoint(source.write(folder / "drafter"), target, out, kind)
    return out


def metadata_of(path: Path) -> dict[str, MetadataValue]:
    values = read_gguf_header(path).metadata
    return {key.removeprefix("dflash."): value for key, value in values.items() if key.startswith("dflash.")}


@pytest.mark.parametrize("element_type", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("kind", list(OutputType))
def test_every_type_to_every_type(element_type: str, kind: OutputType, tmp_path: Path, target: Path) -> None:
    source = checkpoint(element_type)
    written = {tensor.name: tensor for tensor in GGUFReader(convert(source, tmp_path, target, kind)).tensors}
    assert len(written) == len(source.header)
    begin, end = source.header["layers.1.mlp.gate_proj.weight"]["data_offsets"]
    raw = np.frombuffer(bytes(source.data[begin:end]), dtype={"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[element_type])
    values = (raw.astype(np.uint32) << 16).view(np.float32) if element_type == "BF16" else raw.astype(np.float32)
    found = written["blk.1.ffn_gate.weight"]
    assert found.tensor_type is kind.quantization
    error = 0.6 / 127 if kind is OutputType.Q8_0 else 0.5 / 256  # of numbers below 1; Q8_0's scale is rounded too
    assert np.abs(dequantize(found.data, found.tensor_type).reshape(-1) - values).max() <= error
    assert written["blk.1.attn_norm.weight"].tensor_type is GGMLQuantizationType.F32


def test_large_tensors_go_a_piece_at_a_time(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {kind: tensors_of(convert(checkpoint("F32"), tmp_path, target, kind)) for kind in OutputType}
    monkeypatch.setattr("luce.supervisor.conversion.gguf_output._PIECE_BYTES", 1000)
    for kind in OutputType:
        assert tensors_of(convert(checkpoint("F32"), tmp_path, target, kind)) == whole[kind]


def test_rows_that_are_no_whole_blocks_become_bf16(tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.config["intermediate_size"] = 100
    for layer in range(2):
        for name, shape in (("gate_proj", [100, N_EMBD]), ("up_proj", [100, N_EMBD]), ("down_proj", [N_EMBD, 100])):
            source.drop(f"layers.{layer}.mlp.{name}.weight")
            source.add(f"layers.{layer}.mlp.{name}.weight", shape)
    types = {
        name: kind for name, (kind, _, _) in tensors_of(convert(source, tmp_path, target, OutputType.Q8_0)).items()
    }
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == ("BF16", "Q8_0")


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"target_layers": (1, 3), "block_size": 4, "rope.freq_base": 10000.0, "attention.key_length": 16}),
        ({"num_key_value_heads": 4}, None),
        ({"head_dim": None}, {"attention.key_length": 16}),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}, {"rope.freq_base": 5e5}),
        ({"rope_theta": None}, {"rope.freq_base": 10000.0}),  # the target's
        ({"rope_theta": 7}, {"rope.freq_base": 7.0}),
        (
            {"rope_scaling": YARN},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
                "rope.scaling.yarn_beta_fast": 32.0,
            },
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
        ),
        ({"partial_rotary_factor": 0.5}, {"rope.dimension_count": 8}),
        ({"hidden_act": "gelu"}, {"hidden_activation": "gelu"}),
        ({"is_causal": False}, {"attention.causal": False}),
        ({"final_logit_softcapping": 30}, {"final_logit_softcapping": 30.0}),
        ({"input_embedding_scale": 2.5}, {"embedding_scale": 2.5}),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 64,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            {"attention.sliding_window": 64, "attention.sliding_window_pattern": (True, False)},
        ),
    ],
    ids=str,
)
def test_the_configuration_becomes_metadata(
    change: dict[str, Any], expected: dict[str, MetadataValue] | None, tmp_path: Path, target: Path
) -> None:
    source = checkpoint()
    source.config |= change
    if expected is None:  # sizes that the tensors do not have: no constant of one model may hide that
        with pytest.raises(ConversionError, match="k_proj"):
            convert(source, tmp_path, target)
        return
    values = metadata_of(convert(source, tmp_path, target))
    assert {key: values.get(key) for key in expected} == expected


def test_the_target_adds_what_the_drafter_shares_with_it(tmp_path: Path) -> None:
    target = write_target(tmp_path / "gemma.gguf", architecture="gemma3", sections=[3, 3, 2, 0])
    values = metadata_of(convert(checkpoint(), tmp_path, target))
    assert values["embedding_scale"] == 8.0
    assert values["rope.dimension_sections"] == (8, 0, 0, 0)


def test_a_rope_base_unlike_the_targets_is_said(tmp_path: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    same = prepare(folder, write_target(tmp_path / "same.gguf"))
    other = prepare(folder, write_target(tmp_path / "other.gguf", rope_base=1e6))
    assert (same.notes, same.rope_base, other.rope_base) == ((), 10000.0, 10000.0)
    assert "1e+06" in other.notes[0]


def test_optional_tensors_and_names_with_a_prefix(tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.header = {f"model.{name}": entry for name, entry in source.header.items()}
    source.add("lm_head.weight", [N_VOCAB, N_EMBD])
    source.add("model.embed_tokens.weight", [N_VOCAB, N_EMBD])
    source.add("model.layers.1.self_attn.sinks", [N_HEADS])
    source.add("rotary_emb.inv_freq", [8], "F32")
    names = tensors_of(convert(source, tmp_path, target)).keys()
    assert {"output.weight", "token_embd.weight", "blk.1.attn_sinks.weight"} <= names
    assert len(names) == len(source.header) - 1


@pytest.mark.parametrize("prefix", ["", "model."])
def test_embeddings_that_the_configuration_says_are_none(prefix: str, tmp_path: Path, target: Path) -> None:
    """llama.cpp's own converter leaves them out: the drafter reads the target's."""
    without = tensors_of(convert(checkpoint(), tmp_path, target))
    source = checkpoint()
    source.add(f"{prefix}embed_tokens.weight", [N_VOCAB, N_EMBD])
    for flag in (True, None):
        source.config["has_embed_tokens"] = flag
        assert "token_embd.weight" in tensors_of(convert(source, tmp_path, target))
    source.config["has_embed_tokens"] = False
    assert tensors_of(convert(source, tmp_path, target)) == without
    source.drop(f"{prefix}embed_tokens.weight")
    source.add(f"{prefix}embed_tokens.weight", [1, N_EMBD])  # what nobody reads may have any shape
    assert tensors_of(convert(source, tmp_path, target)) == without


def test_the_second_generation_with_its_selector(tmp_path: Path, target: Path) -> None:
    out = convert(with_selector(), tmp_path, target)
    tensors = tensors_of(out)
    assert tensors["blk.1.ffn_conv_base"][:2] == ("F32", (N_EMBD, 3, 2))
    assert tensors["selector_predecessor.weight"][1] == (8, N_VOCAB)
    assert metadata_of(out)["selector_top_k"] == 4


def test_a_checkpoint_in_several_files(tmp_path: Path, target: Path) -> None:
    single = convert(checkpoint(), tmp_path, target).read_bytes()
    folder = tmp_path / "drafter"
    whole = checkpoint()
    names = list(whole.header)
    weight_map: dict[str, str] = {}
    for number, part_names in enumerate((names[:9], names[9:])):
        part = checkpoint()
        for name in set(names) - set(part_names):
            part.drop(name)
        (folder / f"part-{number}.safetensors").write_bytes(part.weights())
        weight_map |= dict.fromkeys(part_names, f"part-{number}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    out = tmp_path / "from-parts.gguf"
    convert_checkpoint(folder, target, out, OutputType.BF16)
    assert out.read_bytes() == single


def test_links_are_followed(tmp_path: Path, target: Path) -> None:
    real = checkpoint().write(tmp_path / "blobs")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    assert convert_checkpoint(folder, target, tmp_path / "out.gguf", OutputType.Q8_0).n_bytes > 0


def test_the_vocabulary_beside_the_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    tokens = vocabulary(30)  # two fewer: models pad their tables
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(tokens)))
    out = tmp_path / "out.gguf"
    convert_checkpoint(folder, None, out, OutputType.BF16)
    values = read_gguf_header(out).metadata
    assert values["tokenizer.ggml.tokens"] == (*tokens, "[PAD30]", "[PAD31]")
    assert values["tokenizer.ggml.token_type"] == (*[1] * 29, 3, 5, 5)
    assert values["tokenizer.ggml.merges"] == ("t 1",)
    assert values["tokenizer.ggml.pre"] == "default"
    assert values["tokenizer.ggml.mask_token_id"] == 31


def test_a_vocabulary_beside_the_checkpoint_that_is_the_targets(tmp_path: Path) -> None:
    """As converters and trainers leave them: padded, with tokens that one of them added, or of another spelling."""
    tokens = vocabulary()
    folder = checkpoint().write(tmp_path / "drafter")
    tokenizer = byte_level_tokenizer([*tokens[:29], "<mask>"])
    for their_tokens, types, kind in (
        (tokens, None, "gpt2"),
        ([*tokens[:29], "[PAD29]", "[PAD30]", "[PAD31]"], [1] * 29 + [5] * 3, "gpt2"),
        (["<|start|>", *tokens[1:29], "<tool>", "[PAD30]", "[PAD31]"], [3] + [1] * 28 + [4, 5, 5], "gpt2"),
        ([f"\u2581{token}" for token in range(32)], [1] * 32, "llama"),
    ):
        target = write_target(tmp_path / "target.gguf", tokens=their_tokens, token_types=types, tokenizer=kind)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        out = tmp_path / "out.gguf"
        convert_checkpoint(folder, target, out, OutputType.BF16)
        assert read_gguf_header(out).metadata["tokenizer.ggml.tokens"] == tuple(their_tokens)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"pre_tokenizer": {"type": "Metaspace"}}))
    other = write_target(tmp_path / "other.gguf", tokens=[f"other{token}" for token in range(32)])
    prepare(folder, other)  # its tokens would be spelt differently there, whatever they are


def test_nothing_is_left_of_a_conversion_that_fails(tmp_path: Path, target: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"the old one")
    source = checkpoint("F32")
    source.data[-4:] = np.array([np.nan], dtype="<f4").tobytes()  # seen when all the others are written
    with pytest.raises(ConversionError, match="no numbers"):
        convert_checkpoint(source.write(tmp_path / "drafter"), target, out, OutputType.BF16)
    assert out.read_bytes() == b"the old one"
    assert {path.name for path in tmp_path.iterdir()} == {"drafter", "out.gguf", "target.gguf"}
