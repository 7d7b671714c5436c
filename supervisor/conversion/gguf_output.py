"""The GGUF file of a drafter: its metadata, and its tensors a piece at a time, so that memory stays small.

Written beside its place, brought to the disk, and renamed there: whoever looks sees the whole file or none. Keys as
load_arch_hparams in src/models/dflash.cpp of llama.cpp reads them. Numbers are rounded by the gguf library, which does
it as ggml does, bit by bit. Trusts what it is given to be checked.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, LlamaFileType
from gguf.utility import size_label

from luce.supervisor.conversion.draft_config import DraftConfig
from luce.supervisor.conversion.reading import ConversionError, open_regular
from luce.supervisor.conversion.target import Target
from luce.supervisor.conversion.tokenizer import MASK
from luce.supervisor.conversion.weights import PlannedTensor

ARCHITECTURE = "dflash"
_TEMPORARY_SUFFIX = ".part"
_PIECE_BYTES = 32 << 20

Progress = Callable[[int], None]

Bytes = npt.NDArray[np.uint8]

# Beyond these a value would become infinite: half of BF16's last step below float32's end; Q8_0 keeps a 127th as F16.
_LARGEST = {GGMLQuantizationType.BF16: 3.38e38, GGMLQuantizationType.Q8_0: 127 * 65504.0}


class OutputType(Enum):
    """What the matrices of the result are stored in; all else is float32."""

    BF16 = "bf16"
    Q8_0 = "q8_0"

    @property
    def quantization(self) -> GGMLQuantizationType:
        return GGMLQuantizationType[self.name]


class NotFiniteError(Exception):
    """The tensor holds values that are no numbers, or too large for the type that they should get."""


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
    config, rope = draft.config, draft.config.rope
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
    for key, value in rope.scaling:
        _add(writer, f"rope.scaling.{key}", value)
    _add(writer, "rope.freq_base", draft.rope_base)
    _add(writer, "rope.dimension_count", rope.n_rotating)
    _add(writer, "attention.layer_norm_rms_epsilon", config.rms_epsilon)
    _add(writer, "attention.key_length", config.n_head)
    _add(writer, "attention.value_length", config.n_head)
    writer.add_file_type(int(LlamaFileType[f"MOSTLY_{draft.output_type.name}"]))
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
                problem = f"it holds values that are no numbers in {kind.name}"
                raise ConversionError(tensor.source.path, tensor.source.name, problem) from None
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


def quantization_for(shape: tuple[int, ...], output_type: OutputType, *, keep_float32: bool) -> GGMLQuantizationType:
    """The type of one tensor: vectors stay float32, and rows that are no whole blocks of Q8_0 become BF16."""
    if len(shape) < 2 or keep_float32:
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[output_type.quantization]
    return output_type.quantization if shape[-1] % block == 0 else GGMLQuantizationType.BF16


def stored_bytes(n_elements: int, quantization: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    return n_elements // block * block_bytes


def convert_elements(raw: Bytes, element_type: str, quantization: GGMLQuantizationType) -> Bytes:
    """A whole number of rows, as they are stored and as they are to be. Raises NotFiniteError."""
    if element_type == "BF16":
        halves = raw.view("<u2")
        if bool(np.any((halves & 0x7F80) == 0x7F80)):
            raise NotFiniteError
        if quantization is GGMLQuantizationType.BF16:
            return raw
        values = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        values = raw.view("<f2" if element_type == "F16" else "<f4").astype(np.float32)
        if not bool(np.isfinite(values).all()):
            raise NotFiniteError
    if quantization is GGMLQuantizationType.F32:
        return values.view(np.uint8)
    block, _ = GGML_QUANT_SIZES[quantization]
    if bool(np.any(np.abs(values) > _LARGEST[quantization])):
        raise NotFiniteError
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # 1 / d of blocks of denormals
        converted: Any = quants.quantize(values.reshape(-1, block if block > 1 else values.size), quantization)
    return np.ascontiguousarray(converted).view(np.uint8).reshape(-1)
