"""What all Python tests share: where the program, the models and llama.cpp's sources are, and how much to run.

Nothing here starts an engine; nothing here knows what a test checks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.near_ties"]

ROOT = Path(__file__).resolve().parent.parent
TEST_MODELS_DIR = ROOT / "build" / "test-models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the full volumes instead of the short form")
    parser.addoption("--gpu", action="store_true", help="the daemon computes on a GPU here: its own noise and KV type")
    parser.addoption(
        "--models-dir",
        type=Path,
        default=None,
        metavar="DIR",
        help="folder with the models that are not in the repository (luce-tiny-BF16.gguf, luce-tiny-moe-Q8_0.gguf, …)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """What hangs on neither the machine nor the day: the same examples each time (--full draws twice as many new ones),
    as long as they take; no answer that loses text; engines that leave each other the cores; and programs that hear the
    signals they are sent."""
    hypothesis.settings.register_profile(
        "suite",
        max_examples=100 if config.getoption("--full") else 50,
        deadline=None,
        derandomize=not config.getoption("--full"),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("suite")
    os.environ["LUCE_CHECK_ANSWERS"] = "1"  # of all answers, those of servers that tests start too
    # Several engines share a core here: a thread that spins while it waits takes the core from the one it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # In the background of a script, or under nohup, these are ignored, and so they would be by all that is started
    # here. A handler of our own is not handed down: children begin with the default.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        for item in items:
            if item.get_closest_marker("full_only"):
                item.add_marker(pytest.mark.skip(reason="left out: --full runs it"))


@dataclass(frozen=True)
class GoldenCase:
    """A prompt, the reference's greedy continuation, and how far the best token led at each step."""

    kind: str
    prompt: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    text: str


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether the full volumes are wanted."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> bool:
    """Whether the daemon computes on a GPU here."""
    return bool(request.config.getoption("--gpu"))


@pytest.fixture(scope="session")
def luced() -> Path:
    """The native daemon that the package installed (or LUCE_DAEMON_BINARY names)."""
    from luce.supervisor.engine.locate import find_luced

    return find_luced()


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The packaged model, from the repository."""
    return ROOT / "models" / "luce-tiny-Q8_0.gguf"


@pytest.fixture(scope="session")
def packaged_draft() -> Path:
    """Its drafter."""
    return ROOT / "models" / "luce-tiny-dflash-Q8_0.gguf"


@pytest.fixture(scope="session")
def data_models() -> Path:
    """The models and checkpoints that are test data."""
    return ROOT / "tests" / "data" / "models"


@pytest.fixture(scope="session")
def test_models() -> Path:
    """A folder with one tiny random model a family, NAME.gguf; made on first use and kept under build/."""
    from_script = (ROOT / "scripts" / "make_test_models.py").read_bytes()
    stamp = TEST_MODELS_DIR / "made-by.py"
    if not stamp.is_file() or stamp.read_bytes() != from_script:
        TEST_MODELS_DIR.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_test_models.py"), str(TEST_MODELS_DIR)],
            check=True,
            timeout=600,
        )
    return TEST_MODELS_DIR


def fetch_real_models(*names: str) -> list[Path]:
    """Their files; fetched on first use and kept in the cache folder. Of several workers one fetches."""
    fetched = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "real_models"), *names],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if fetched.returncode != 0:
        pytest.fail(f"this test needs a real model:\n{fetched.stderr}", pytrace=False)
    return [Path(line) for line in fetched.stdout.splitlines()]


@pytest.fixture(scope="session")
def smollm() -> Path:
    """SmolLM2-135M-Instruct (scripts/real_models)."""
    return fetch_real_models("smollm")[0]


@pytest.fixture(scope="session")
def real_models(full: bool) -> dict[str, Path]:
    """smollm, qwen and gemma; with --full alone."""
    if not full:
        pytest.skip("left out: fetches 800 MB of models; --full does it")
    names = ("smollm", "qwen", "gemma")
    return dict(zip(names, fetch_real_models(*names), strict=True))


@pytest.fixture(scope="session")
def llama_templates_dir() -> Path:
    """The chat templates that come with llama.cpp's sources, in the tree that was built."""
    for cache in sorted((ROOT / "build").glob("*/CMakeCache.txt"), key=lambda path: path.stat().st_mtime, reverse=True):
        match = re.search(r"^llama\.cpp_SOURCE_DIR:STATIC=(.+)$", cache.read_text(), re.MULTILINE)
        if match is not None and (templates := Path(match[1]) / "models" / "templates").is_dir():
            return templates
    pytest.fail("no build folder with llama.cpp's sources under build/: run scripts/test, which makes one")


@pytest.fixture(scope="session")
def golden(data_models: Path) -> list[GoldenCase]:
    """The reference's continuations of twelve prompts (tests/data/models/golden-q8_0.json)."""
    cases = json.loads((data_models / "golden-q8_0.json").read_text())["cases"]
    return [
        GoldenCase(
            case["kind"],
            case["prompt"],
            tuple(case["prompt_ids"]),
            tuple(case["tokens"]),
            tuple(case["margins"]),
            case["text"],
        )
        for case in cases
    ]


@pytest.fixture(scope="session")
def shared_models(request: pytest.FixtureRequest) -> Path:
    """The folder of the models that are not in the repository. A test that wants it is left out, and says so, when
    --models-dir names none."""
    folder: Path | None = request.config.getoption("--models-dir")
    if folder is None:
        pytest.skip("left out: needs models that are not in the repository; name their folder with --models-dir")
    if not folder.is_dir():
        pytest.fail(f"--models-dir {folder} is no folder")
    return folder
