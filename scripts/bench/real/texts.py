"""Real text for real models: this repository's documentation and source, as token ids. It must not know what is asked
about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.supervisor.text import TextModel
from scripts.bench.harness import ROOT

_FOLDERS = (("docs", "*.md"), ("supervisor", "*.py"), ("native/engine", "*.cpp"))


def real_text() -> str:
    """Prose first, then Python, then C++."""
    files = [path for folder, names in _FOLDERS for path in sorted((ROOT / folder).rglob(names))]
    return "\n\n".join(path.read_text() for path in files)


@dataclass(frozen=True)
class RealText:
    """The text as a model reads it."""

    ids: tuple[int, ...]

    @classmethod
    def of(cls, model: Path) -> RealText:
        with TextModel(model) as text:
            return cls(tuple(text.tokenize(real_text())))

    def passage(self, n_tokens: int, number: int) -> list[int]:
        """So many tokens, other ones for each number."""
        at = number * 7919 % (len(self.ids) - n_tokens)
        return list(self.ids[at : at + n_tokens])
