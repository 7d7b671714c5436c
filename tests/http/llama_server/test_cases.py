"""Every case of llama-server's own tests has its answer here: tests that exist, or a row of the documentation."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.http.llama_server.cases import CASES, EVERY


@cache
def functions_of(path: Path) -> frozenset[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(node.name for node in functions if node.name.startswith("test"))


@cache
def rows() -> frozenset[str]:
    """The first cells of the table of differences."""
    page = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    section = page.split("\n## Differences from llama-server\n")[1].split("\n## ")[0]
    return frozenset(re.findall(r"^\| (.+?) \|", section, re.MULTILINE)) - {"llama-server"}


def answers() -> list[str]:
    found = [answer for cases in CASES.values() for answer in cases.values()]
    return [one for answer in found for one in ((answer,) if isinstance(answer, str) else answer)]


def test_every_case_is_listed(llama_templates_dir: Path) -> None:
    folder = llama_templates_dir.parents[1] / "tools" / "server" / "tests" / "unit"
    files = {path.name: functions_of(path) for path in folder.glob("test_*.py")}
    assert files.keys() == CASES.keys()
    for name, cases in CASES.items():
        assert cases.keys() == {EVERY} or cases.keys() == files[name], name


@pytest.mark.parametrize("answer", sorted({answer for answer in answers() if "::" in answer}))
def test_what_is_named_exists(answer: str) -> None:
    path, name = answer.split("::")
    assert name in functions_of(ROOT / "tests" / path)


def test_what_is_otherwise_is_documented_and_nothing_else() -> None:
    assert {answer for answer in answers() if "::" not in answer} == rows()
