"""What docs/quickstart.md and PROTOCOL.md show of a session with the packaged model is what the daemon says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.cli.conftest import Run

ROOT = Path(__file__).resolve().parents[2]


def ready_fields(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split()[2:])


def test_the_ready_line_in_the_protocol(luced: Path, tiny_model: Path) -> None:
    command = [str(luced), "--model", str(tiny_model), "--gpu-layers", "0", "--host-cache", "1G"]
    command += ["--threads", "1", "--no-warmup"]
    said = subprocess.run(command, input=b"", capture_output=True, timeout=120, check=True).stdout.decode()
    documented = re.findall(r"^< (\[daemon\] ready .*)$", (ROOT / "protocol" / "PROTOCOL.md").read_text(), re.MULTILINE)
    assert len(documented) == 2
    for line in documented:
        assert ready_fields(line) | {"pid": ""} == ready_fields(said) | {"pid": ""}


def test_the_session_in_the_quickstart(run: Run, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text()
    session = re.search(r"^    \$ (luce-daemon .*) 3>tokens\.bin\n((?:    .*\n)+)", text, re.MULTILINE)
    assert session is not None
    name, *arguments = session[1].split()
    ready, typed, reply = (line.strip().split(" … ") for line in session[2].splitlines())
    with (tmp_path / "tokens.bin").open("wb") as tokens:
        arguments[arguments.index("3")] = str(tokens.fileno())
        arguments += ["--threads", "1", "--no-warmup"]
        result = run(name, *arguments, input=typed[0].encode(), pass_fds=(tokens.fileno(),))
    # A busy machine tells how far the prompt is.
    said = [line for line in result.stdout.decode().splitlines() if not line.startswith("[prefill]")]
    assert said[0].startswith(ready[0].removesuffix(" …"))
    assert said[1].startswith(reply[0])
    assert said[1].endswith(reply[1])
    assert len(said) == 2
    assert (tmp_path / "tokens.bin").stat().st_size == 17 * 4  # and the sentinel
