"""A checkpoint's tensors: where the safetensors headers say they lie, and which ones the configuration calls for.

Nothing in a header is believed before it has been held against the size of its file: every tensor lies inside, none
lies on another, none is missing bytes, no byte belongs to nobody (https://huggingface.co/docs/safetensors). The names
and shapes are those that load_arch_tensors in src/models/dflash.cpp of llama.cpp creates; a tensor that is missing, one
too many and one of another shape or type are refused. Reads headers, no data. The `safetensors` package is not used: it
maps files, which ends the process when one is cut short, and has neither bfloat16 for numpy nor the tensors' offsets.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from luce.supervisor.conversion.draft_config import DraftConfig
from luce.supervisor.conversion.reading import (
    DOWNLOAD_AGAIN,
    ConversionError,
    open_regular,
    parse_json_object,
    read_json_file,
    shown,
)

_MAX_HEADER_BYTES = 16 << 20
_MAX_INDEX_BYTES = 16 << 20
_MAX_DIMENSIONS = 4  # of ggml
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("BF16", "F16", "F32")
_BELONG_TOGETHER = f"check that both belong together, or {DOWNLOAD_AGAIN}"
_OTHER_KIND = "check that both belong together; this kind of drafter may need llama.cpp's convert_hf_to_gguf.py"
_EMBEDDINGS = "embed_tokens.weight"
_COMPUTED = "rotary_emb.inv_freq"  # stored by some, a function of the configuration

# Types of the format, with their bytes. More exist; those with several numbers in a byte are refused with the unknown.
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, and the bytes of its file that hold it."""

    path: Path
    name: str
    element_type: str
    shape: tuple[int, ...]
    begin: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One safetensors file. `header_sha256` is of the header's bytes."""

    path: Path
    header_sha256: str
    tensors: tuple[StoredTensor, ...]  # in the order of their bytes


def read_weight_files(folder: Path) -> tuple[WeightFile, ...]:
    """All files of the checkpoint in `folder`. Raises ConversionError."""
    files = tuple(_read_weight_file(path) for path in _weight_paths(folder))
    seen: dict[str, Path] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in seen:
                raise ConversionError(file.path, tensor.name, f"the tensor also stands in {seen[tensor.name].name}")
            seen[tensor.name] = file.path
    return files


