"""BareLoop: drives bare_decode, the other side of each comparison, and what both sides report of a measurement."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path


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
