"""Writes expert profiles as native/experts/expert_profile.h describes them, with a checksum of its own, bit by bit."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from luce.supervisor.cli.experts.profile_file import ExpertProfile, LayerUse

IDENTITY = "0123456789abcdef" * 2


def profile(*layers: tuple[Sequence[float], Sequence[float]]) -> ExpertProfile:
    """Of layers from 0 on, each (decode, prefill)."""
    uses = (LayerUse(number, tuple(decode), tuple(prefill)) for number, (decode, prefill) in enumerate(layers))
    return ExpertProfile(IDENTITY, tuple(uses))


def body_of(profile: ExpertProfile, *, magic: bytes = b"LUCEEXPT", version: int = 1) -> bytes:
    data = magic + struct.pack("<II", version, len(profile.layers)) + profile.identity.encode()
    for use in profile.layers:
        data += struct.pack("<iI", use.layer, len(use.decode))
        data += struct.pack(f"<{2 * len(use.decode)}d", *use.decode, *use.prefill)
    return data


def signed(body: bytes) -> bytes:
    """With the checksum behind it."""
    remainder = 0xFFFFFFFF
    for byte in body:
        for bit in range(8):
            is_odd = (remainder ^ byte >> bit) & 1
            remainder = remainder >> 1 ^ (0x82F63B78 if is_odd else 0)
    return body + struct.pack("<I", remainder ^ 0xFFFFFFFF)


def encode(profile: ExpertProfile) -> bytes:
    return signed(body_of(profile))
