"""Damaged checkpoints, and those made for another model: each is refused with its reason, and nothing is written."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.conversion import ConversionError, OutputType, convert_checkpoint, prepare
from tests.conversion.checkpoints import (
    CONFIG,
    N_EMBD,
    Checkpoint,
    byte_level_tokenizer,
    checkpoint,
    vocabulary,
    write_target,
)

GATE = "layers.1.mlp.gate_proj.weight"


def refusal(folder: Path, target: Path | None) -> ConversionError:
    out = folder.parent / "out.gguf"
    with pytest.raises(ConversionError) as caught:
        convert_checkpoint(folder, target, out, OutputType.BF16)
    assert not out.exists()
    text = str(caught.value)
    assert str(caught.value.path) in text
    assert re.search(r"; [a-z]", text), f"what to do is missing: {text}"
    return caught.value


# (what to change at the top, what in dflash_config, the entry that the refusal names, a part of its reason)
BAD_CONFIGS: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"architectures": None}, {}, "architectures", "no DFlash drafter"),
    ({"architectures": ["Qwen3ForCausalLM"]}, {}, "architectures", "'Qwen3ForCausalLM'"),
    ({"architectures": "DFlashDraftModel"}, {}, "architectures", "a list was expected"),
    ({"architectures": [7]}, {}, "architectures", "texts were expected"),
    ({"hidden_size": None}, {}, "hidden_size", "missing"),
    ({"hidden_size": 64.0}, {}, "hidden_size", "64.0, a whole number"),
    ({"hidden_size": True}, {}, "hidden_size", "True, a whole number"),
    ({"hidden_size": -64}, {}, "hidden_size", "-64, a number from 1"),
    ({"hidden_size": 10**30}, {}, "hidden_size", "more than 20 digits"),
    ({"num_hidden_layers": 0}, {}, "num_hidden_layers", "0, a number from 1"),
    ({"num_hidden_layers": 10**9}, {}, "num_hidden_layers", "a number from 1 to 512"),
    ({"num_attention_heads": 5}, {}, "num_key_value_heads", "5 query heads are no multiple of 2"),
    ({"num_key_value_heads": 3}, {}, "num_key_value_heads", "no multiple of 3"),
    ({"head_dim": 15}, {}, "head_dim", "odd"),
    ({"head_dim": None, "num_attention_heads": 6}, {}, "head_dim", "no multiple of 6"),
    ({"vocab_size": 0}, {}, "vocab_size", "0, a number from 1"),
    ({"rms_norm_eps": None}, {}, "rms_norm_eps", "missing"),
    ({"rms_norm_eps": 0}, {}, "rms_norm_eps", "above 0"),
    ({"rms_norm_eps": "1e-6"}, {}, "rms_norm_eps", "a number was expected"),
    ({"hidden_act": "relu"}, {}, "hidden_act", "'relu' is none of"),
    ({"rope_theta": 0}, {}, "rope_theta", "above 0"),
    ({"rope_theta": -1e4}, {}, "rope_theta", "above 0"),
    ({"rope_theta": 1e300}, {}, "rope_theta", "more than a float32"),
    ({"rope_parameters": {"rope_theta": 5.0}}, {}, "rope_parameters.rope_theta", "5 here and 10000 at the top"),
    ({"rope_scaling": {"type": "longrope", "factor": 4}}, {}, "rope_scaling.type", "'longrope' is none of"),
    ({"rope_scaling": {"type": "yarn", "factor": 0}}, {}, "rope_scaling.factor", "above 0"),
    ({"rope_scaling": {"type": "yarn", "factor": 4}}, {}, "original_max_position_embeddings", "missing"),
    ({"rope_scaling": []}, {}, "rope_scaling", "an object was expected"),
    ({"partial_rotary_factor": 1.5}, {}, "partial_rotary_factor", "no even part"),
    ({"layer_types": ["full_attention"]}, {}, "layer_types", "1 entries do not describe 2 layers"),
    ({"layer_types": ["full_attention", "mamba"]}, {}, "layer_types", "'mamba' is neither"),
    ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}, {}, "sliding_window", "missing"),
    ({"use_sliding_window": True, "sliding_window": 8, "layer_types": None}, {}, "layer_types", "missing"),
    ({"use_sliding_window": True, "sliding_window": -8}, {}, "sliding_window", "-8, a number from 0"),
    ({"use_sliding_window": "yes"}, {}, "use_sliding_window", "true or false"),
    ({"rope_is_neox_style": False}, {}, "rope_is_neox_style", "in pairs"),
    ({"has_embed_tokens": "no"}, {}, "has_embed_tokens", "'no', true or false"),
    ({"has_embed_tokens": 0}, {}, "has_embed_tokens", "0, true or false"),
    ({"block_size": None}, {}, "block_size", "missing"),
    ({"block_size": 1}, {}, "block_size", "1, a number from 2"),
    ({"block_size": 100_000}, {}, "block_size", "a number from 2 to 512"),
    ({}, {"block_size": 8}, "dflash_config.block_size", "8 here and 4 at the top"),
    ({"dflash_config": [1]}, {}, "dflash_config", "an object was expected"),
    ({}, {"mask_token_id": None}, "dflash_config.mask_token_id", "missing"),
    ({}, {"mask_token_id": 32}, "dflash_config.mask_token_id", "a number from 0 to 31"),
    ({}, {"mask_token_id": -1}, "dflash_config.mask_token_id", "a number from 0 to 31"),
    ({}, {"mask_token_id": "31"}, "dflash_config.mask_token_id", "'31', a whole number"),
    ({}, {"target_layer_ids": None}, "dflash_config.target_layer_ids", "missing"),
    ({}, {"target_layer_ids": []}, "dflash_config.target_layer_ids", "empty"),
    ({}, {"target_layer_ids": 2}, "dflash_config.target_layer_ids", "a list was expected"),
    ({}, {"target_layer_ids": [0, 2.0]}, "dflash_config.target_layer_ids", "2.0 stands in it, whole numbers"),
    ({}, {"target_layer_ids": [0, "2"]}, "dflash_config.target_layer_ids", "'2' stands in it, whole numbers"),
    ({}, {"target_layer_ids": [False, 2]}, "dflash_config.target_layer_ids", "False stands in it"),
    ({}, {"target_layer_ids": [0, 4]}, "dflash_config.target_layer_ids", "4 is no layer of a target with 4"),
    ({}, {"target_layer_ids": [0, -1]}, "dflash_config.target_layer_ids", "-1 is no layer"),
    ({}, {"target_layer_ids": [0, 2**40]}, "dflash_config.target_layer_ids", "is no layer"),
    ({}, {"target_layer_ids": [2, 2]}, "dflash_config.target_layer_ids", "2 stands twice"),
    ({}, {"conv_kernel_size": 3}, "dflash_config.conv_group_size", "missing"),
    # Sound in themselves, and not what the tensors or the target are.
    ({"hidden_size": 128}, {}, "fc.weight", "its shape is [64, 128], by config.json it should be [128, 256]"),
    ({"intermediate_size": 95}, {}, "gate_proj", "should be [95, 64]"),
    ({}, {"target_layer_ids": [0, 1, 2]}, "fc.weight", "should be [64, 192]"),
    ({"num_hidden_layers": 1, "layer_types": None}, {}, "layers.1.", "has no such tensor"),
    ({"num_hidden_layers": 3, "layer_types": None}, {}, "layers.2.", "the tensor is missing"),
    ({"vocab_size": 33}, {}, "vocab_size", "the drafter knows 33 tokens"),
    ({"num_target_layers": 5}, {}, "num_target_layers", "it is 5"),
    ({"num_target_layers": None}, {"target_layer_ids": [0, 4]}, "target_layer_ids", "4 is no layer of"),
]


@pytest.mark.parametrize(("change", "inner", "field", "reason"), BAD_CONFIGS, ids=str)
def test_configurations(
    change: dict[str, Any], inner: dict[str, Any], field: str, reason: str, tmp_path: Path, target: Path
) -> None:
    source = checkpoint()
    source.config |= change
    if inner:
        source.config["dflash_config"] |= inner
    error = refusal(source.write(tmp_path / "drafter"), target)
    assert field in error.field
    assert reason in str(error)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe{}", "no JSON"),
        (b'{"a": 1', "no JSON"),
        (b'{"hidden_size": NaN}', "NaN is no number"),
        (b'{"a": 1, "a": 2}', "'a' stands twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "more than the 1,048,576"),
    ],
)
def test_configurations_that_are_no_json(raw: bytes, reason: str, tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    source.raw_config = raw
    assert reason in str(refusal(source.write(tmp_path / "drafter"), target))


def bad_type(source: Checkpoint) -> None:
    source.drop(GATE)
    source.add(GATE, [96, N_EMBD], "F8_E4M3")


def integers(source: Checkpoint) -> None:
    source.drop(GATE)
    source.add(GATE, [96, N_EMBD], "I64")


def entry(name: str, **values: Any) -> Callable[[Checkpoint], None]:
    def change(source: Checkpoint) -> None:
        source.header[name] |= values

    return change


def no_object(source: Checkpoint) -> None:
    source.header[GATE] = [1, 2]


def not_finite(source: Checkpoint) -> None:
    begin = source.header[GATE]["data_offsets"][0]
    source.data[begin : begin + 2] = b"\x80\x7f"  # infinity in BF16


def torn(source: Checkpoint) -> None:
    del source.data[-100:]


def longer(source: Checkpoint) -> None:
    source.data += bytes(8)


def swapped(source: Checkpoint) -> None:
    source.header["norm.weight"]["data_offsets"] = source.header["hidden_norm.weight"]["data_offsets"]


def without(name: str) -> Callable[[Checkpoint], None]:
    return lambda source: source.drop(name)


def extra(source: Checkpoint) -> None:
    source.add("layers.0.self_attn.q_proj.bias", [64])


def twice(source: Checkpoint) -> None:
    source.add("model.norm.weight", [N_EMBD])


def header(**values: Any) -> Callable[[Checkpoint], None]:
    def change(source: Checkpoint) -> None:
        for name, value in values.items():
            setattr(source, name, value)

    return change


BAD_WEIGHTS: list[tuple[Callable[[Checkpoint], None], str, str]] = [
    (bad_type, GATE, "its dtype is F8_E4M3, and only BF16"),
    (integers, GATE, "its dtype is I64, and only BF16"),
    (entry(GATE, dtype="BF8"), GATE, "its dtype is 'BF8', which is not known"),
    (entry(GATE, dtype=None), GATE, "its dtype is None"),
    (entry(GATE, dtype=["BF16"]), GATE, "its dtype is a list"),
    (entry(GATE, shape=[64, 96]), GATE, "its shape is [64, 96], by config.json it should be [96, 64]"),
    (entry(GATE, shape=[96 * 64]), GATE, "its shape is [6144]"),
    (entry(GATE, shape=[96, -64]), GATE, "sizes were expected"),
    (entry(GATE, shape=[96.0, 64]), GATE, "sizes were expected"),
    (entry(GATE, shape=[True, 6144]), GATE, "sizes were expected"),
    (entry(GATE, shape=[1] * 9), GATE, "up to 4 sizes"),
    (entry(GATE, shape=[2**62, 2**62]), GATE, "its shape takes a number of more than 20 digits"),
    (entry(GATE, shape=96), GATE, "its shape is 96"),
    (entry(GATE, data_offsets=[0]), GATE, "a begin and an end"),
    (entry(GATE, data_offsets=[10, 0]), GATE, "a begin and an end"),
    (entry(GATE, data_offsets=[-12288, 0]), GATE, "a begin and an end"),
    (entry(GATE, data_offsets=[0, 10]), GATE, "hold 10 bytes, its shape takes 12288"),
    (entry(GATE, data_offsets=[2**62, 2**62 + 12288]), GATE, "it is torn"),
    (no_object, GATE, "an object was expected"),
    (not_finite, GATE, "no numbers"),
    (torn, "", "it is torn"),
    (longer, "header", "8 bytes at the end belong to no tensor"),
    (swapped, "", "over that of another tensor"),
    (without(GATE), GATE, "the tensor is missing"),
    (without("fc.weight"), "fc.weight", "the tensor is missing"),
    (extra, "q_proj.bias", "has no such tensor"),
    (twice, "norm.weight", "stands twice"),
    (header(length=2**63), "header", "more than 16,777,216"),
    (header(length=10**7), "header", "ends after"),
    (header(length=0), "header", "no JSON"),
    (header(raw_header=b"{"), "header", "no JSON"),
    (header(raw_header=b"[" * 10**6), "header", "nested too deeply"),
    (header(raw_header=b'{"a": {}, "a": {}}'), "header", "stands twice"),
    (header(raw_header=b"{}"), "header", "belong to no tensor"),
]


@pytest.mark.parametrize(("change", "field", "reason"), BAD_WEIGHTS, ids=[row[2] for row in BAD_WEIGHTS])
def test_weights(change: Callable[[Checkpoint], None], field: str, reason: str, tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    change(source)
    error = refusal(source.write(tmp_path / "drafter"), target)
    assert field in error.field
    assert reason in str(error)
    assert "safetensors" in str(error)


def test_a_hole_between_tensors(tmp_path: Path, target: Path) -> None:
    source = checkpoint()
    begin, end = source.header["norm.weight"]["data_offsets"]
    for item in source.header.values():
        if item["data_offsets"][0] >= end:
            item["data_offsets"] = [offset + 16 for offset in item["data_offsets"]]
    source.data[end:end] = bytes(16)
    assert begin < end
    assert "16 bytes before its data belong to no tensor" in str(refusal(source.write(tmp_path / "drafter"), target))


@pytest.mark.parametrize("size", [0, 7, 8, 100])
def test_files_that_end_early(size: int, tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    os.truncate(folder / "model.safetensors", size)
    assert refusal(folder, target).field == "header"


def test_every_beginning_of_a_file_is_refused(tmp_path: Path) -> None:
    source = checkpoint()
    folder, whole = source.write(tmp_path / "drafter"), source.weights()
    for size in range(0, len(whole), 997):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ConversionError, match=r"model\.safetensors"):
            prepare(folder, None)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({}, "an object was expected"),
        ({"weight_map": {"a": "../model.safetensors"}}, "no name of a safetensors file beside it"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no name of a safetensors file beside it"),
        ({"weight_map": {"a": "\ud800.safetensors"}}, "no name of a safetensors file beside it"),
        ({"weight_map": {"a": 7}}, "7 is no name"),
        ({"weight_map": {"a": "none.safetensors"}}, "no such file"),
        ({"weight_map": {"a": "model.safetensors", "b": "copy.safetensors"}}, "also stands in copy.safetensors"),
    ],
    ids=str,
)
def test_indexes_of_files(index: dict[str, Any], reason: str, tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    (folder / "copy.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert reason in str(refusal(folder, target))


def test_folders_that_hold_no_checkpoint(tmp_path: Path, target: Path) -> None:
    assert "no folder" in str(refusal(tmp_path / "none", target))
    (tmp_path / "empty").mkdir()
    assert "config.json" in str(refusal(tmp_path / "empty", target))
    folder = checkpoint().write(tmp_path / "drafter")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(b"")
    assert "there are 2" in str(refusal(folder, target))
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").unlink()
    assert "there is none" in str(refusal(folder, target))


def test_pipes_do_not_hang_it(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert "no regular file" in str(refusal(folder, target))


def test_a_mask_of_its_own_is_not_guessed(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    (folder / "mask_embedding.pt").write_bytes(b"a pickle, never opened")
    assert "mask_embedding.pt" in str(refusal(folder, target))


def test_targets_that_it_was_not_made_for(tmp_path: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    for values, reason in (
        ({"tokens": vocabulary(40)}, "has 40"),
        ({"n_embd": 128}, "hidden_size"),
        ({"n_layers": 8}, "num_target_layers"),
    ):
        assert reason in str(refusal(folder, write_target(tmp_path / "other.gguf", **values)))
    (tmp_path / "text").write_text("GGML, and some more words.")
    assert "begin with the letters GGUF" in str(refusal(folder, tmp_path / "text"))
    assert "No such file" in str(refusal(folder, tmp_path / "none"))
    assert "--target" in str(refusal(folder, None))
    assert "config.json" in str(refusal(folder, tmp_path))


def write_target_folder(folder: Path, vocab: dict[str, Any], in_text_config: bool = False, n_tokens: int = 32) -> Path:
    folder.mkdir(exist_ok=True)
    config = {"hidden_size": N_EMBD, "num_hidden_layers": CONFIG["num_target_layers"]} | vocab
    (folder / "config.json").write_text(json.dumps({"text_config": config} if in_text_config else config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(vocabulary(n_tokens))))
    return folder


@pytest.mark.parametrize("in_text_config", [False, True])
@pytest.mark.parametrize(("n_ours", "n_theirs"), [(33, 32), (32, 33)])
def test_a_folder_with_another_number_of_tokens(
    n_ours: int, n_theirs: int, in_text_config: bool, tmp_path: Path
) -> None:
    source = checkpoint()
    source.config["vocab_size"] = n_ours
    folder = source.write(tmp_path / "drafter")
    target = write_target_folder(tmp_path / "target", {"vocab_size": n_theirs}, in_text_config)
    error = refusal(folder, target)
    assert error.field == "vocab_size"
    assert f"the drafter knows {n_ours} tokens, {target} has {n_theirs}; name the target that" in str(error)


def test_a_folder_that_has_room_for_more_tokens_than_it_names(tmp_path: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    for vocab in ({"vocab_size": 32}, {}):  # some leave it to the defaults of their kind of model: then it is not known
        target = write_target_folder(tmp_path / "target", vocab, n_tokens=30)
        tokens = prepare(folder, target).target.tokenizer["tokenizer.ggml.tokens"].value
        assert isinstance(tokens, tuple)
        assert (len(tokens), tokens[30:]) == (32, (b"[PAD30]", b"[PAD31]"))


def test_a_folder_that_says_its_number_of_tokens_at_the_top(tmp_path: Path) -> None:
    """Beside a text_config without one: llama.cpp's converter reads it there too."""
    folder = checkpoint().write(tmp_path / "drafter")
    target = write_target_folder(tmp_path / "target", {}, in_text_config=True)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"vocab_size": 40}))
    assert f"{target} has 40" in str(refusal(folder, target))
    for bad in ("32", 0, True):
        (target / "config.json").write_text(json.dumps(config | {"vocab_size": bad}))
        error = refusal(folder, target)
        assert (error.path, error.field) == (target / "config.json", "vocab_size")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"type": "Unigram"}}, "only byte-level BPE"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "only byte-level BPE"),
        ({"pre_tokenizer": None}, "only byte-level BPE"),
        ({"model": {"type": "BPE", "vocab": {"a": 32}}}, "beyond the drafter's vocabulary of 32"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}}}, "a number from 0"),
        ({"model": {"type": "BPE", "vocab": {"a": "1"}}}, "a whole number"),
        ({"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}}}, "token 1 is also 'a'"),
        ({"model": {"type": "BPE", "vocab": {"\ud800": 1}}}, "no Unicode"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [7]}}, "pairs were expected"),
        ({"added_tokens": [7]}, "objects were expected"),
        ({"added_tokens": [{"id": 3}]}, "missing"),
    ],
    ids=str,
)
def test_vocabularies_of_folders(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    whole = {"pre_tokenizer": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {}}} | change
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    assert reason in str(refusal(folder, None))


