"""BareLoop and BarePrefill: drive bare_decode and bare_prefill, the other side of each comparison, and what both sides
report of a measurement."""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Sample:
    """One measurement of one side. Times in seconds; n_tokens were decoded in decode_s, all lanes together."""

    first_token_s: float
    decode_s: float
    n_tokens: int
    resident_kb: int

    @property
    def tokens_per_s(self) -> float:
        return self.n_tokens / self.decode_s


class BareLoop:
    def __init__(self, args: argparse.Namespace, prompt: Path, n_lanes: int) -> None:
        command = [
            str(args.bare), str(args.model), str(prompt), str(args.tokens), str(n_lanes), str(n_cells(args, n_lanes)),
            str(args.ubatch), str(args.threads), args.cache_type, str(args.gpu_layers),
        ]  # fmt: skip
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._n_lanes = n_lanes
        assert self._child.stdout is not None
        if self._child.stdout.readline().strip() != "ready":
            raise RuntimeError("bare_decode did not start")

    def measure(self) -> Sample:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        figures = json.loads(self._child.stdout.readline())
        return Sample(
            figures["prefill_s"] / self._n_lanes, figures["decode_s"], figures["n_tokens"], figures["resident_kb"]
        )

    def close(self) -> None:
        self._child.communicate(timeout=30)


def n_cells(args: argparse.Namespace, n_lanes: int) -> int:
    """Cells for all lanes, in the multiples of 256 that libllama uses."""
    n_prompt, n_tokens = int(args.prompt), int(args.tokens)
    return -(-(n_prompt + 2 * n_tokens + n_lanes * 64) * n_lanes // 256) * 256


class BarePrefill:
    """What libllama itself needs for so many tokens behind so many others. Use as a context manager."""

    def __init__(
        self, binary: Path, model: Path, n_ctx: int, n_ubatch: int, n_threads: int, cache_type: str, n_gpu_layers: int
    ) -> None:
        command = [
            str(binary), str(model), str(n_ctx), str(n_ubatch), str(n_threads), cache_type, str(n_gpu_layers)
        ]  # fmt: skip
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name, "text.bin")
        self._n_held = 0

    def __enter__(self) -> Self:
        if self._answer() != "ready":
            raise RuntimeError("bare_prefill did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.communicate(timeout=30)
        self._folder.cleanup()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def fill(self, text: Sequence[int], begin: int, end: int) -> float:
        """Compute the text's positions [begin, end) behind those that are there; seconds to the last one's logits."""
        assert begin in {0, self._n_held}
        assert self._child.stdin is not None
        self._path.write_bytes(struct.pack(f"<{len(text)}i", *text))
        self._child.stdin.write(f"{begin} {end} {self._path}\n")
        self._child.stdin.flush()
        self._n_held = end
        return float(self._answer())

    def fill_to(self, text: Sequence[int], n: int, *, is_extended: bool) -> None:
        """Hold the text's first n tokens; `is_extended`: what is held already is their prefix."""
        begin = self._n_held if is_extended else 0
        if begin < n:
            self.fill(text, begin, n)
