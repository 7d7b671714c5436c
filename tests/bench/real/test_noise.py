"""The cell `noise` of docs/benchmarks/real.md runs to its end with the packaged model, and llama-perplexity's file is
read as it is written."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from scripts.bench.real import noise
from scripts.bench.real.noise import Greedy, Moves, partings
from scripts.bench.real.perplexity import MAGIC, RESOLUTION, read_windows
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


def test_moves_are_those_of_the_tokens_that_the_reference_has() -> None:
    moves = Moves([-1.0, None, -3.0])
    moves.add("all", [-1.5, -40.0, -3.25])
    moves.add("the first ones", [-1.25])
    assert moves.found == {"all": [0.5, 0.25], "the first ones": [0.25]}
    assert moves.largest == 0.5


def test_a_text_parts_at_its_first_other_token() -> None:
    reference = Greedy([5, 6, 7], [3.0, 0.2, 0.1])
    answers = [reference, Greedy([5, 9, 9], [3.0, 3.0, 3.0])]
    assert partings(answers, [reference, reference]) == [0.2]


def written(ids: list[int], rows: list[list[int]], scale: float, least: float, n_vocab: int) -> bytes:
    """One window as llama-perplexity writes it."""
    head = MAGIC + struct.pack("<3i", len(ids), n_vocab, 1) + struct.pack(f"<{len(ids)}i", *ids)
    pad = [0] * (n_vocab % 2)
    return head + b"".join(struct.pack(f"<2f{n_vocab + len(pad)}H", scale, least, *row, *pad) for row in rows)


@pytest.mark.parametrize("n_vocab", [4, 5])
def test_the_file_of_llama_perplexity_is_read(n_vocab: int) -> None:
    """Of four tokens the last one has a log-probability: that which the row of the one before it tells."""
    row = [0, 65535, 100, 7, 9][:n_vocab]
    data = written([3, 1, 0, 2], [row], scale=16 / 65535, least=-16.5, n_vocab=n_vocab)
    [window] = read_windows(io.BytesIO(data))
    assert (window.tokens, window.first, window.are_floor) == ((3, 1, 0, 2), 3, (False,))
    assert window.logprobs[0] == pytest.approx(-16.5 + 100 * 16 / 65535, abs=RESOLUTION)
    [floor] = read_windows(io.BytesIO(written([3, 1, 2, 0], [row], 16 / 65535, -16.5, n_vocab)))
    assert floor.are_floor == (True,)
    for cut in (b"", data[:-1], b"GGUF" + data):
        with pytest.raises(ValueError, match="llama-perplexity"):
            list(read_windows(io.BytesIO(cut)))
