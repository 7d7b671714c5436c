"""The reader of expert profiles: what is whole is read, what is damaged anywhere is refused."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.cli.experts.profile_file import ExpertProfile, LayerUse, ProfileError, parse_profile
from tests.cli.experts.profiles import IDENTITY, body_of, encode, profile, signed

SMALL = profile(([3.0, 0.5], [10.0, 0.0]), ([0.0, 1.0], [2.5, 7.0]))
N_HEAD = 48  # bytes before the first layer

counts = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*[st.lists(st.floats(0, 1e18), min_size=n, max_size=n).map(tuple)] * 2)
)
layers = st.tuples(st.integers(-(2**31), 2**31 - 1), counts).map(lambda layer: LayerUse(layer[0], *layer[1]))


def test_the_checksum_is_crc_32c() -> None:
    assert signed(b"123456789")[-4:] == struct.pack("<I", 0xE3069283)  # the check value of its definition


@given(st.lists(layers, min_size=1, max_size=4))
def test_what_is_whole_is_read(uses: list[LayerUse]) -> None:
    whole = ExpertProfile(IDENTITY, tuple(uses))
    assert parse_profile(encode(whole)) == whole


def is_refused(data: bytes) -> bool:
    try:
        parse_profile(data)
    except ProfileError:
        return True
    return False


def test_damage_at_any_byte_is_refused() -> None:
    whole = encode(SMALL)
    for at, byte in enumerate(whole):
        for mask in (0x01, 0x80, 0xFF):
            assert is_refused(whole[:at] + bytes([byte ^ mask]) + whole[at + 1 :]), f"byte {at} changed by {mask}"


def test_a_torn_file_is_refused() -> None:
    whole = encode(SMALL)
    assert [n for n in range(len(whole)) if not is_refused(whole[:n])] == []


def test_a_torn_file_with_a_right_checksum_is_refused() -> None:
    body = body_of(SMALL)
    assert [n for n in range(len(body)) if not is_refused(signed(body[:n]))] == []


@given(st.integers(0, len(body_of(SMALL)) - 1), st.integers(0, 255))
def test_whatever_a_right_checksum_stands_behind_is_refused_or_makes_sense(at: int, byte: int) -> None:
    body = bytearray(body_of(SMALL))
    body[at] = byte
    try:
        read = parse_profile(signed(bytes(body)))
    except ProfileError:
        return
    assert all(0 <= count < math.inf for use in read.layers for count in (*use.decode, *use.prefill))
    assert body_of(read) == bytes(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "no expert profile"),
        (body_of(SMALL, magic=b"GGUFEXPT"), "no expert profile"),
        (body_of(SMALL, version=2), "version 2"),
        (body_of(ExpertProfile(IDENTITY, ())), "its head"),
        (body_of(ExpertProfile("\n" * 32, SMALL.layers)), "its head"),
        (body_of(SMALL) + b"\0", "behind its last layer"),
        (body_of(SMALL)[:N_HEAD] + struct.pack("<iI", 0, 0), "0 experts"),
        (body_of(SMALL)[:N_HEAD] + struct.pack("<iI", 0, 2**32 - 1), "4294967295 experts"),
        (body_of(profile(([-1.0], [0.0]))), "no counts"),
        (body_of(profile(([math.nan], [0.0]))), "no counts"),
        (body_of(profile(([0.0], [math.inf]))), "no counts"),
        (body_of(profile(([0.0], [1e300]))), "no counts"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        parse_profile(signed(body))
