"""ConversionError: why a checkpoint is not converted. Knows nothing of what was looked at."""

from __future__ import annotations

from pathlib import Path

DOWNLOAD_AGAIN = "download the checkpoint again"


class ConversionError(Exception):
    """The checkpoint, its target or the place for the result is no good; names the file, the field and what to do."""

    def __init__(self, path: Path, field: str, problem: str, advice: str = DOWNLOAD_AGAIN) -> None:
        where = f"{path}: {field}: " if field else f"{path}: "
        super().__init__(f"{where}{problem}; {advice}")
        self.path = path
        self.field = field


def shown(value: object) -> str:
    """A value as an error quotes it: short, on one line, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
