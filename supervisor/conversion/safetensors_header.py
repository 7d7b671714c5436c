"""The headers of a checkpoint's safetensors files: which tensors there are, of which type and shape, and where.

Nothing in a header is believed before it has been held against the size of its file: every tensor lies inside, none
lies on another, none is missing bytes, no byte belongs to nobody (https://huggingface.co/docs/safetensors). Knows no
names of tensors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from luce.supervisor.conversion.errors import DOWNLOAD_AGAIN, ConversionError, shown
from luce.supervisor.conversion.files import open_regular, parse_json_object, read_json_file

_MAX_HEADER_BYTES = 16 << 20
_MAX_INDEX_BYTES = 16 << 20
_MAX_DIMENSIONS = 4  # of ggml
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

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
    n_bytes: int
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
            what = (
                "there is none" if not found else f"there are {len(found)}, and no {_INDEX} that says how they belong"
            )
            raise ConversionError(folder, "*.safetensors", what, "name a DFlash checkpoint's folder")
        return found
    weight_map = read_json_file(index, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(index, "weight_map", f"it is {shown(weight_map)}, an object was expected")
    names: set[str] = set()
    for name in weight_map.values():
        if not _is_plain_name(name):
            raise ConversionError(index, "weight_map", f"{shown(name)} is no name of a safetensors file beside it")
        names.add(name)
    return [folder / name for name in sorted(names)]


def _is_plain_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and name.endswith(".safetensors") and "/" not in name and name.isprintable()


def _read_weight_file(path: Path) -> WeightFile:
    with open_regular(path) as (file, n_file_bytes):
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ConversionError(path, "header", f"the file has {n_file_bytes} bytes: not even a header's length")
        n_header_bytes = int.from_bytes(prefix, "little")
        if n_header_bytes > _MAX_HEADER_BYTES:
            raise ConversionError(
                path, "header", f"its length is given as {n_header_bytes:,} bytes, more than {_MAX_HEADER_BYTES:,}"
            )
        raw = file.read(n_header_bytes)
        if len(raw) < n_header_bytes:
            raise ConversionError(
                path, "header", f"it should have {n_header_bytes:,} bytes and ends after {len(raw):,}: the file is torn"
            )
    entries = parse_json_object(raw, path, "header")
    entries.pop("__metadata__", None)
    begin = 8 + n_header_bytes
    tensors = [_read_entry(path, name, entry, begin, n_file_bytes) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.n_bytes))
    _check_layout(path, tensors, begin, n_file_bytes)
    return WeightFile(path, n_file_bytes, hashlib.sha256(raw).hexdigest(), tuple(tensors))


def _read_entry(path: Path, name: str, entry: Any, data_begin: int, n_file_bytes: int) -> StoredTensor:
    where = shown(name)[1:-1]
    if not isinstance(entry, dict):
        raise ConversionError(path, where, f"its entry is {shown(entry)}, an object was expected")
    element_type, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(element_type, str) or element_type not in _ITEM_BYTES:
        raise ConversionError(
            path, where, f"its dtype is {shown(element_type)}, which is not known", "take a checkpoint in bfloat16"
        )
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ConversionError(path, where, f"its shape is {shown(shape)}, up to {_MAX_DIMENSIONS} sizes were expected")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ConversionError(path, where, f"its data_offsets are {shown(offsets)}, a begin and an end were expected")
    n_bytes = _ITEM_BYTES[element_type]
    for size in shape:
        n_bytes *= size
    if offsets[1] - offsets[0] != n_bytes:
        raise ConversionError(
            path,
            where,
            f"its data_offsets hold {shown(offsets[1] - offsets[0])} bytes, its shape takes {shown(n_bytes)}",
        )
    if data_begin + offsets[1] > n_file_bytes:
        raise ConversionError(
            path,
            where,
            f"its data ends at byte {shown(data_begin + offsets[1])}, the file at {n_file_bytes:,}: it is torn",
            f"finish the download, or {DOWNLOAD_AGAIN}",
        )
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
            raise ConversionError(
                path, tensor.name, f"{tensor.begin - end:,} bytes before its data belong to no tensor"
            )
        end = tensor.begin + tensor.n_bytes
    if end != n_file_bytes:
        raise ConversionError(path, "header", f"{n_file_bytes - end:,} bytes at the end belong to no tensor")
