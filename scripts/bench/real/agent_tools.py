"""A folder of real texts and the four tools that an agent has in it: list, read, write and run. What a call gives is a
text, whatever it asked for; nothing reaches outside of the folder. Knows no model and no API.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.bench.harness import ROOT

PROGRAMS = ("ls", "wc", "grep", "head", "tail")
_MAX_RESULT = 800  # characters
_MAX_FILE = 6000
_LIMIT_S = 10.0
_SOURCES = {
    "README.md": "README.md",
    "docs/glossary.md": "docs/GLOSSARY.md",
    "docs/quickstart.md": "docs/quickstart.md",
    "src/requests.py": "supervisor/requests.py",
    "src/service.py": "supervisor/service.py",
    "tests/near_ties.py": "tests/near_ties.py",
}

SYSTEM = (
    "You are a coding agent in a folder with the files of a project. Use the tools to look at files, to change them and"
    " to run programs (" + ", ".join(PROGRAMS) + "). Do one thing at a time. When a task is done, say so in a sentence."
)
TASKS = (
    "List the files of the folder docs.",
    "Read README.md and tell me in one sentence what the project is.",
    "How many lines does src/service.py have? Run wc.",
    "Which files of the folder src mention the word token? Run grep.",
    "Write a file notes.txt with the text: check the service.",
    "Read notes.txt.",
    "Read src/requests.py and name one of its classes.",
    "Show me the first lines of docs/glossary.md.",
    "List the files of the folder tests.",
    "Find the lines with def in tests/near_ties.py.",
    "Write a file todo.md with three things that should be tested.",
    "Thank you. What have you changed?",
)


def _tool(name: str, about: str, **properties: str) -> dict[str, Any]:
    schema = {key: {"type": "string", "description": text} for key, text in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(schema)}
    return {"name": name, "description": about, "parameters": parameters}


FUNCTIONS = (
    _tool("list_files", "List the files of a folder.", path="The folder"),
    _tool("read_file", "Read a text file.", path="The file"),
    _tool("write_file", "Write a text file.", path="The file", content="All of its new text"),
    _tool("run", "Run a program in the folder.", command=f"One of {', '.join(PROGRAMS)}, and its arguments"),
)


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the tool says, mistakes of the model's too."""
        try:
            text = self._called(name, {key: str(value) for key, value in arguments.items()})
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            text = f"error: {type(error).__name__}: {error}".replace(str(self._path), ".")
        except KeyError as error:
            text = f"error: {error} is missing"
        return text if len(text) <= _MAX_RESULT else f"{text[:_MAX_RESULT]}\n(and {len(text) - _MAX_RESULT} characters)"

    def _called(self, name: str, arguments: Mapping[str, str]) -> str:
        if name == "run":
            return self._run(arguments["command"])
        path = self._within(arguments["path"])
        if name == "list_files":
            return "\n".join(sorted(f"{each.name}{'/' if each.is_dir() else ''}" for each in path.iterdir()))
        if name == "read_file":
            return path.read_text()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(arguments["content"])
        return f"wrote {len(arguments['content'])} characters"

    def _within(self, name: str) -> Path:
        path = (self._path / name.lstrip("/")).resolve()
        if not path.is_relative_to(self._path):
            raise ValueError("there is nothing outside of the folder")
        return path

    def _run(self, command: str) -> str:
        program, *arguments = shlex.split(command) or [""]
        if program not in PROGRAMS:
            raise ValueError(f"only {', '.join(PROGRAMS)} can be run")
        if any(each.startswith("/") or ".." in each or (each.startswith("-") and "/" in each) for each in arguments):
            raise ValueError("there is nothing outside of the folder")
        done = subprocess.run(
            [program, *arguments], cwd=self._path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False, errors="replace",
        )  # fmt: skip
        return done.stdout + done.stderr or f"(status {done.returncode}, and no output)"


@contextmanager
def scratch_folder() -> Iterator[Folder]:
    with TemporaryDirectory(prefix="luce-agents-") as name:
        for own, source in _SOURCES.items():
            path = Path(name, own)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((ROOT / source).read_text()[:_MAX_FILE])
        yield Folder(Path(name))
