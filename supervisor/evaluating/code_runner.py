"""Runs Python code that a model has written, in a process of its own with limits: time, memory, what it may write, and
no network where the kernel lets us take it away.

It is no prison: the code reads what its user may read. The limits are set in the child before the code begins.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

LIMIT_S = 10.0
_MEMORY_BYTES = 1 << 30
_FILE_BYTES = 1 << 20
_N_FILES = 64
_N_PROCESSES = 32  # of ours that run already too, so that most code can start none
# No network, and processes of its own that end with it.
_ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_PROBE_S = 10.0

_START = f"""
import resource, sys
for name, most in (("CPU", {int(LIMIT_S) + 1}), ("AS", {_MEMORY_BYTES}), ("FSIZE", {_FILE_BYTES}),
                   ("NOFILE", {_N_FILES}), ("NPROC", {_N_PROCESSES}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
code, said = sys.stdin.read(), sys.stdout
sys.stdin = open("/dev/null")
token, code = code.split("\\n", 1)
exec(compile(code, "answer", "exec"), {{"__name__": "__main__"}})
said.write("\\n" + token)
said.flush()
"""


@cache
def can_be_alone() -> bool:
    """Whether the kernel gives the code a network of its own, with nobody in it."""
    try:
        probe = subprocess.run(
            [*_ALONE, "true"], capture_output=True, timeout=_PROBE_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


def runs_to_its_end(code: str, limit_s: float = LIMIT_S) -> bool:
    """Whether the program reaches its last line: one that leaves earlier, with whatever status, does not."""
    token = secrets.token_hex(16)
    alone: Sequence[str] = _ALONE if can_be_alone() else ()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said"
        with out.open("wb") as said:
            child = subprocess.Popen(
                [*alone, sys.executable, "-I", "-S", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PATH": os.defpath, "OMP_NUM_THREADS": "1"},
                process_group=0,
            )
            try:
                child.communicate(f"{token}\n{code}".encode(errors="replace"), timeout=limit_s)
            except subprocess.TimeoutExpired:
                return False
            finally:
                _end(child)
        return out.read_bytes().endswith(token.encode())


def _end(child: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with suppress(ProcessLookupError):  # all of them have ended
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
