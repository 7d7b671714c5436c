"""What the documents say of flags, folders, files and each other is so."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MAX_ROOM_FILES = 30
MAX_README_LINES = 150
MAX_ARCHITECTURE_LINES = 180
MIN_TASKS = 20
FLAG = re.compile(r"--[a-z][a-z-]+")
SCRIPT = re.compile(r"\bscripts/[\w./-]+")
FILE = re.compile(r"`([\w.-]+/[\w./-]*\.(?:py|cpp|h|c|md|json|sh|txt|toml|cmake|html|patch|yml|png))`")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "scripts/bench/README.md")),
    *(ROOT / "protocol" / name for name in ("PROTOCOL.md", "vectors/README.md")),
    *sorted(DOCS.rglob("*.md")),
]


def section(path: Path, title: str) -> str:
    """The text below one heading, up to the next of its level or above."""
    text = path.read_text()
    level = title.split(" ", 1)[0]
    return re.split(rf"^#{{1,{len(level)}}} ", text.split(f"\n{title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def flags_of_luced(luced: Path) -> set[str]:
    text = subprocess.run([luced, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    return set(re.findall(r"^\s+(--[a-z][a-z-]+)", text, re.MULTILINE))


def test_the_reference_names_every_flag_of_luced(luced: Path) -> None:
    rows = section(DOCS / "reference" / "options.md", "## The engine").splitlines()
    named = [flag for row in rows if row.startswith("| `--") for flag in FLAG.findall(row.split(" | ", 1)[0])]
    assert set(named) == flags_of_luced(luced)
    assert len(named) == len(set(named))


def test_luce_daemon_offers_every_flag_of_luced(luced: Path) -> None:
    from luce.supervisor.cli.daemon import command

    offered = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
    asked_by_others = {"--plan", "--plan-gpus", "--plan-host", "--rpc-worker", "--rpc-tensor-cache"}
    assert flags_of_luced(luced) - {"--help"} - asked_by_others <= offered


def test_every_option_teaches() -> None:
    from luce.supervisor.cli.daemon import command

    for option in command.params:
        assert isinstance(option, click.Option)
        if option.hidden:  # accepted for older drivers, and not shown
            continue
        assert option.help, f"{option.opts} has no help"
        assert len(option.help) >= 20 or option.help.endswith("."), f"{option.opts}: {option.help}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_the_architecture_is_short() -> None:
    assert len((DOCS / "ARCHITECTURE.md").read_text().splitlines()) <= MAX_ARCHITECTURE_LINES


def test_the_tree_in_the_readme_is_there() -> None:
    folders = re.findall(r"^    ([a-z]+)/ ", section(ROOT / "README.md", "## How it is laid out"), re.MULTILINE)
    assert len(folders) >= 8
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def drawn(title: str) -> list[str]:
    """What the tree below a heading of folders.md names: `memory/`, `memory/pages/`, `service`."""
    found: list[str] = []
    parent = ""
    for line in section(DOCS / "contributing" / "folders.md", title).split("```")[1].splitlines():
        match = re.match(r"^( {2})?([a-z_.]+/?)(?: |$)", line)
        if match is None:
            continue
        if match[1] is None:
            parent = match[2]
        found.append(match[2] if match[1] is None else parent + match[2])
    return found


def is_room(path: Path) -> bool:
    return path.is_dir() and path.name not in {"__pycache__", "static"}


def rooms(top: Path) -> set[str]:
    """Folders at depth one and two."""
    first = [path for path in top.iterdir() if is_room(path)]
    second = [path for folder in first for path in folder.iterdir() if is_room(path)]
    return {f"{path.relative_to(top)}/" for path in (*first, *second)}


def modules(top: Path) -> set[str]:
    return {path.stem for path in top.glob("*.py")} - {"__init__"}


def test_the_folders_of_native_are_drawn() -> None:
    tree = drawn("## native/")
    assert sorted(tree) == sorted(rooms(ROOT / "native") | {"main.cpp"})


def test_the_modules_and_folders_of_the_supervisor_are_drawn() -> None:
    top = ROOT / "supervisor"
    assert sorted(drawn("## supervisor/")) == sorted(rooms(top) | modules(top))


def test_the_modules_of_http_are_drawn() -> None:
    top = ROOT / "supervisor" / "http"
    folders = {f"{path.name}/" for path in top.iterdir() if is_room(path)}
    assert sorted(drawn("## supervisor/http/")) == sorted(folders | modules(top))


def test_the_modules_of_luce_ray_are_drawn() -> None:
    assert sorted(drawn("## cluster/ray/")) == sorted(modules(ROOT / "cluster/ray"))


def test_every_room_of_the_supervisor_says_what_it_is_for_and_whom_it_calls() -> None:
    for package in (ROOT / "supervisor").rglob("__init__.py"):
        text = package.read_text()
        assert text.startswith('"""'), package
        if package.parent.parent == ROOT / "supervisor" / "http":
            assert "Called by" in text, package
            assert "Calls" in text or "Knows" in text, package


