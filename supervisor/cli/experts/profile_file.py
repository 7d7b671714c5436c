"""The file of an expert profile, as native/experts/expert_profile.h describes it: bytes in, counts out. Trusts nothing:
magic, version, checksum, sizes and counts are checked before anything is handed on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

Phase = Literal["decode", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "prefill")
MOST_BYTES = 256 << 20

_MAGIC = b"LUCEEXPT"
_VERSION = 1
_IDENTITY_BYTES = 32
_MOST_LAYERS = 4096
_MOST_EXPERTS = 65536
_MOST_COUNT = 1e18  # far more than anybody counts, and sums stay finite
_HEAD = struct.Struct(f"<8sII{_IDENTITY_BYTES}s")
_LAYER = struct.Struct("<iI")
_CHECKSUM = struct.Struct("<I")
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


class ProfileError(Exception):
    """These bytes are no expert profile that can be read; the text says why."""


@dataclass(frozen=True, slots=True)
class LayerUse:
    """How often each expert of a layer was used; older uses count less."""

    layer: int
    decode: tuple[float, ...]
    prefill: tuple[float, ...]

    def of(self, phase: Phase) -> tuple[float, ...]:
        return self.decode if phase == "decode" else self.prefill


@dataclass(frozen=True, slots=True)
class ExpertProfile:
    """Which experts of a model were used, and how often. `identity` names the model's weights."""

    identity: str
    layers: tuple[LayerUse, ...]

    def shape(self) -> dict[int, int]:
        """Layer -> its experts."""
        return {use.layer: len(use.decode) for use in self.layers}

    def uses(self, phase: Phase) -> list[tuple[float, ...]]:
        return [use.of(phase) for use in self.layers]


def parse_profile(data: bytes) -> ExpertProfile:
    """Raises ProfileError."""
    if len(data) > MOST_BYTES:
        raise ProfileError("it is too large to be an expert profile")
    if not data.startswith(_MAGIC):
        raise ProfileError("it is no expert profile")
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise ProfileError("it is damaged: its end is missing")
    _, version, n_layers, identity = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise ProfileError(f"version {version} of expert profiles is not known here")
    end = len(data) - _CHECKSUM.size
    if _CHECKSUM.unpack_from(data, end) != (_crc32c(data[:end]),):
        raise ProfileError("it is damaged: its checksum is wrong")
    if not 0 < n_layers <= _MOST_LAYERS or not identity.isalnum():
        raise ProfileError("it is damaged: its head makes no sense")
    layers, at = [], _HEAD.size
    for _ in range(n_layers):
        layer, at = _parse_layer(data, at, end)
        layers.append(layer)
    if at != end:
        raise ProfileError("it is damaged: there is something behind its last layer")
    return ExpertProfile(identity.decode("ascii"), tuple(layers))


def _parse_layer(data: bytes, at: int, end: int) -> tuple[LayerUse, int]:
    if at + _LAYER.size > end:
        raise ProfileError("it is damaged: a layer is missing")
    layer, n = _LAYER.unpack_from(data, at)
    at += _LAYER.size
    counts = struct.Struct(f"<{n}d") if 0 < n <= _MOST_EXPERTS else None
    if counts is None or at + 2 * counts.size > end:
        raise ProfileError(f"it is damaged: layer {layer} cannot have {n} experts")
    use = LayerUse(layer, counts.unpack_from(data, at), counts.unpack_from(data, at + counts.size))
    if not all(0 <= count <= _MOST_COUNT for count in (*use.decode, *use.prefill)):
        raise ProfileError(f"it is damaged: counts of layer {layer} are no counts")
    return use, at + 2 * counts.size


def _crc_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)  # noqa: PLW2901
        table.append(value)
    return tuple(table)


def _crc32c(data: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
