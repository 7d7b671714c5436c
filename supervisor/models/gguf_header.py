"""GgufHeader: the metadata and tensor list of a model file, read without trusting it.

Every count and length is held against the size of the file before anything is allocated or skipped, so a hostile or
torn file ends in a GgufError that says what is wrong with it. Names of types and quantisations are the gguf library's;
its own reader takes the file at its word and reads whole vocabularies, which an inspection does not need. Knows the
container only, nothing of architectures.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

_T = TypeVar("_T")

MetadataValue = bool | int | float | str | tuple[bool | int | float | str, ...]

_MAX_KEPT_ELEMENTS = 4096  # a longer array is a vocabulary: its length is kept, not its elements
_MAX_WHOLE_ELEMENTS = 1 << 22  # of an array that is read whole: far more than any vocabulary has
_MAX_DIMENSIONS = 4
_SCALARS: dict[GGUFValueType, struct.Struct] = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}


class GgufError(Exception):
    """The file is no GGUF model that can be read; the text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it."""

    name: str
    shape: tuple[int, ...]
    quantization: str
    n_bytes: int

    @property
    def n_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a model file says of itself; of a split model, all parts together."""

    version: int
    metadata: dict[str, MetadataValue]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...]
    n_header_bytes: int
    n_file_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises GgufError."""
    header = _read_file(path)
    n_parts = header.metadata.get("split.count", 0)
    if not isinstance(n_parts, int) or n_parts <= 1:
        return header
    parts = [header, *(_read_file(part) for part in _further_parts(path, n_parts))]
    return GgufHeader(
        header.version,
        header.metadata,
        header.array_lengths,
        tuple(tensor for part in parts for tensor in part.tensors),
        sum(part.n_header_bytes for part in parts),
        sum(part.n_file_bytes for part in parts),
    )


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One metadata entry as the file has it, texts as bytes; `element` is the type of an array's elements."""

    kind: GGUFValueType
    element: GGUFValueType | None
    value: bool | int | float | bytes | tuple[bool | int | float | bytes, ...]


def read_gguf_entries(path: Path, prefix: str) -> dict[str, GgufEntry]:
    """The entries whose keys begin so, whole, vocabularies too; in the file's order. Raises GgufError."""
    return _with_reader(path, lambda reader: reader.entries(prefix))


def _further_parts(path: Path, n_parts: int) -> Iterator[Path]:
    match = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", path.name)
    if match is None or int(match[2]) != n_parts:
        raise GgufError(
            f"{path}: one part of a model of {n_parts} parts: name the first one, …-00001-of-{n_parts:05d}.gguf"
        )
    for number in range(2, n_parts + 1):
        yield path.with_name(f"{match[1]}-{number:05d}-of-{n_parts:05d}.gguf")


def _read_file(path: Path) -> GgufHeader:
    return _with_reader(path, lambda reader: reader.read())


def _with_reader(path: Path, read: Callable[[_HeaderReader], _T]) -> _T:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read(_HeaderReader(data))
    except ValueError as error:  # of mmap
        raise GgufError(f"{path}: the file is empty") from error
    except OSError as error:
        raise GgufError(f"{path}: {error.strerror or error}") from error
    except _BrokenError as broken:
        raise GgufError(f"{path}: {broken}") from broken


class _BrokenError(Exception):
    pass


