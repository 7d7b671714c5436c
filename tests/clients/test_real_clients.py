"""The clients themselves, as npm has them, against `luce serve` (scripts/clients), and what judges them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.clients.verdict import STEPS, complaints, read

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "clients"
CLIENTS = ("claude_code", "codex", "opencode", "pi")
SHORT_FORM = ("pi", "turns")  # its prompt is the shortest: 1,500 tokens, where others have 9,000 to 15,000
NO_CLIENT = 77
"""Exit code of the scripts where the client cannot be had."""
TIMEOUT_S = 3600


@pytest.mark.parametrize("scenario", ["turns", "task"])
@pytest.mark.parametrize("client", CLIENTS)
def test_client(client: str, scenario: str, full: bool) -> None:
    if (client, scenario) != SHORT_FORM and not full:
        pytest.skip("left out: --full runs all clients; their prompts take a CPU minutes")
    if shutil.which("npm") is None:
        pytest.skip("left out: npm is not installed")
    done = subprocess.run(
        ["bash", str(SCRIPTS / f"{client}.sh"), scenario],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    if done.returncode == NO_CLIENT:
        pytest.skip(f"left out: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout + done.stderr


def record(**changes: Any) -> dict[str, Any]:
    values = {"path": "/v1/messages", "n_tools": 12, "status": 200, "n_prompt": 1000, "n_cached": 950}
    return {**values, "n_text": 5, "n_tool_calls": 0, "finish": "end_turn", "error": "", **changes}


def served(tmp_path: Path, **changes: dict[str, Any]) -> list[str]:
    """The complaints about a session in which the requests of some steps went otherwise."""
    lines = []
    for step in STEPS:
        lines += [{"step": step}, record(**changes.get(step, {}))]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return complaints(read(path))


def test_a_session_that_is_served_gives_no_complaint(tmp_path: Path) -> None:
    assert served(tmp_path) == []


@pytest.mark.parametrize(
    ("step", "changes", "complaint"),
    [
        ("first_turn", {"status": 400, "error": "no"}, "first_turn, request 1: status 400 no"),
        ("first_turn", {"n_tools": 0}, "first_turn: no request offered tools"),
        ("first_turn", {"finish": ""}, "first_turn, request 1: it came to no end"),
        ("first_turn", {"n_text": 0}, "first_turn, request 1: neither text nor a tool call came back"),
        ("second_turn", {"error": "overloaded"}, "second_turn, request 1: overloaded"),
        ("second_turn", {"n_cached": 800}, "second_turn: 800 of the first turn's 1000 tokens cached"),
        ("second_session", {"n_cached": 400}, "second_session: 400 of 1000 tokens cached"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, step: str, changes: dict[str, Any], complaint: str) -> None:
    assert served(tmp_path, **{step: changes}) == [complaint]
