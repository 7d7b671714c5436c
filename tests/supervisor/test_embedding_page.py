"""The example of an embedded supervisor in docs/embedding.md runs as it stands there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs(luced: Path) -> None:
    assert luced.is_file()
    section = (ROOT / "docs" / "embedding.md").read_text().split("## Embed the supervisor", 1)[1].split("\n##", 1)[0]
    code = textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ") or line == ""))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    answer, figures = result.stdout.rsplit("\n", 2)[:2]
    assert "tokens, " in figures
    assert len(answer) > 10
