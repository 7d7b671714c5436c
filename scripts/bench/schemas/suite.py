"""The JSON-Schema-Test-Suite, as the source distribution of the Python package `jsonschema` carries it: fetched once,
pinned by version and hash, and never kept in this repository."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DRAFTS = ("draft7", "draft2020-12")


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    schema: Any
    instances: tuple[tuple[Any, bool], ...]
    """Each with whether it is valid."""


def fetch(folder: Path) -> Path:
    """The suite's folder below `folder`."""
    unpacked = folder / f"jsonschema-{VERSION}"
    if not unpacked.exists():
        archive = folder / f"jsonschema-{VERSION}.tar.gz"
        if not archive.exists():
            wanted = ["--no-deps", "--no-binary", ":all:", "--dest", str(folder), f"jsonschema=={VERSION}"]
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise SystemExit(f"{archive} is not the pinned one")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return unpacked / "json"


def groups(suite: Path, draft: str) -> Iterator[Group]:
    for path in sorted((suite / "tests" / draft).glob("*.json")):
        for group in json.loads(path.read_text()):
            instances = tuple((test["data"], test["valid"]) for test in group["tests"])
            yield Group(f"{path.stem}: {group['description']}", group["schema"], instances)