def _weight_paths(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.exists():
        found = [folder / _SINGLE] if (folder / _SINGLE).exists() else sorted(folder.glob("*.safetensors"))
        if len(found) != 1:
            several = f"there are {len(found)}, and no {_INDEX} that says how they belong"
            what = several if found else "there is none"
            raise ConversionError(folder, "*.safetensors", what, "name a DFlash checkpoint's folder")
        return found
    weight_map = read_json_file(index, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(index, "weight_map", f"it is {shown(weight_map)}, an object was expected")
    for name in weight_map.values():
        if not (isinstance(name, str) and name.endswith(".safetensors") and "/" not in name and name.isprintable()):
            raise ConversionError(index, "weight_map", f"{shown(name)} is no name of a safetensors file beside it")
    return [folder / name for name in sorted(set(weight_map.values()))]


def _read_weight_file(path: Path) -> WeightFile:
    with open_regular(path) as (file, n_file_bytes):
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ConversionError(path, "header", f"the file has {n_file_bytes} bytes: not even a header's length")
        n_header_bytes = int.from_bytes(prefix, "little")
        if n_header_bytes > _MAX_HEADER_BYTES:
            problem = f"its length is given as {n_header_bytes:,} bytes, more than {_MAX_HEADER_BYTES:,}"
            raise ConversionError(path, "header", problem)
        raw = file.read(n_header_bytes)
        if len(raw) < n_header_bytes:
            problem = f"it should have {n_header_bytes:,} bytes and ends after {len(raw):,}: the file is torn"
            raise ConversionError(path, "header", problem)
    entries = parse_json_object(raw, path, "header")
    entries.pop("__metadata__", None)
    begin = 8 + n_header_bytes
    tensors = [_read_entry(path, name, entry, begin, n_file_bytes) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.n_bytes))
    _check_layout(path, tensors, begin, n_file_bytes)
    return WeightFile(path, hashlib.sha256(raw).hexdigest(), tuple(tensors))


def _read_entry(path: Path, name: str, entry: Any, data_begin: int, n_file_bytes: int) -> StoredTensor:
    where = shown(name)[1:-1]
    if not isinstance(entry, dict):
        raise ConversionError(path, where, f"its entry is {shown(entry)}, an object was expected")
    element_type, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(element_type, str) or element_type not in _ITEM_BYTES:
        problem = f"its dtype is {shown(element_type)}, which is not known"
        raise ConversionError(path, where, problem, "take a checkpoint in bfloat16")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ConversionError(path, where, f"its shape is {shown(shape)}, up to {_MAX_DIMENSIONS} sizes were expected")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ConversionError(path, where, f"its data_offsets are {shown(offsets)}, a begin and an end were expected")
    n_bytes = _ITEM_BYTES[element_type] * math.prod(shape)
    if offsets[1] - offsets[0] != n_bytes:
        problem = f"its data_offsets hold {shown(offsets[1] - offsets[0])} bytes, its shape takes {shown(n_bytes)}"
        raise ConversionError(path, where, problem)
    if data_begin + offsets[1] > n_file_bytes:
        problem = f"its data ends at byte {shown(data_begin + offsets[1])}, the file at {n_file_bytes:,}: it is torn"
        raise ConversionError(path, where, problem, f"finish the download, or {DOWNLOAD_AGAIN}")
    return StoredTensor(path, where, element_type, tuple(shape), data_begin + offsets[0], n_bytes)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0 for entry in value
    )


def _check_layout(path: Path, tensors: list[StoredTensor], data_begin: int, n_file_bytes: int) -> None:
    end = data_begin
    for tensor in tensors:
        if tensor.begin < end:
            raise ConversionError(path, tensor.name, "its data lies over that of another tensor")
        if tensor.begin > end:
            problem = f"{tensor.begin - end:,} bytes before its data belong to no tensor"
            raise ConversionError(path, tensor.name, problem)
        end = tensor.begin + tensor.n_bytes
    if end != n_file_bytes:
        raise ConversionError(path, "header", f"{n_file_bytes - end:,} bytes at the end belong to no tensor")


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor by its name in the checkpoint (less a leading `model.`)."""

    gguf_name: str
    shape: tuple[int, ...]
    optional: bool = False
    keep_float32: bool = False  # what takes part in sums elsewhere than in a matrix product


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written, and where it comes from."""

    source: StoredTensor
    gguf_name: str
    keep_float32: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


def plan_tensors(config: DraftConfig, files: tuple[WeightFile, ...]) -> tuple[PlannedTensor, ...]:
    """In the order in which the checkpoint has them. Raises ConversionError."""
    expected = dict(_expected(config))
    planned: dict[str, PlannedTensor] = {}
    for file in files:
        for tensor in file.tensors:
            name = tensor.name.removeprefix("model.")
            if _is_left_out(name, config):
                continue
            if name in planned:
                raise ConversionError(file.path, tensor.name, "the tensor stands twice, with and without `model.`")
            if name not in expected:
                problem = f"a drafter with the configuration in {config.path.name} has no such tensor"
                raise ConversionError(file.path, tensor.name, problem, _OTHER_KIND)
            planned[name] = _plan(tensor, expected[name], config)
    for name, wanted in expected.items():
        if name not in planned and not wanted.optional:
            raise ConversionError(files[0].path, name, f"the tensor is missing, which {config.path.name} calls for")
    return tuple(planned.values())


