"""llama.cpp's own log-probabilities: llama-perplexity reads a text in windows and saves the logits of each one's second
half. Its file is read from a pipe as it is written: of a large vocabulary it has gigabytes. It must not know what they
are compared with.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MAGIC = b"_logits_"
RUN_S = 3600
N_HEADER = 4  # 16-bit words in front of a row: its scale and its least log-probability
RESOLUTION = 0.00025
"""Of a log-probability: 16 nats in 65,535 steps. A token more than 16 nats below the likeliest has the least one."""


@dataclass(frozen=True)
class Window:
    tokens: tuple[int, ...]
    """As they stand in the text. A model that wants a BOS token has read it in place of the first one."""
    first: int
    """The first token that has a log-probability."""
    logprobs: tuple[float, ...]
    """Natural logarithms, of tokens[first:], off by half of RESOLUTION at most."""
    are_floor: tuple[bool, ...]
    """Of each: the token has no more than this, however much less."""


def read_windows(file: IO[bytes]) -> Iterator[Window]:
    """Raises ValueError where it is no such file, or has been cut."""
    if _take(file, len(MAGIC)) != MAGIC:
        raise ValueError("no file of llama-perplexity --save-all-logits")
    n_window, n_vocab, n_windows = struct.unpack("<3i", _take(file, 12))
    ids = struct.unpack(f"<{n_windows * n_window}i", _take(file, 4 * n_windows * n_window))
    n_words = 2 * ((n_vocab + 1) // 2) + N_HEADER
    middle = n_window // 2
    for at in range(0, len(ids), n_window):
        tokens = ids[at : at + n_window]
        told = [_of_token(_take(file, 2 * n_words), token) for token in tokens[middle + 1 :]]
        logprobs, are_floor = zip(*told, strict=True)
        yield Window(tokens, middle + 1, logprobs, are_floor)


def _of_token(row: bytes, token: int) -> tuple[float, bool]:
    scale, least = struct.unpack_from("<2f", row)
    (steps,) = struct.unpack_from("<H", row, 2 * (N_HEADER + token))
    return scale * steps + least, steps == 0


def _take(file: IO[bytes], n_bytes: int) -> bytes:
    taken = file.read(n_bytes)
    if len(taken) != n_bytes:
        raise ValueError("the file of llama-perplexity ends early")
    return taken


def run_perplexity(program: Path, model: Path, text: Path, n_window: int, *options: str) -> list[Window]:
    """Windows of `n_window` tokens, each read from its start; the text needs two at the least. Raises RuntimeError with
    the program's last words where it fails."""
    from_it, to_us = os.pipe()
    command = [str(program), "--model", str(model), "--file", str(text), "--ctx-size", str(n_window)]
    with tempfile.TemporaryFile() as said, os.fdopen(from_it, "rb") as file:
        child = subprocess.Popen(
            [*command, "--save-all-logits", f"/dev/fd/{to_us}", *options],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=(to_us,),
        )  # fmt: skip
        os.close(to_us)
        try:
            windows = list(read_windows(file))
        except ValueError as error:
            child.kill()
            raise RuntimeError(f"{error}: {_last_words(said)}") from None
        finally:
            status = child.wait(RUN_S)
        if status != 0:
            raise RuntimeError(f"llama-perplexity ended with status {status}: {_last_words(said)}")
        return windows


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read()[-2000:].decode("utf-8", "replace")
