"""The GGUF file of a drafter: its metadata, and its tensors a piece at a time, so that memory stays small.

Written beside its place, brought to the disk, and renamed there: whoever looks sees the whole file or none. Keys as
load_arch_hparams in src/models/dflash.cpp of llama.cpp reads them. Trusts what it is given to be checked.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_VERSION, GGUFValueType
from gguf.utility import size_label

from luce.supervisor.conversion.draft_config import DraftConfig
from luce.supervisor.conversion.element_types import (
    NotFiniteError,
    OutputType,
    convert_elements,
    quantization_for,
    stored_bytes,
)
from luce.supervisor.conversion.errors import ConversionError
from luce.supervisor.conversion.files import open_regular
from luce.supervisor.conversion.target import Target
from luce.supervisor.conversion.tensor_plan import PlannedTensor
from luce.supervisor.conversion.tokenizer import MASK

ARCHITECTURE = "dflash"
_TEMPORARY_SUFFIX = ".part"
_PIECE_BYTES = 32 << 20
_U32, _F32 = GGUFValueType.UINT32, GGUFValueType.FLOAT32

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class DraftFile:
    """All that goes into the file."""

    name: str
    config: DraftConfig
    target: Target
    tensors: tuple[PlannedTensor, ...]
    rope_base: float
    output_type: OutputType


def write_draft(draft: DraftFile, out: Path, on_progress: Progress) -> None:
    """`on_progress` hears how many bytes of the checkpoint are done, a piece at a time. Raises ConversionError."""
    try:
        with _in_place_of(out) as temporary:
            writer = GGUFWriter(temporary, ARCHITECTURE)
            try:
                _add_metadata(writer, draft)
                _write(writer, draft, on_progress)
            finally:
                writer.close()
    except OSError as error:
        raise ConversionError(
            out, "", f"it cannot be written ({error.strerror or error})", "name another place"
        ) from error


def temporary_files(out: Path) -> list[Path]:
    """What conversions to `out` have begun and not ended."""
    prefix = _temporary_prefix(out)
    return [
        path for path in out.parent.iterdir() if path.name.startswith(prefix) and path.name.endswith(_TEMPORARY_SUFFIX)
    ]


def _temporary_prefix(out: Path) -> str:
    return f".{out.name[:180]}."


@contextmanager
def _in_place_of(out: Path) -> Iterator[Path]:
    temporary = out.with_name(f"{_temporary_prefix(out)}{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:  # a descriptor of our own, to bring to the disk what the writer wrote
            yield temporary
            os.fsync(file.fileno())
        temporary.replace(out)
        _sync_folder(out.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _add_metadata(writer: GGUFWriter, draft: DraftFile) -> None:
    config = draft.config
    n_parameters = sum(tensor.n_elements for tensor in draft.tensors)
    writer.add_type("model")
    writer.add_name(draft.name)
    writer.add_string("general.size_label", size_label(n_parameters, n_parameters, 0, 0))
    _add(writer, "block_count", config.n_layers)
    _add(writer, "context_length", config.n_context)
    _add(writer, "embedding_length", config.n_embd)
    _add(writer, "feed_forward_length", config.n_ff)
    _add(writer, "attention.head_count", config.n_heads)
    _add(writer, "attention.head_count_kv", config.n_kv_heads)
    _add_rope(writer, draft)
    _add(writer, "attention.layer_norm_rms_epsilon", config.rms_epsilon)
    _add(writer, "attention.key_length", config.n_head)
    _add(writer, "attention.value_length", config.n_head)
    writer.add_file_type(draft.output_type.file_type)
    _add_drafting(writer, draft)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    for key, entry in draft.target.tokenizer.items():
        writer.add_key_value(key, entry.value, entry.kind, entry.element)
    writer.add_uint32(MASK, config.mask_token)


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    """Nothing where there is no value: then llama.cpp's default holds, and is right."""
    name = f"{ARCHITECTURE}.{key}"
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)


