"""What a wheel and a source distribution hold, and what they must not. The project's own backend makes each once: the
wheel from the tree in build/venv, which is built already, so that nothing is compiled.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
LICENSES = ("LICENSE", "NOTICE", *(f"licenses/{path.name}" for path in sorted((ROOT / "licenses").glob("*.txt"))))
MODELS = ("luce-tiny-Q8_0.gguf", "luce-tiny-dflash-Q8_0.gguf")


def make(kind: str, folder: Path, settings: dict[str, str]) -> Path:
    code = f"from scikit_build_core.build import build_{kind} as build; build({str(folder)!r}, {settings!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    [made] = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Path below the top folder -> contents."""
    files: dict[str, bytes] = {}
    with tarfile.open(make("sdist", tmp_path_factory.mktemp("sdist"), {})) as archive:
        for member in archive:
            data = archive.extractfile(member)
            if data is not None:
                files[member.name.partition("/")[2]] = data.read()
    return files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    if not (ROOT / "build" / "venv" / "CMakeCache.txt").is_file():
        pytest.skip("left out: needs the tree that scripts/test builds in build/venv")
    settings = {"build-dir": "build/venv"}
    with zipfile.ZipFile(make("wheel", tmp_path_factory.mktemp("wheel"), settings)) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_a_wheel_has_what_runs_and_nothing_else(wheel: dict[str, bytes]) -> None:
    for name in ("bin/luced", "lib/libluce_text.so", *(f"models/{model}" for model in MODELS)):
        assert f"luce/{name}" in wheel
    for package in ("supervisor", "protocol"):
        modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert {f"luce/{module}" for module in modules} <= set(wheel)
        assert f"luce/{package}/py.typed" in wheel
    assert {f"luce/ray/{path.name}" for path in (ROOT / "cluster/ray").glob("*.py")} <= set(wheel)
    strange = [name for name in wheel if not name.startswith("luce/") and ".dist-info/" not in name]
    assert strange == []
    for name in wheel:
        assert "/tests/" not in name, name
        assert Path(name).suffix not in {".cpp", ".h", ".pyc", ".md"}, name


def test_a_wheel_has_the_licenses_and_says_what_it_is(wheel: dict[str, bytes]) -> None:
    [info] = {name.partition("/")[0] for name in wheel if ".dist-info/" in name}
    for license_file in LICENSES:
        assert wheel[f"{info}/licenses/{license_file}"] == (ROOT / license_file).read_bytes()
    metadata = wheel[f"{info}/METADATA"].decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert b"luce = luce.supervisor.cli.app:main" in wheel[f"{info}/entry_points.txt"]
    assert b"Tag: py3-none-" in wheel[f"{info}/WHEEL"]


def test_a_source_distribution_can_be_built_from(sdist: dict[str, bytes]) -> None:
    wanted = ("CMakeLists.txt", "pyproject.toml", "README.md", "native/main.cpp", "cmake/FetchLlama.cmake", *LICENSES)
    for name in (*wanted, *(f"models/{model}" for model in MODELS), "supervisor/py.typed", "protocol/py.typed"):
        assert name in sdist
    assert b"Name: luce-daemon" in sdist["PKG-INFO"]
    for name in sdist:
        parts = Path(name).parts
        assert parts[0] not in {"build", "dist", ".venv", ".git"}, name
        assert "__pycache__" not in parts, name


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_nothing_names_the_machine_it_was_made_on(kind: str, request: pytest.FixtureRequest) -> None:
    """Nor do the programs: llama.cpp's assertions hold paths of sources, without the folders above them."""
    files: dict[str, bytes] = request.getfixturevalue(kind)
    for path in (str(ROOT), str(Path.home() / ".cache"), sys.prefix):
        assert [name for name, data in files.items() if path.encode() in data] == []
