"""BareLoop: drives `bare` (bare.cpp), the plainest llama_decode loop on the same libllama. It must not know what is
compared with it."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.daemon_driver import to_bytes


class BareLoop:
    """Use as a context manager."""

    def __init__(
        self, args: argparse.Namespace, model: Path, n_lanes: int, n_cells: int, *, is_unified: bool = True
    ) -> None:
        command = [
            str(args.bare), str(model), str(n_lanes), str(n_cells), str(args.ubatch or 512), str(args.threads),
            args.cache_type, str(args.gpu_layers), str(int(is_unified)),
        ]  # fmt: skip
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name, "text.bin")
        self._n_held = [0] * n_lanes

    def __enter__(self) -> Self:
        if self._answer() != "ready":
            raise RuntimeError("the bare loop did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.communicate(timeout=30)
        self._folder.cleanup()

    def _answer(self, command: str | None = None) -> str:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if command is not None:
            self._child.stdin.write(f"{command}\n")
            self._child.stdin.flush()
        return self._child.stdout.readline().strip()

    def fill(self, text: Sequence[int], begin: int, end: int, lane: int = 0) -> float:
        """Compute the text's positions [begin, end) behind those that are there; seconds to the last one's logits."""
        assert begin in {0, self._n_held[lane]}
        self._path.write_bytes(to_bytes(text))
        self._n_held[lane] = end
        return float(self._answer(f"fill {lane} {begin} {end} {self._path}"))

    def fill_to(self, text: Sequence[int], n: int, *, is_extended: bool) -> None:
        """Hold the text's first n tokens; `is_extended`: what is held already is their prefix."""
        begin = self._n_held[0] if is_extended else 0
        if begin < n:
            self.fill(text, begin, n)

    def generate(self, n: int) -> float:
        """Seconds for n tokens in every lane that holds a text."""
        self._n_held = [held + n if held else 0 for held in self._n_held]
        return float(self._answer(f"generate {n}"))

    def resident_kb(self) -> int:
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])