def _is_left_out(name: str, config: DraftConfig) -> bool:
    # Some store embeddings that are not theirs to use: llama.cpp, finding any, would not read the target's.
    return name.endswith(_COMPUTED) or (name == _EMBEDDINGS and not config.has_embeddings)


def _plan(tensor: StoredTensor, wanted: Expected, config: DraftConfig) -> PlannedTensor:
    if tensor.shape != wanted.shape:
        problem = f"its shape is {list(tensor.shape)}, by {config.path.name} it should be {list(wanted.shape)}"
        raise ConversionError(tensor.path, tensor.name, problem, _BELONG_TOGETHER)
    if tensor.element_type not in _FLOATS:
        problem = f"its dtype is {tensor.element_type}, and only {', '.join(_FLOATS)} are converted"
        raise ConversionError(tensor.path, tensor.name, problem, "take the checkpoint in bfloat16")
    return PlannedTensor(tensor, wanted.gguf_name, wanted.keep_float32)


def _expected(config: DraftConfig) -> Iterator[tuple[str, Expected]]:
    width = config.n_embd
    yield "fc.weight", Expected("fc.weight", (width, len(config.target_layer_ids) * width))
    yield "hidden_norm.weight", Expected("enc.output_norm.weight", (width,))
    yield "norm.weight", Expected("output_norm.weight", (width,))
    yield _EMBEDDINGS, Expected("token_embd.weight", (config.n_vocab, width), optional=True)
    yield "lm_head.weight", Expected("output.weight", (config.n_vocab, width), optional=True)
    for layer in range(config.n_layers):
        yield from _expected_of_layer(config, f"layers.{layer}.", f"blk.{layer}.")
    if config.selector is not None:
        rank = config.selector.rank
        prefix = "candidate_selector."
        yield f"{prefix}predecessor_codebook", Expected("selector_predecessor.weight", (config.n_vocab, rank))
        yield f"{prefix}successor_codebook", Expected("selector_successor.weight", (config.n_vocab, rank))
        yield f"{prefix}hidden_projection.weight", Expected("selector_hidden.weight", (rank, width))


def _expected_of_layer(config: DraftConfig, source: str, result: str) -> Iterator[tuple[str, Expected]]:
    width, n_query, n_key = config.n_embd, config.n_heads * config.n_head, config.n_kv_heads * config.n_head
    for name, gguf_name, shape in (
        ("input_layernorm.weight", "attn_norm.weight", (width,)),
        ("self_attn.q_proj.weight", "attn_q.weight", (n_query, width)),
        ("self_attn.k_proj.weight", "attn_k.weight", (n_key, width)),
        ("self_attn.v_proj.weight", "attn_v.weight", (n_key, width)),
        ("self_attn.o_proj.weight", "attn_output.weight", (width, n_query)),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", (config.n_head,)),
        ("self_attn.k_norm.weight", "attn_k_norm.weight", (config.n_head,)),
        ("post_attention_layernorm.weight", "ffn_norm.weight", (width,)),
        ("mlp.gate_proj.weight", "ffn_gate.weight", (config.n_ff, width)),
        ("mlp.up_proj.weight", "ffn_up.weight", (config.n_ff, width)),
        ("mlp.down_proj.weight", "ffn_down.weight", (width, config.n_ff)),
    ):
        yield source + name, Expected(result + gguf_name, shape)
    yield source + "self_attn.sinks", Expected(result + "attn_sinks.weight", (config.n_heads,), optional=True)
    if config.selector is not None:
        kernel = config.selector.kernel_size
        n_projected = 2 * kernel * (width // config.selector.group_size)
        for part, short in (("attention_conv", "attn_conv"), ("mlp_conv", "ffn_conv")):
            base = Expected(f"{result}{short}_base", (2, kernel, width), keep_float32=True)
            yield f"{source}{part}.base_kernel", base
            projection = Expected(f"{result}{short}_proj.weight", (n_projected, width))
            yield f"{source}{part}.kernel_projection.weight", projection
