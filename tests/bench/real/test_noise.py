"""The cell `noise` of docs/benchmarks/real.md runs to its end with the packaged model, and llama-perplexity's file is
read as it is written."""

from __future__ import annotations

import struct
from pathlib import Path

from scripts.bench.real import noise
from scripts.bench.real.perplexity import MAGIC
from scripts.bench.real.rows import Setup


def test_every_way_of_ours_is_measured(luced: Path, tiny_model: Path) -> None:
    setup = Setup("luce-tiny", tiny_model, luced, None, 0, 1, "q8_0", 512, quick=True)
    smallest = noise.Volume(
        n_text=256, n_decoded=8, widths=(1,), n_prompts=4, n_prompt=16, n_answer=4, cache_types=("q8_0",)
    )
    rows = {row.what: row for row in noise.measure(setup, smallest)}
    ways = (
        "fresh", "reused", "back from the host", "read 32 tokens a call", "back from disk after kill -9", "decoded",
        "decoded, back from a slot", "decoded, 4 lanes",
    )  # fmt: skip
    assert {f"q8_0, {way}: largest" for way in ways} <= rows.keys()
    assert rows["q8_0, fresh: largest"].ours == 0
    assert {"q8_0, greedy, again: parted, of 4", "q8_0, greedy, with drafts: parted, of 4"} <= rows.keys()
    assert all(row.theirs is None and row.is_met is None for row in rows.values())


def written(ids: list[int], rows: list[list[int]], scale: float, least: float, n_vocab: int) -> bytes:
    """One window as llama-perplexity writes it."""
    head = MAGIC + struct.pack("<3i", len(ids), n_vocab, 1) + struct.pack(f"<{len(ids)}i", *ids)
    pad = [0] * (n_vocab % 2)
    return head + b"".join(struct.pack(f"<2f{n_vocab + len(pad)}H", scale, least, *row, *pad) for row in rows)