class _HeaderReader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> GgufHeader:
        version, n_tensors, n_entries = self._counts()
        metadata: dict[str, MetadataValue] = {}
        lengths: dict[str, int] = {}
        for _ in range(n_entries):
            key = self._text("a metadata key")
            value, length = self._value(key)
            if key in metadata or key in lengths:
                raise _BrokenError(f"metadata key {key!r} stands twice")
            if length is not None:
                lengths[key] = length
            if value is not None:
                metadata[key] = value
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        return GgufHeader(version, metadata, lengths, tensors, self._at, self._size)

    def entries(self, prefix: str) -> dict[str, GgufEntry]:
        _, _, n_entries = self._counts()
        entries: dict[str, GgufEntry] = {}
        for _ in range(n_entries):
            key = self._text("a metadata key")
            if not key.startswith(prefix):
                self._value(key)
                continue
            if key in entries:
                raise _BrokenError(f"metadata key {key!r} stands twice")
            entries[key] = self._entry(key)
        return entries

    def _counts(self) -> tuple[int, int, int]:
        """Version, tensors and metadata entries."""
        if self._take(4) != b"GGUF":
            raise _BrokenError("no GGUF file (it does not begin with the letters GGUF)")
        version = self._uint32()
        if version not in (2, 3):
            raise _BrokenError(f"GGUF version {version}: only 2 and 3 (little endian) are known")
        n_tensors = self._count("tensors", least_bytes=24)
        return version, n_tensors, self._count("metadata entries", least_bytes=13)

    def _take(self, n_bytes: int) -> bytes:
        if n_bytes > self._size - self._at:
            raise _BrokenError(f"it ends in the middle of its header, at byte {self._size}: is the download complete?")
        begin = self._at
        self._at += n_bytes
        return self._data[begin : self._at]

    def _uint32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _uint64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _count(self, what: str, least_bytes: int) -> int:
        count = self._uint64()
        if count * least_bytes > self._size - self._at:
            raise _BrokenError(f"it claims {count} {what}, more than {self._size} bytes can hold")
        return count

    def _text(self, what: str) -> str:
        return self._bytes(what).decode("utf-8", errors="replace")

    def _bytes(self, what: str) -> bytes:
        return self._take(self._count(f"bytes of {what}", least_bytes=1))

    def _type(self, key: str) -> GGUFValueType:
        number = self._uint32()
        try:
            return GGUFValueType(number)
        except ValueError:
            raise _BrokenError(f"metadata key {key!r} has the unknown type {number}") from None

    def _scalar(self, kind: GGUFValueType) -> bool | int | float:
        layout = _SCALARS[kind]
        (value,) = layout.unpack(self._take(layout.size))
        assert isinstance(value, bool | int | float)
        return value

    def _value(self, key: str) -> tuple[MetadataValue | None, int | None]:
        """The value, and for an array its length; no value for an array that is too long to keep."""
        kind = self._type(key)
        if kind is GGUFValueType.STRING:
            return self._text(key), None
        if kind is not GGUFValueType.ARRAY:
            return self._scalar(kind), None
        kind = self._type(key)
        if kind is GGUFValueType.ARRAY:
            raise _BrokenError(f"metadata key {key!r} is an array of arrays, which GGUF models do not use")
        n_bytes = 8 if kind is GGUFValueType.STRING else _SCALARS[kind].size
        length = self._count(f"elements of {key!r}", least_bytes=n_bytes)
        if length <= _MAX_KEPT_ELEMENTS:
            if kind is GGUFValueType.STRING:
                return tuple(self._text(key) for _ in range(length)), length
            return tuple(self._scalar(kind) for _ in range(length)), length
        if kind is GGUFValueType.STRING:
            for _ in range(length):
                self._take(self._count(f"bytes in {key!r}", least_bytes=1))
        else:
            self._take(length * n_bytes)
        return None, length

    def _entry(self, key: str) -> GgufEntry:
        kind = self._type(key)
        if kind is GGUFValueType.STRING:
            return GgufEntry(kind, None, self._bytes(key))
        if kind is not GGUFValueType.ARRAY:
            return GgufEntry(kind, None, self._scalar(kind))
        element = self._type(key)
        if element is GGUFValueType.ARRAY:
            raise _BrokenError(f"metadata key {key!r} is an array of arrays, which GGUF models do not use")
        n_bytes = 8 if element is GGUFValueType.STRING else _SCALARS[element].size
        length = self._count(f"elements of {key!r}", least_bytes=n_bytes)
        if length > _MAX_WHOLE_ELEMENTS:
            raise _BrokenError(f"metadata key {key!r} has {length} elements, more than any vocabulary")
        if element is GGUFValueType.STRING:
            return GgufEntry(kind, element, tuple(self._bytes(key) for _ in range(length)))
        return GgufEntry(kind, element, tuple(self._scalar(element) for _ in range(length)))

    def _tensor(self) -> TensorInfo:
        name = self._text("a tensor's name")
        n_dimensions = self._uint32()
        if n_dimensions > _MAX_DIMENSIONS:
            raise _BrokenError(f"tensor {name!r} has {n_dimensions} dimensions, at most {_MAX_DIMENSIONS} are possible")
        shape = tuple(self._uint64() for _ in range(n_dimensions))
        number = self._uint32()
        try:
            quantization = GGMLQuantizationType(number)
        except ValueError:
            raise _BrokenError(f"tensor {name!r} has the unknown type {number}") from None
        self._uint64()  # where its data begins
        if quantization not in GGML_QUANT_SIZES:
            raise _BrokenError(f"tensor {name!r} has the type {quantization.name}, which is no longer in use")
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        info = TensorInfo(name, shape, quantization.name, 0)
        if info.n_elements // block * block_bytes > self._size:
            raise _BrokenError(f"tensor {name!r} claims {info.n_elements} elements, more than the file can hold")
        return TensorInfo(name, shape, quantization.name, info.n_elements // block * block_bytes)
