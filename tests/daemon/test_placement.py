"""Options that say where a model's weights lie: with each of them the same answers, and what cannot be is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.daemon.conftest import Start
from tests.daemon_driver import random_prompt

WAYS = [
    ("--cpu-moe",),
    ("--n-cpu-moe", "2"),
    ("--override-tensor", r"blk\.1\.ffn_.*_exps=CPU,attn_q=CPU"),
    ("--device", "none"),
    ("--split-mode", "none", "--main-gpu", "0"),
    ("--split-mode", "row", "--tensor-split", "3,1"),
    ("--no-mmap",),
    ("--mlock",),
    ("--no-mmap", "--mlock"),
]


def test_wherever_weights_lie_the_answer_is_the_same(start: Start, test_models: Path) -> None:
    model = test_models / "qwen3moe.gguf"
    prompt = random_prompt(60, seed=4)
    shape = ("--ctx", "256", "--lanes", "1", "--load-timeout", "120")
    expected = start(*shape, model=model).generate(prompt, 24).tokens
    for way in WAYS:
        daemon = start(*shape, *way, model=model)
        assert daemon.generate(prompt, 24).tokens == expected, way
        assert daemon.close() == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--device", "Nowhere"), "--device: there is no 'Nowhere'"),
        (("--tensor-split", "3,x"), "--tensor-split takes numbers"),
        (("--tensor-split", ""), "--tensor-split takes a value"),
        (("--split-mode", "columns"), "--split-mode takes one of"),
        (("--override-tensor", "exps=Moon"), "there is no buffer 'Moon' (there are: CPU"),
        (("--override-tensor", "(=CPU"), "'(' is no regular expression"),
        (("--n-cpu-moe", "-1"), "--n-cpu-moe takes a whole number"),
        (("--device", "none", "--moe-cache-mib", "16"), "--moe-cache-mib: no GPU is used"),
        (("--split-mode", "tensor"), "--split-mode tensor: there is no GPU to split tensors over"),
        (("--split-mode", "tensor", "--mtp"), "--split-mode tensor cannot be had together with --mtp"),
        (("--split-mode", "tensor", "--kv-offload", "8192"), "cannot be had together with --kv-offload"),
        (("--split-mode", "tensor", "--flash-attn", "off"), "--split-mode tensor needs flash attention"),
        (("--fit", "perhaps"), "--fit takes one of on, off"),
        (("--gpu-memory", "-1"), "--gpu-memory takes a number of bytes"),
        (("--plan",), "there is no GPU here"),
        (("--plan", "--plan-gpus", "8G,"), "--plan-gpus takes a number of bytes"),
        (("--plan", "--plan-gpus", "many"), "--plan-gpus takes a number of bytes"),
        (("--plan", "--plan-gpus", "8G", "--cache-type-k", "q9"), "q9"),
    ],
)
def test_a_place_that_there_is_not_is_refused(
    luced: Path, tiny_model: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = subprocess.run(
        [luced, "--model", tiny_model, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode in {2, 64}, ended
    assert ended.stdout.startswith("err start_failed "), ended.stdout
    assert says in ended.stdout


def test_a_plan_of_a_damaged_file_is_refused(luced: Path, test_models: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    whole = (test_models / "qwen3moe.gguf").read_bytes()
    for n_bytes in (0, 3, 20, 1000, len(whole) // 2):
        damaged.write_bytes(whole[:n_bytes])
        ended = subprocess.run(
            [luced, "--model", damaged, "--plan", "--plan-gpus", "8G"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert ended.returncode == 2, (n_bytes, ended)
        assert ended.stdout.startswith("err start_failed "), (n_bytes, ended)


@pytest.mark.parametrize("name", ["bert", "bert-rank"])
def test_a_plan_is_of_a_model_that_writes_answers(luced: Path, test_models: Path, name: str) -> None:
    ended = subprocess.run(
        [luced, "--model", test_models / "embeddings" / f"{name}.gguf", "--plan", "--plan-gpus", "8G"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert ended.stdout.startswith("err start_failed "), ended
