"""Random protocol histories (10,000 with --full): each command gets its one reply, each answer is the right one, and
nothing is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from luce.protocol import ReadyLine
from tests.daemon.conftest import Start
from tests.daemon.histories import N_SLOTS, Player, Reference, make_prompts, make_references
from tests.daemon.same_tokens import NOISE_CUTS, NOISE_GPU, NOISE_RANDOM

N_COMMANDS = 30
BATCH = 50
N_BATCHES = 5
N_PARTS = 10
MODELS = {"tiny": NOISE_CUTS, "qwen3": NOISE_RANDOM, "gemma4": NOISE_RANDOM, "qwen35": NOISE_RANDOM}


def small_budgets(rng: random.Random, ready: ReadyLine, folder: Path) -> list[str]:
    """A daemon on which everything has to make way for something."""
    fields = dict(ready.fields)
    text_bytes = 4 * int(fields["page_bytes"]) + 2 * int(fields["tail_bytes"]) + 8 * int(fields["vocab"])
    pool = rng.choice([256, 300, 512])
    arguments = ["--ctx", "256", "--pool", str(pool), "--lanes", str(rng.randrange(1, 5)), "--slots", str(N_SLOTS)]
    arguments += ["--host-cache", str(rng.choice([0, 1, 3, 10, 100]) * text_bytes)]
    if rng.random() < 0.5:
        arguments += ["--disk-cache", str(folder / "cache"), "--disk-budget", str(rng.choice([1, 5, 100]) * text_bytes)]
    return arguments


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In parts, so that several processes can share the 10,000."""
    if "part" in metafunc.fixturenames:
        metafunc.parametrize("part", range(N_PARTS if metafunc.config.getoption("--full") else 1))


@pytest.mark.parametrize("family", MODELS)
def test_random_histories(
    start: Start, tiny_model: Path, test_models: Path, tmp_path: Path, family: str, part: int, full: bool, gpu: bool
) -> None:
    model = tiny_model if family == "tiny" else test_models / f"{family}.gguf"
    alone = start("--lanes", "1", "--ctx", "256", model=model)
    references = make_references(alone, make_prompts(1, 230))
    ready = alone.ready
    alone.close()
    n_batches, n_histories = (N_BATCHES, BATCH) if full else (2, 2 if family == "tiny" else 6)
    for batch in range(part * n_batches, (part + 1) * n_batches):
        play_batch(
            start, model, references, ready, tmp_path, f"{family} {batch}", n_histories, MODELS[family], gpu, full
        )


def play_batch(
    start: Start, model: Path, references: list[Reference], ready: ReadyLine, tmp_path: Path, seed: str, n: int,
    noise: float, gpu: bool, full: bool,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    folder = tmp_path / seed.replace(" ", "-")
    folder.mkdir()
    arguments = small_budgets(rng, ready, folder)
    print(f"batch {seed!r}: {' '.join(arguments)}")
    daemon = start(*arguments, model=model, mux=rng.random() < 0.6)
    noise = max(noise, NOISE_GPU) if gpu else noise
    player = Player(daemon, references, folder, rng.randrange(1 << 30), noise, may_all_part=gpu or full)
    try:
        for _ in range(n):
            player.play(N_COMMANDS)
            player.check_no_sentinel_is_left()
        player.finish()
    except BaseException:
        print("\n".join(line[:200] for line in player.log[-120:]))
        raise
    assert daemon.close() == 0
    print(dict(player.kinds))
