"""The include graph of native/: arrows point the way docs/ARCHITECTURE.md says. Reads sources, builds nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
DOCUMENT = ROOT / "docs" / "ARCHITECTURE.md"


def _allowed() -> dict[str, set[str]]:
    """Folder -> the folders that it may include besides itself: the document's table."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return {
        folder: set(re.findall(r"`(\w+)`", seen)) for folders, seen in rows for folder in re.findall(r"\w+", folders)
    }


ALLOWED = _allowed()
COMPOSITION_ROOT = "main.cpp"
SEES_EVERYTHING = {"tests", "app"}  # app: the composition root's parts; nobody may see it but main.cpp
SEES_GGML = {"llama"}

_INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
_LLAMA_CPP = re.compile(r"^(llama|ggml|gguf)[-_.\w]*\.h(pp)?$")


def sources() -> Iterator[Path]:
    for path in sorted(NATIVE.rglob("*")):
        if path.suffix in {".h", ".cpp", ".cu", ".c"}:
            yield path


def folder_of(path: Path) -> str:
    parts = path.relative_to(NATIVE).parts
    return parts[0] if len(parts) > 1 else COMPOSITION_ROOT


def includes(path: Path) -> Iterator[tuple[str, bool]]:
    """Each included name, and whether it stood in quotes."""
    for quote, name in _INCLUDE.findall(path.read_text()):
        yield name, quote == '"'


def test_includes_point_the_right_way() -> None:
    n_looked_at, wrong = 0, []
    for path in sources():
        if (folder := folder_of(path)) in SEES_EVERYTHING:
            continue
        n_looked_at += 1
        wrong += [f"{path.relative_to(NATIVE)}: {complaint}" for complaint in complaints_about(path, folder)]
    assert n_looked_at > 300
    assert not wrong, "\n".join(wrong)


def complaints_about(path: Path, folder: str) -> Iterator[str]:
    sees_all_folders = folder == COMPOSITION_ROOT
    if folder not in ALLOWED and not sees_all_folders:
        yield f"native/{folder} is not in docs/ARCHITECTURE.md: add its arrows"
        return
    for name, quoted in includes(path):
        target = name.split("/", 1)[0] if "/" in name else None
        is_ours = quoted and target in ALLOWED and (NATIVE / name).is_file()
        if is_ours and not sees_all_folders and target not in {folder, *ALLOWED[folder]}:
            yield f"{folder} may not see {name}"
        if _LLAMA_CPP.match(name) and folder not in SEES_GGML:
            yield f"it includes {name}: only {sorted(SEES_GGML)} may see llama.cpp"


def test_our_includes_name_their_folder() -> None:
    # Otherwise the arrow could not be seen above.
    for path in sources():
        for name, quoted in includes(path):
            if quoted and "/" not in name:
                assert not (path.parent / name).is_file(), f'{path}: write #include "<folder>/{name}"'


def test_the_text_library_knows_no_engine() -> None:
    for path in sources():
        if path.is_relative_to(NATIVE / "llama" / "text"):
            seen = {name for name, _ in includes(path) if name.startswith(("engine/", "memory/", "speculation/"))}
            assert not seen, f"{path} includes {seen}: the text library decodes nothing"