def _add_rope(writer: GGUFWriter, draft: DraftFile) -> None:
    rope = draft.config.rope
    if rope.scaling is not None:
        _add(writer, "rope.scaling.type", rope.scaling.kind)
        _add(writer, "rope.scaling.factor", rope.scaling.factor)
        _add(writer, "rope.scaling.original_context_length", rope.scaling.n_context_before)
        _add(writer, "rope.scaling.yarn_ext_factor", rope.scaling.extrapolation_factor)
        _add(writer, "rope.scaling.yarn_attn_factor", rope.scaling.attention_factor)
        _add(writer, "rope.scaling.yarn_beta_fast", rope.scaling.beta_fast)
        _add(writer, "rope.scaling.yarn_beta_slow", rope.scaling.beta_slow)
    _add(writer, "rope.freq_base", draft.rope_base)
    _add(writer, "rope.dimension_count", rope.n_rotating)


def _add_drafting(writer: GGUFWriter, draft: DraftFile) -> None:
    config = draft.config
    _add(writer, "hidden_activation", None if config.activation == "silu" else config.activation)
    _add(writer, "attention.value_scale", config.value_scale)
    _add(writer, "block_size", config.block_size)
    if config.selector is not None:
        _add(writer, "conv_kernel_size", config.selector.kernel_size)
        _add(writer, "conv_group_size", config.selector.group_size)
        _add(writer, "selector_rank", config.selector.rank)
        _add(writer, "selector_top_k", config.selector.top_k)
    _add(writer, "logit_scale", config.logit_scale)
    _add(writer, "final_logit_softcapping", config.logit_softcap)
    embedding_scale = config.embedding_scale
    if embedding_scale is None and draft.target.scales_embeddings:
        embedding_scale = config.n_embd**0.5  # the drafter reads the target's table
    _add(writer, "embedding_scale", embedding_scale)
    # In GGUF a layer's output is the next one's input, by whose number it goes.
    writer.add_array(f"{ARCHITECTURE}.target_layers", [layer + 1 for layer in config.target_layer_ids])
    if config.window is not None:
        _add(writer, "attention.sliding_window", config.window.n_tokens)
        writer.add_array(f"{ARCHITECTURE}.attention.sliding_window_pattern", list(config.window.layers))
    _add(writer, "attention.causal", config.causal)
    if draft.target.has_sections:
        n_rotating = config.rope.n_rotating or config.n_head  # a drafter rotates by the place in the text alone
        writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [n_rotating // 2, 0, 0, 0])


def _write(writer: GGUFWriter, draft: DraftFile, on_progress: Progress) -> None:
    types = [
        quantization_for(tensor.shape, draft.output_type, keep_float32=tensor.keep_float32) for tensor in draft.tensors
    ]
    for tensor, kind in zip(draft.tensors, types, strict=True):
        n_bytes = stored_bytes(tensor.n_elements, kind)
        writer.add_tensor_info(tensor.gguf_name, tensor.shape, np.dtype(np.float32), n_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    for tensor, kind in zip(draft.tensors, types, strict=True):
        for raw in _pieces(tensor):
            try:
                file.write(convert_elements(raw, tensor.source.element_type, kind).data)
            except NotFiniteError:
                raise ConversionError(
                    tensor.source.path, tensor.source.name, f"it holds values that are no numbers in {kind.name}"
                ) from None
            on_progress(raw.nbytes)
        writer.write_padding(file, stored_bytes(tensor.n_elements, kind))
    file.flush()


def _pieces(tensor: PlannedTensor) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """The tensor's bytes as stored, whole rows at a time."""
    source = tensor.source
    n_row_bytes = source.n_bytes // (tensor.n_elements // tensor.shape[-1])
    n_piece_bytes = max(_PIECE_BYTES // n_row_bytes, 1) * n_row_bytes
    with open_regular(source.path) as (file, _):
        file.seek(source.begin)
        for begin in range(0, source.n_bytes, n_piece_bytes):
            wanted = min(n_piece_bytes, source.n_bytes - begin)
            raw = file.read(wanted)
            if len(raw) != wanted:
                raise ConversionError(source.path, source.name, "the file was shortened while it was read")
            yield np.frombuffer(raw, dtype=np.uint8)
