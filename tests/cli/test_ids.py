"""Ids on a pipe come in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.cli.entry import Failure
from luce.supervisor.cli.pipeline.ids import IdReader, encode_ids, read_ids

ids_strategy = st.lists(st.integers(0, 2**31 - 1), max_size=30)


@given(ids_strategy, st.booleans(), st.integers(1, 7))
def test_there_and_back_in_pieces(ids: list[int], as_text: bool, piece: int) -> None:
    data = encode_ids(ids, as_text=as_text)
    reader = IdReader(as_text=as_text)
    read = [token for at in range(0, len(data), piece) for token in reader.feed(data[at : at + piece])]
    assert [*read, *reader.finish()] == ids


def test_ids_come_out_as_soon_as_they_are_whole() -> None:
    reader = IdReader(as_text=False)
    assert list(reader.feed(b"\x01\x00\x00\x00\x02")) == [1]
    assert list(reader.feed(b"\x00\x00\x00")) == [2]
    text = IdReader(as_text=True)
    assert list(text.feed(b"12,3")) == [12]
    assert list(text.feed(b"4 \n")) == [34]


def test_decimal_ids_may_be_separated_in_any_way() -> None:
    assert read_ids(b" 1, 2\t3\r\n4", as_text=True) == (1, 2, 3, 4)


@pytest.mark.parametrize("data", [b"x", b"1.5", b"0x10", b"+1", b"-1", b"2147483648", b"99999999999999999999", b"\xb2"])
def test_what_is_no_id(data: bytes) -> None:
    with pytest.raises(Failure, match="no decimal token id"):
        read_ids(data, as_text=True)


def test_half_an_int32() -> None:
    with pytest.raises(Failure, match="--text-ids"):
        read_ids(b"\x01\x00", as_text=False)
