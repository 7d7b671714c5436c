"""Whatever stands in a checkpoint, its tokenizer or its target: it is converted or refused, and a result can be read.

Seeded, so that what fails once fails again; --full runs many more.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.conversion import ConversionError, OutputType, convert_checkpoint
from luce.supervisor.models.gguf_header import read_gguf_header
from tests.conversion.checkpoints import N_TARGET_LAYERS, Checkpoint, checkpoint, write_target

N_SHORT, N_FULL = 60, 10_000

VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, -1, 7, 15, 16, 31, 32, 64, 511, 512, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**40,
    0.0, -0.0, 0.5, 1.0, 1e-45, 3.4e38, 3.5e38, 1e308, -1e308, "", "0", "silu", "yarn", "linear", "llama3", "BF16",
    "F16", "F32", "F64", "\ud800", "\x00", "%s%n", "x" * 5000, [], [[]], [0], [0, 2], [1, 1], [-1], [2**70],
    ["full_attention"] * 2, ["sliding_attention"] * 2, {}, {"a": {}}, {"rope_theta": 5},
    {"rope_type": "yarn", "factor": 2},
]  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [place for inner in value.values() for place in places(inner)]
    if isinstance(value, list):
        return [(value, index) for index in range(len(value))] + [place for inner in value for place in places(inner)]
    return []


def spoil_json(generator: random.Random, value: dict[str, Any]) -> None:
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        found = places(value)
        if not found:
            return
        container, key = generator.choice(found)
        action = generator.random()
        if action < 0.1 and isinstance(container, dict):
            container[generator.choice(["dtype", "rope_theta", "sliding_window", "is_causal", "x", ""])] = (
                container.pop(key)
            )
        elif action < 0.2:
            del container[key]
        elif action < 0.35 and isinstance(container[key], int):
            container[key] += generator.choice([-1, 1, 2, -2, 64, -64, 2**32])
        else:
            container[key] = copy.deepcopy(generator.choice(VALUES))


def spoil_bytes(generator: random.Random, raw: bytes, n_first: int) -> bytes:
    data = bytearray(raw)
    for _ in range(generator.randint(1, 4)):
        data[generator.randrange(min(n_first, len(data)))] = generator.choice([0, 1, 0x22, 0x7B, 0x7F, 0x80, 0xFF])
    if generator.random() < 0.2:
        del data[generator.randrange(len(data)) :]
    return bytes(data)


def config(generator: random.Random, source: Checkpoint) -> None:
    spoil_json(generator, source.config)


def header(generator: random.Random, source: Checkpoint) -> None:
    spoil_json(generator, source.header)


def config_bytes(generator: random.Random, source: Checkpoint) -> None:
    raw = json.dumps(source.config).encode()
    source.raw_config = spoil_bytes(generator, raw, len(raw))


def header_bytes(generator: random.Random, source: Checkpoint) -> None:
    raw = json.dumps(source.header).encode()
    source.raw_header = spoil_bytes(generator, raw, len(raw))
    source.length = generator.choice([None, len(raw), generator.randrange(1 << 20), generator.getrandbits(64)])


def data(generator: random.Random, source: Checkpoint) -> None:
    source.data = bytearray(spoil_bytes(generator, bytes(source.data), len(source.data)))


@pytest.mark.parametrize("spoil", [config, header, config_bytes, header_bytes, data])
def test_spoilt_checkpoints(
    spoil: Callable[[random.Random, Checkpoint], None], tmp_path: Path, target: Path, full: bool
) -> None:
    generator = random.Random(spoil.__name__)
    out = tmp_path / "out.gguf"
    whole = checkpoint(generator.choice(["BF16", "F16", "F32"]))
    for _ in range(N_FULL if full else N_SHORT):
        source = copy.deepcopy(whole)
        spoil(generator, source)
        try:
            convert_checkpoint(source.write(tmp_path / "drafter"), target, out, generator.choice(list(OutputType)))
        except ConversionError as error:
            assert str(error).isprintable()  # noqa: PT017  # it may also pass
        else:
            layers = read_gguf_header(out).metadata["dflash.target_layers"]
            assert isinstance(layers, tuple)
            assert all(isinstance(layer, int) and 0 <= layer <= N_TARGET_LAYERS for layer in layers)


def test_spoilt_tokenizers(tmp_path: Path, target_folder: Path, full: bool) -> None:
    generator = random.Random(3)
    folder = checkpoint().write(tmp_path / "drafter")
    whole = json.loads((target_folder / "tokenizer.json").read_text())
    kept = dict(list(whole["model"]["vocab"].items())[:24])
    whole["model"] |= {"vocab": kept, "merges": whole["model"]["merges"][:8]}
    for number, token in enumerate(whole["added_tokens"]):
        token["id"] = 24 + number % 8
    names = {token: text for text, token in kept.items()}
    target = write_target(tmp_path / "target.gguf", tokens=[names.get(token, f"[PAD{token}]") for token in range(32)])
    sides = json.loads((target_folder / "tokenizer_config.json").read_text())
    for _ in range(N_FULL if full else N_SHORT):
        tokenizer, side = copy.deepcopy(whole), copy.deepcopy(sides)
        spoil_json(generator, generator.choice([tokenizer, side]))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(json.dumps(side))
        for source in (None, target):  # of the vocabulary; with a target the folder's is held against it
            try:
                convert_checkpoint(folder, source, tmp_path / "out.gguf", OutputType.Q8_0)
            except ConversionError:
                continue
            read_gguf_header(tmp_path / "out.gguf")


def test_spoilt_targets(tmp_path: Path, full: bool) -> None:
    generator = random.Random(5)
    folder = checkpoint().write(tmp_path / "drafter")
    target = write_target(tmp_path / "target.gguf", sections=[1, 2, 3, 0])
    whole = target.read_bytes()
    spoilt = tmp_path / "spoilt.gguf"
    for _ in range(N_FULL if full else N_SHORT):
        spoilt.write_bytes(spoil_bytes(generator, whole, 1500))
        try:
            convert_checkpoint(folder, spoilt, tmp_path / "out.gguf", OutputType.BF16)
        except ConversionError:
            continue
        read_gguf_header(tmp_path / "out.gguf")
