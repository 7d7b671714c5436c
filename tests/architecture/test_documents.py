"""What the documents say of flags and folders is so."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
MAX_ROOM_FILES = 30
FLAG = re.compile(r"--[a-z][a-z-]+")


def flags_of_luced(luced: Path) -> set[str]:
    text = subprocess.run([luced, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    return set(re.findall(r"^\s+(--[a-z][a-z-]+)", text, re.MULTILINE))


def test_readme_names_every_flag_of_luced(luced: Path) -> None:
    table = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `--")]
    named = {flag for line in table for flag in FLAG.findall(line.split(" | ", 1)[0])}
    assert named == flags_of_luced(luced)


def test_luce_daemon_offers_every_flag_of_luced(luced: Path) -> None:
    from luce.supervisor.cli.daemon import command

    offered = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    assert flags_of_luced(luced) - {"--help"} <= offered


def test_every_option_teaches() -> None:
    from luce.supervisor.cli.daemon import command

    for option in command.params:
        assert isinstance(option, click.Option)
        assert option.help, f"{option.opts} has no help"
        assert len(option.help) >= 20 or option.help.endswith("."), f"{option.opts}: {option.help}"


def test_the_tree_in_the_readme_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    section = text.split("## How it is laid out", 1)[1].split("##", 1)[0]
    folders = re.findall(r"^    ([a-z]+)/ ", section, re.MULTILINE)
    assert len(folders) >= 8
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_the_folders_of_native_are_described() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    tree = text.split("## native/", 1)[1].split("```")[1]
    described = set(re.findall(r"^([a-z]+)/", tree, re.MULTILINE))
    there = {path.name for path in (ROOT / "native").iterdir() if path.is_dir()}
    assert described == there


def test_the_modules_of_the_supervisor_are_described() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    tree = text.split("## supervisor/", 1)[1].split("```")[1]
    described = set(re.findall(r"^([a-z_]+)/? ", tree, re.MULTILINE))
    parts = [path for path in (ROOT / "supervisor").iterdir() if path.suffix == ".py" or path.is_dir()]
    assert described == {path.stem for path in parts} - {"__init__", "__pycache__"}


def test_the_modules_of_http_are_described() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    tree = text.split("### supervisor/http/", 1)[1].split("```")[1]
    described = set(re.findall(r"^([a-z_]+)/? ", tree, re.MULTILINE))
    parts = [path for path in (ROOT / "supervisor" / "http").iterdir() if path.suffix == ".py" or path.is_dir()]
    assert described == {path.stem for path in parts} - {"__init__", "__pycache__"}


def test_every_room_of_the_supervisor_says_what_it_is_for_and_whom_it_calls() -> None:
    for package in (ROOT / "supervisor").rglob("__init__.py"):
        text = package.read_text()
        assert text.startswith('"""'), package
        if package.parent.parent.name == "http":
            assert "Called by" in text, package
            assert "Calls" in text or "Knows" in text, package


def test_rooms_stay_small() -> None:
    for top in ("supervisor", "native"):
        for folder in (ROOT / top).rglob("*"):
            if folder.is_dir() and folder.name != "__pycache__":
                n_files = sum(path.suffix in {".py", ".cpp"} for path in folder.iterdir())
                assert n_files <= MAX_ROOM_FILES, f"{folder.relative_to(ROOT)} has {n_files} files: give it rooms"


def test_links_lead_somewhere() -> None:
    for document in (ROOT / "README.md", ROOT / "docs" / "ARCHITECTURE.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_example_in_the_readme_runs(luced: Path) -> None:
    assert luced.is_file()
    section = (ROOT / "README.md").read_text().split("## From Python", 1)[1].split("\n## ", 1)[0]
    code = textwrap.dedent("\n".join(line for line in section.splitlines() if line.startswith("    ") or line == ""))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 16