def test_another_vocabulary_of_the_same_size(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    tokens = vocabulary()
    tokens[5], tokens[20] = "other", "t5"
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer(tokens)))
    error = refusal(folder, target)
    assert (error.path, error.field) == (folder / "tokenizer.json", "model.vocab")
    assert f"token 5 is 'other' here and 't5' in {target}; name the target" in str(error)
    target_folder = write_target_folder(tmp_path / "target", {})
    assert f"token 5 is 'other' here and 't5' in {target_folder}; name" in str(refusal(folder, target_folder))


def test_the_packaged_drafter_beside_another_vocabulary(
    packaged_checkpoint: Path, target_folder: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "drafter"
    shutil.copytree(packaged_checkpoint, folder)
    whole = json.loads((target_folder / "tokenizer.json").read_text())
    vocab: dict[str, int] = whole["model"]["vocab"]
    first, second = (next(text for text, token in vocab.items() if token == wanted) for wanted in (4000, 7000))
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    reason = f"token 4000 is {second!a} here and {first!a} in {tiny_model}"
    assert reason in str(refusal(folder, tiny_model))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "no JSON"),
        (b"version https://git-lfs.github.com/spec/v1", "remove the file: the vocabulary comes from the target"),
        (b'{"model": []}', "an object was expected"),
        (b'{"model": {"type": 7}}', "a text was expected"),
        (b'{"model": {"type": "BPE", "vocab": {"a": "1"}}, "pre_tokenizer": {"type": "ByteLevel"}}', "a whole number"),
        (b'{"model": {"type": "BPE", "vocab": {"a": -1}}, "pre_tokenizer": {"type": "ByteLevel"}}', "a number from 0"),
        (
            b'{"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}}, "pre_tokenizer": {"type": "ByteLevel"}}',
            "token 1 is also 'a'",
        ),
        (
            b'{"model": {"type": "BPE", "vocab": {"\\ud800": 1}}, "pre_tokenizer": {"type": "ByteLevel"}}',
            r"token 1 is '\ud800' here",
        ),
        (
            b'{"added_tokens": [7], "model": {"type": "BPE", "vocab": {}}, "pre_tokenizer": {"type": "ByteLevel"}}',
            "objects were expected",
        ),
    ],
    ids=str,
)
def test_vocabularies_beside_a_checkpoint_with_a_target(raw: bytes, reason: str, tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    (folder / "tokenizer.json").write_bytes(raw)
    assert reason in str(refusal(folder, target))


def test_places_where_nothing_can_be_written(tmp_path: Path, target: Path) -> None:
    folder = checkpoint().write(tmp_path / "drafter")
    before = target.read_bytes()
    for out, reason in (
        (tmp_path / "none" / "out.gguf", "cannot be written"),
        (tmp_path, "no regular file"),
        (Path(os.devnull), "no regular file"),
        (target, "it is what the conversion reads"),
        (folder / "model.safetensors", "it is what the conversion reads"),
    ):
        with pytest.raises(ConversionError, match=reason):
            convert_checkpoint(folder, target, out, OutputType.BF16)
    assert target.read_bytes() == before
