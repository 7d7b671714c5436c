"""How a drafter rotates positions: as its file says, else as its target does; and where the two differ, that is said.

Lucebox's pull request 430 saw 0.1 percent of drafted tokens accepted on long texts, where the base was another one.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.conftest import GoldenCase
from tests.daemon.conftest import Start
from tests.daemon.exactness import drafted, generate

KEY = b"dflash.rope.freq_base"
FLOAT32 = 6
"""GGUF's number for the type of a value."""


def edited(draft: Path, folder: Path, change: str) -> Path:
    """A copy of the drafter whose header does not name the base, or another one."""
    data = draft.read_bytes()
    at = data.index(KEY) + len(KEY)
    kind, base = struct.unpack_from("<If", data, at)
    assert (kind, base) == (FLOAT32, 1e6), "of the packaged model"
    if change == "missing":
        data = data.replace(KEY, b"dflash.rope.freq_bose")
    elif change == "other":
        data = data[:at] + struct.pack("<If", FLOAT32, 1e4) + data[at + 8 :]
    copy = folder / f"{change}.gguf"
    copy.write_bytes(data)
    return copy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("none", None),
        ("missing", "does not say how it rotates positions: as the model does"),
        ("other", "rotates positions with base 10000, the model with 1e+06"),
    ],
)
def test_rope_base(
    start: Start, packaged_draft: Path, golden: list[GoldenCase], tmp_path: Path, change: str, said: str | None,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What a drafter proposes shows which base it has: the same drafts only with the same one."""
    arguments = ("--draft-ngram", "off", "--draft-adaptive", "off", "--log-level", "info")
    accepted = []
    for draft in (packaged_draft, edited(packaged_draft, tmp_path, change)):
        capfd.readouterr()
        daemon = start("--draft", str(draft), *arguments)
        lines = [line for line in capfd.readouterr().err.splitlines() if "rotates positions" in line]
        if draft == packaged_draft or said is None:
            assert lines == []
        else:
            [line] = lines
            assert said in line, line
            assert str(draft) in line, line
        accepted.append([drafted(generate(daemon, case.prompt_ids, "reuse=0", 32)) for case in golden[:4]])
    assert (accepted[0] == accepted[1]) == (change != "other")
