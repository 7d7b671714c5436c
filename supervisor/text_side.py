"""TextSide: a model's vocabulary and chat template, opened on first use. It must not know who asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel


class TextSide:
    def __init__(self, model: Path) -> None:
        self._model = model
        self._opened: TextModel | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> TextModel:
        """It stays its owner's. Raises TextError, NotInstalledError."""
        async with self._lock:
            if self._opened is None:
                self._opened = await asyncio.to_thread(_open, self._model)
            return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _open(model: Path) -> TextModel:
    from luce.supervisor.text import TextModel  # who asks with ids alone needs no text library

    return TextModel(model)
