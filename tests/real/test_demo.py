"""What scripts/demo shows, with the packaged model and little code: answers and every row of its table."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def test_the_demo_answers_and_measures() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo_tour.py"), "--code", "512", "--threads", "1"],
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done
    assert "7 + 5 = 12" in done.stdout
    assert "The access code of the green owl is 73105." in done.stdout
    for row in ("512 tokens of code", "the next turn about them", "an edit of that code", "the same edit"):
        assert row in done.stdout
    assert "kill -9 at token 20: goes on after" in done.stdout
    assert done.stdout.count("the same text") == 2
