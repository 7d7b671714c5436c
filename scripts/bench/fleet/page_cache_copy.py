#!/usr/bin/env python3
"""How long the bytes of a file take from the page cache to the GPU (without one: to other memory of the host), by plain
means: the least that loading a model can take. The file is read once before, so that it lies in the page cache.

    page_cache_copy.py model.gguf --ways pinned,mapped --threads 1,8

  pinned   each thread reads a piece into pinned memory, while its last piece is copied from other pinned memory
  mapped   one copy from the mapped file, which the driver cuts into pieces by itself

Prints JSON, a list of seconds for each way: {"pinned 1": [1.41, 1.40, 1.42], ...}. A GPU needs torch.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

PIECE_BYTES = 16 << 20


class HostCopy:
    """To memory of the host."""

    def __init__(self, n_bytes: int) -> None:
        self._target = np.empty(n_bytes, np.uint8)
        self._target.fill(0)

    def mapped(self, file: mmap.mmap) -> None:
        self._target[:] = np.frombuffer(file, np.uint8)

    def pieces(self, descriptor: int, begins: range) -> None:
        view = self._target.data
        for begin in begins:
            _read(descriptor, view[begin : begin + PIECE_BYTES], begin)


class GpuCopy:
    """To memory of the first GPU."""

    def __init__(self, torch: Any, n_bytes: int) -> None:
        self._torch = torch
        self._target = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()

    def mapped(self, file: mmap.mmap) -> None:
        self._target.copy_(self._torch.from_numpy(np.frombuffer(file, np.uint8)))
        self._torch.cuda.synchronize()

    def pieces(self, descriptor: int, begins: range) -> None:
        torch = self._torch
        stream = torch.cuda.Stream()
        pinned = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        copied = [torch.cuda.Event() for _ in pinned]
        for number, begin in enumerate(begins):
            source, done = pinned[number % 2], copied[number % 2]
            done.synchronize()
            target = self._target[begin : begin + PIECE_BYTES]
            _read(descriptor, memoryview(source.numpy())[: len(target)], begin)
            with torch.cuda.stream(stream):
                target.copy_(source[: len(target)], non_blocking=True)
                done.record(stream)
        stream.synchronize()


def _read(descriptor: int, into: memoryview, begin: int) -> None:
    n_read = 0
    while n_read < len(into):
        n = os.preadv(descriptor, [into[n_read:]], begin + n_read)
        if n == 0:
            raise EOFError("the file became shorter")
        n_read += n


def open_target(n_bytes: int) -> HostCopy | GpuCopy:
    try:
        torch = import_module("torch")
    except ImportError:
        return HostCopy(n_bytes)
    return GpuCopy(torch, n_bytes) if torch.cuda.is_available() else HostCopy(n_bytes)


def copy_in_threads(target: HostCopy | GpuCopy, descriptor: int, n_bytes: int, n_threads: int) -> None:
    shares = [range(number * PIECE_BYTES, n_bytes, n_threads * PIECE_BYTES) for number in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(lambda share: target.pieces(descriptor, share), shares))


def measure(file: Path, ways: list[str], threads: list[int], n_times: int) -> dict[str, list[float]]:
    n_bytes = file.stat().st_size
    target = open_target(n_bytes)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        descriptor = opened.fileno()
        of_way: dict[str, Callable[[], None]] = {}
        if "pinned" in ways:
            for n in threads:
                of_way[f"pinned {n}"] = lambda n=n: copy_in_threads(target, descriptor, n_bytes, n)  # type: ignore[misc]
        if "mapped" in ways:
            of_way["mapped"] = lambda: target.mapped(mapped)
        copy_in_threads(target, descriptor, n_bytes, max(threads))
        taken: dict[str, list[float]] = {way: [] for way in of_way}
        for _ in range(n_times):
            for way, copy in of_way.items():
                began_s = monotonic()
                copy()
                taken[way].append(monotonic() - began_s)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ways", default="pinned,mapped", help="default: pinned,mapped")
    parser.add_argument("--threads", default="1,8", help="of pinned; default: 1,8")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    threads = [int(number) for number in args.threads.split(",")]
    print(json.dumps(measure(args.file, args.ways.split(","), threads, args.times)))


if __name__ == "__main__":
    main()
