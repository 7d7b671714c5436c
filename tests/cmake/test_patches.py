"""Our patches of llama.cpp: each fits the pinned sources and says why; the applier changes only what it knows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APPLIER = ROOT / "cmake" / "apply_patches.py"
PATCHES = sorted((ROOT / "cmake" / "patches").glob("*.patch"))

BEFORE = [f"line {i}" for i in range(1, 21)]
AFTER = [*BEFORE[:3], "new", *BEFORE[3:14], "changed", *BEFORE[15:]]
DIFF = """Why it is needed.

--- a/some/file.txt
+++ b/some/file.txt
@@ -3,2 +3,3 @@
 line 3
+new
 line 4
@@ -14,3 +15,3 @@ somewhere
 line 14
-line 15
+changed
 line 16
"""


def apply(tree: Path, *patches: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, APPLIER, tree, *patches], capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "some").mkdir(parents=True)
    (tmp_path / "tree" / "some" / "file.txt").write_text("\n".join(BEFORE) + "\n")
    return tmp_path / "tree"


@pytest.fixture
def patch(tmp_path: Path) -> Path:
    path = tmp_path / "a.patch"
    path.write_text(DIFF)
    return path


def lines_of(tree: Path) -> list[str]:
    return (tree / "some" / "file.txt").read_text().splitlines()


def test_a_patch_is_applied_once(tree: Path, patch: Path) -> None:
    assert apply(tree, patch).returncode == 0
    assert lines_of(tree) == AFTER
    assert apply(tree, patch).returncode == 0
    assert lines_of(tree) == AFTER


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (" line 3", " line three", "some/file.txt has other lines at 3"),
        ("-line 15", "-line fifteen", "some/file.txt has other lines at 15"),
        ("+++ b/some/file.txt", "+++ b/another.txt", "another.txt is not there"),
        (" line 16\n", "", "no whole unified diff"),
        (DIFF, "nothing", "no whole unified diff"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(tree: Path, patch: Path, old: str, new: str, reason: str) -> None:
    assert old in DIFF
    patch.write_text(DIFF.replace(old, new))
    refused = apply(tree, patch)
    assert refused.returncode == 1
    assert str(patch) in refused.stderr
    assert reason in refused.stderr


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.name)
def test_our_patches_begin_with_their_reason(path: Path) -> None:
    assert len(path.read_text().split("--- a/")[0].split()) > 20


def test_our_patches_are_in_the_tree_that_was_built(llama_templates_dir: Path, tmp_path: Path) -> None:
    """There they have changed it already, in a user's own they would."""
    names = {name for path in PATCHES for name in re.findall(r"^\+\+\+ b/(\S+)", path.read_text(), re.MULTILINE)}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(llama_templates_dir.parents[1] / name, tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in names}
    assert apply(tmp_path, *PATCHES).stderr == ""
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


def test_a_patch_may_change_what_an_earlier_one_has_left(tree: Path, patch: Path, tmp_path: Path) -> None:
    second = tmp_path / "b.patch"
    second.write_text(DIFF.replace("-line 15", "-changed").replace("+changed", "+twice").replace("+new", " new"))
    second.write_text(second.read_text().replace("@@ -3,2 +3,3 @@", "@@ -3,3 +3,3 @@").replace("@@ -14,", "@@ -15,"))
    for _ in range(2):
        assert apply(tree, patch, second).stderr == ""
        assert lines_of(tree) == [line.replace("changed", "twice") for line in AFTER]
