"""`luce inspect`: right on every family, by the engine's own account, and unharmed by hostile files."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from luce.supervisor.models.gguf_header import GgufError, read_gguf_header
from luce.supervisor.models.model_memory import LayerKind, ModelMemory, model_memory
from tests.cli.conftest import Run

CTX = 1024
FAMILIES = ["qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]


def account_of(path: Path) -> ModelMemory:
    return model_memory(read_gguf_header(path))


def engine_account(luced: Path, path: Path, cache_type: str) -> list[tuple[float, int]]:
    """What luced allocates: (MiB, layers) of each cache, as llama.cpp's log has it."""
    arguments = ["--ctx", str(CTX), "--lanes", "1", "--log-level", "debug", "--gpu-layers", "0"]
    result = subprocess.run(
        [luced, "--model", path, *arguments, "--cache-type-k", cache_type, "--cache-type-v", cache_type],
        input=b"quit\n",
        capture_output=True,
        timeout=120,
        check=True,
    )
    pattern = rb"llama_(?:kv_cache|memory_recurrent): size =\s+([\d.]+) MiB \(\s*\d+ cells,\s+(\d+) layers"
    return [(float(size), int(n_layers)) for size, n_layers in re.findall(pattern, result.stderr)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache_type", ["q8_0", "f16"])
def test_the_memory_is_what_the_engine_takes(luced: Path, test_models: Path, family: str, cache_type: str) -> None:
    path = test_models / f"{family}.gguf"
    account = account_of(path)
    taken_mib = sum(size for size, _ in engine_account(luced, path, cache_type))
    expected = account.bytes_per_token(cache_type) * CTX + account.bytes_per_lane(cache_type)
    assert taken_mib == pytest.approx(expected / 2**20, abs=0.03)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("qwen3", {LayerKind.ATTENTION: 4}),
        ("qwen35", {LayerKind.ATTENTION: 2, LayerKind.RECURRENT: 6}),
        ("gemma4", {LayerKind.ATTENTION: 2, LayerKind.WINDOW: 4}),
        ("laguna", {LayerKind.ATTENTION: 2, LayerKind.WINDOW: 3}),
    ],
)
def test_layers_by_kind(test_models: Path, family: str, layers: dict[LayerKind, int]) -> None:
    account = account_of(test_models / f"{family}.gguf")
    assert {kind: account.count(kind) for kind in LayerKind if account.count(kind) > 0} == layers


def test_what_fits_grows_with_the_memory(tiny_model: Path) -> None:
    account = account_of(tiny_model)
    assert account.context_in(1 << 20, "q8_0") == 0  # not even the weights
    small, large = account.context_in(1 << 28, "q8_0"), account.context_in(1 << 30, "q8_0")
    assert small is not None
    assert large is not None
    assert 0 < small < large
    in_f16 = account.context_in(1 << 30, "f16")
    assert in_f16 is not None
    assert in_f16 < large


def test_the_tables_and_the_json(run: Run, tiny_model: Path) -> None:
    table = run("luce", "inspect", tiny_model, "--memory", "2G")
    assert table.returncode == 0
    assert b"3 attention, 9 recurrent" in table.stdout
    assert b"15 more for drafts" in table.stdout
    assert b"2.0 GiB" in table.stdout
    values = json.loads(run("luce", "inspect", tiny_model, "--memory", "2G", "--json").stdout)
    assert values["architecture"] == "qwen35"
    assert values["memory_bytes"] == 2 * 2**30
    assert values["parameters"] == 17_710_416


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(40), "GGUF"),
        (b"GGUF\x09\x00\x00\x00" + bytes(16), "version 9"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, "claims"),
        (b"GGUF\x03\x00\x00\x00" + bytes(16), "architecture"),
    ],
)
def test_files_that_are_no_model(run: Run, tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    result = run("luce", "inspect", path)
    assert (result.returncode, result.stdout) == (1, b"")
    assert text.encode() in result.stderr
    assert b"Traceback" not in result.stderr


def test_missing_files_and_folders(run: Run, tmp_path: Path) -> None:
    assert b"No such file" in run("luce", "inspect", tmp_path / "none.gguf").stderr
    assert b"Is a directory" in run("luce", "inspect", tmp_path).stderr
    assert run("luce", "inspect", tmp_path, "--memory", "much").returncode == 64


def test_mutated_headers_are_read_or_refused(tiny_model: Path, tmp_path: Path, full: bool) -> None:
    whole = tiny_model.read_bytes()[: 1 << 19]
    generator = random.Random(7)
    path = tmp_path / "mutated.gguf"
    for _ in range(10_000 if full else 80):
        data = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            at = generator.choice([generator.randrange(2000), generator.randrange(len(data))])
            data[at] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.randrange(256)])
        if generator.random() < 0.2:
            del data[generator.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            account = account_of(path)
        except GgufError:
            continue
        for cache_type in ("f16", "q8_0"):
            account.context_in(1 << 34, cache_type)


def plan_of(run: Run, path: Path, *arguments: str) -> dict[str, int | str]:
    result = run("luce", "inspect", path, "--plan", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    plan: dict[str, int | str] = json.loads(result.stdout)
    return plan


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_counts_what_the_account_counts(run: Run, test_models: Path, family: str) -> None:
    path = test_models / f"{family}.gguf"
    account = account_of(path)
    plan = plan_of(run, path, "--gpu", "8G", "--ctx", "1024", "--lanes", "2")
    assert plan["gpu_layers"] == plan["layers"] + 1  # type: ignore[operator]  # a number
    assert plan["ctx"] == 1024
    weights = int(plan["gpu_weights"]) + int(plan["host_weights"])
    assert account.weight_bytes <= weights <= 1.5 * account.weight_bytes  # tied ones lie in both
    assert int(plan["gpu_cache"]) >= account.bytes_per_token("f16") * 1024


def test_a_small_card_gets_less_and_says_so(run: Run, test_models: Path) -> None:
    path = test_models / "qwen3moe.gguf"
    small = plan_of(run, path, "--gpu", "1113M", "--ctx", "512")
    assert small["gpu_layers"] == 0
    assert small["gpu_used"] == 0
    shown = run("luce", "inspect", path, "--plan", "--gpu", "8G", "--host", "1M")
    assert shown.returncode == 0
    for words in (b"What lies where", b"layers on the GPU", b"left free"):
        assert words in shown.stdout, shown.stdout


def test_a_plan_needs_a_card_and_a_card_a_plan(run: Run, test_models: Path) -> None:
    path = test_models / "qwen3.gguf"
    without_plan = run("luce", "inspect", path, "--gpu", "8G")
    assert without_plan.returncode == 64
    assert b"go with --plan" in without_plan.stderr
    without_card = run("luce", "inspect", path, "--plan")
    assert without_card.returncode == 1
    assert b"--gpu 24G plans for one" in without_card.stderr