def test_rooms_stay_small() -> None:
    for top in ("supervisor", "native", "cluster/ray"):
        for folder in (ROOT / top).rglob("*"):
            if folder.is_dir() and folder.name != "__pycache__":
                n_files = sum(path.suffix in {".py", ".cpp"} for path in folder.iterdir())
                assert n_files <= MAX_ROOM_FILES, f"{folder.relative_to(ROOT)} has {n_files} files: give it rooms"


def test_the_walk_of_a_request_names_files_that_are_there() -> None:
    walk = section(DOCS / "ARCHITECTURE.md", "## One request")
    sources = [str(path) for top in ("native", "supervisor", "protocol") for path in (ROOT / top).rglob("*.*")]
    names = set(re.findall(r"`([a-z_/]+\.(?:py|cpp|h))`", walk))
    assert len(names) >= 20
    missing = {name for name in names if not any(path.endswith(f"/{name}") for path in sources)}
    assert missing == set()


def test_tasks_name_files_that_are_there() -> None:
    rows = re.findall(r"^\| [A-Z].*\|$", (DOCS / "contributing" / "where.md").read_text(), re.MULTILINE)
    assert len(rows) >= MIN_TASKS
    missing = []
    for row in rows:
        paths = re.findall(r"`([\w./]+/[\w./]+)`", row)
        assert paths, f"no file: {row}"
        missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_private_members_are_listed_by_file() -> None:
    """As many as each file of native/llama reaches."""
    top = ROOT / "native" / "llama"
    reached = {}
    for path in top.rglob("*.cpp"):
        n = len(re.findall(r"^template struct PrivateMember<", path.read_text(), re.MULTILINE))
        if n > 0:
            reached[str(path.relative_to(top))] = n
    table = section(DOCS / "contributing" / "llama_cpp.md", "## Private members of llama.cpp")
    rows = re.findall(r"^\| `([\w/]+\.cpp)` \| (.*?) \|", table, re.MULTILINE)
    assert {file: sum(map(int, re.findall(r"\b(\d+) of", members))) for file, members in rows} == reached


def test_the_glossary_has_each_term_once() -> None:
    text = (DOCS / "GLOSSARY.md").read_text()
    terms = re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \|$", text, re.MULTILINE)
    names = [name.lower() for name, _ in terms]
    assert len(names) == len(set(names)) >= 50
    assert [name for name, meaning in terms if not meaning.endswith(".")] == []


def test_the_page_on_http_names_every_field_of_usage() -> None:
    from luce.protocol import Speculation
    from luce.supervisor.http.answering.answer_events import Usage, speculation_fields

    usage = Usage(
        n_prompt=0,
        n_cached=0,
        cache_tier="none",
        cache_miss="none",
        n_generated=0,
        n_reasoning=0,
        queue_s=0.0,
        prefill_s=0.0,
        decode_s=0.0,
        n_resumes=0,
    )
    fields = [*usage.extension(), *speculation_fields(Speculation())]
    rows = re.findall(r"^\| (`.*?) \|", section(DOCS / "http.md", "## Usage fields"), re.MULTILINE)
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row)] == fields


def heading_ids(path: Path) -> set[str]:
    """The anchors of a document, as GitHub and mkdocs make them of plain headings."""
    titles = re.findall(r"^#+ (.+)$", _without_code(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def _without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def broken_links(document: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(document.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = document.parent / name if name else document
        is_generated = file == DOCS / "commands.md"  # its headings come from click: mkdocs checks these links
        has_headings = file.suffix == ".md" and not is_generated
        if not file.exists() or (anchor and has_headings and anchor not in heading_ids(file)):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_that_are_named_are_there(document: Path) -> None:
    """A command that no longer exists says as of which commit it did."""
    lines = [line for line in document.read_text().splitlines() if "as of commit" not in line]
    paths = [path.rstrip(".") for line in lines for path in SCRIPT.findall(line)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.fixture(scope="module")
def files() -> list[str]:
    """Paths of all files, as `/memory/pages/x.cpp` may end them."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for top in ("native", "supervisor", "protocol", "cluster/ray", "scripts", "tests", "docs", "cmake", "models"):
        found += [path for path in (ROOT / top).rglob("*") if "__pycache__" not in path.parts]
    return [f"/{path.relative_to(ROOT)}" for path in found]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_are_there(document: Path, files: list[str]) -> None:
    """By their path from the root, or from a folder that the text speaks of."""
    lines = [line for line in document.read_text().splitlines() if "as of commit" not in line]
    names = {name for line in lines for name in FILE.findall(line)}
    assert sorted(name for name in names if not any(path.endswith(f"/{name}") for path in files)) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert list(broken_links(document)) == []


def test_the_example_in_the_documentation_runs(luced: Path) -> None:
    assert luced.is_file()
    text = section(DOCS / "embedding.md", "## From Python")
    code = textwrap.dedent("\n".join(line for line in text.splitlines() if line.startswith("    ") or line == ""))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 16
