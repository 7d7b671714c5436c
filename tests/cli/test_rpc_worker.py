"""`luce rpc-worker` before it becomes luced: what it says, and what it hands over. A program that shows its arguments
stands in for luced, which would not end by itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def worker(run: Run, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return run("luce", "rpc-worker", *arguments, env={**os.environ, "LUCE_DAEMON_BINARY": "/bin/echo"})


@pytest.mark.parametrize(
    ("host", "warns"), [("127.0.0.1", False), ("localhost", False), ("192.0.2.7", True), ("gpu.example", True)]
)
def test_who_lends_to_a_network_is_warned(run: Run, host: str, warns: bool) -> None:
    result = worker(run, "--host", host, "--port", "7001", "--no-keep-weights", "--threads", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode().split() == ["--rpc-worker", f"{host}:7001", "--threads", "3"]
    told = f"whoever reaches {host}:7001 may compute here, without a key"
    assert (told in result.stderr.decode()) == warns


def test_weights_are_kept_where_only_their_owner_reads(run: Run, tmp_path: Path) -> None:
    result = run(
        "luce",
        "rpc-worker",
        env={**os.environ, "LUCE_DAEMON_BINARY": "/bin/echo", "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr
    folder = Path(result.stdout.decode().split()[-1])
    assert folder.is_relative_to(tmp_path)
    assert folder.stat().st_mode & 0o077 == 0
