"""EngineInfo: what is made of a ready line, and how much of an engine's memory slots may hold."""

from __future__ import annotations

import pytest

from luce.protocol import ReadyLine
from luce.supervisor.engine.info import EngineInfo

PAGE_BYTES = 1000


def info(**fields: object) -> EngineInfo:
    said = {"lanes": 2, "ctx": 1000, "pool": 640, "page": 64, "slots": 8, "page_bytes": PAGE_BYTES, **fields}
    return EngineInfo.of(ReadyLine(tuple((name, str(value)) for name, value in said.items())))


def test_an_engine_whose_texts_have_to_fit_its_pool() -> None:
    assert info(kvflash="off").kvflash is None
    assert info().kvflash is None, "an older one does not say"


def test_slots_may_have_half_of_the_host_or_of_the_pool() -> None:
    assert info(kvflash="off", host=100_000).slot_bytes == 50_000
    assert info(kvflash="off", host=0).slot_bytes == 5 * PAGE_BYTES


@pytest.mark.parametrize(
    ("host", "n_bytes"),
    [
        (100_000, 50_000),  # half
        (20_000, 4_000),  # what a text of 1,000 tokens leaves: it has 16 pages
        (16_000, 0),
        (10_000, 0),
        (0, 0),
    ],
)
def test_slots_leave_the_host_s_memory_to_texts_that_outgrow_the_pool(host: int, n_bytes: int) -> None:
    bounded = info(kvflash=640, host=host)
    assert (bounded.kvflash, bounded.pool, bounded.ctx) == (640, 640, 1000)
    assert bounded.slot_bytes == n_bytes
