"""The official SDKs in the oldest version that is supported and in the newest that there is (`--full`, from the package
index); every run uses those that the tests have installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.serving import Server

TOUR = Path(__file__).with_name("sdk_tour.py")
OLDEST = {"openai": "1.66.0", "anthropic": "0.40.0"}
"""The first with the Responses API; and one from before extended thinking. docs/agents.md says so."""
# What these versions do not bound, and can no longer do with.
BESIDE_OLDEST = ("httpx<0.28",)
INSTALL_S, TOUR_S = 600, 300


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[Server]:
    running = Server(tiny_model, {})
    try:
        yield running.start()
    finally:
        running.stop()


def tour(name: str, url: str, folder: Path | None = None) -> dict[str, str]:
    environment = dict(os.environ) if folder is None else {**os.environ, "PYTHONPATH": str(folder)}
    ended = subprocess.run(
        [sys.executable, TOUR, name, url], env=environment, capture_output=True, text=True, timeout=TOUR_S, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("name", OLDEST)
def test_the_installed_version(server: Server, name: str) -> None:
    assert tour(name, server.url)["version"]


@pytest.mark.parametrize("name", OLDEST)
@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_other_versions(server: Server, name: str, age: str, full: bool, tmp_path: Path) -> None:
    if not full:
        pytest.skip("left out: it installs other versions of the SDKs; --full does so")
    wanted = [f"{name}=={OLDEST[name]}", *BESIDE_OLDEST] if age == "oldest" else [name]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(tmp_path)]
    subprocess.run([*pip, "--upgrade", *wanted], timeout=INSTALL_S, check=True)
    found = tour(name, server.url, tmp_path)
    assert Path(found["path"]).is_relative_to(tmp_path)
    assert age == "newest" or found["version"] == OLDEST[name]
