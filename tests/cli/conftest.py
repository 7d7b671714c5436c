"""The installed commands, as a shell would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forked_commands import ForkedCommands, can_be_forked

TIMEOUT_S = 300

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Shell = Callable[[str], subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def bin_dir(luced: Path) -> Path:
    """The folder with `luce` and `luce-daemon`; the daemon that they start is there too."""
    assert luced.is_file()
    folder = Path(sys.executable).parent
    assert (folder / "luce-daemon").is_file(), "the package is not installed: run scripts/test, which installs it"
    return folder


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedCommands]:
    commands = ForkedCommands()
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def run(bin_dir: Path, forked: ForkedCommands) -> Run:
    """run("luce", "tokenize", "-", input=b"…"): to its end, with what it wrote.

    Engines get one thread: a tiny model gains nothing by more, and on a busy machine its threads would wait for each
    other at every token.
    """

    def run_command(name: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
        command = [str(bin_dir / name), *map(str, arguments)]
        if (name == "luce" and "run" in command[1:2]) or (name == "luce-daemon" and "--pipe" in command):
            command += ["--threads", "1", "--no-warmup"]
        data, environment = options.get("input"), options.get("env", os.environ)
        reads_nothing = options.get("stdin", subprocess.DEVNULL) == subprocess.DEVNULL
        if options.keys() <= {"input", "env", "stdin"} and reads_nothing and can_be_forked(environment):
            return forked.run(command, data, environment, TIMEOUT_S)
        return subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, **options)

    return run_command


@pytest.fixture
def shell(bin_dir: Path, tiny_model: Path, tmp_path: Path) -> Shell:
    """shell("luce inspect $MODEL >/dev/full"): a line for bash, with our commands in its path."""

    def run_line(line: str) -> subprocess.CompletedProcess[bytes]:
        variables = {"PATH": f"{bin_dir}:{os.environ['PATH']}", "MODEL": str(tiny_model), "TMPDIR": str(tmp_path)}
        return subprocess.run(
            ["bash", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, **variables},
        )

    return run_line


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The name of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="luce", dir="/tmp") as folder:
        yield Path(folder)
