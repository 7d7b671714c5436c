"""System prompts that are common to all clients: how prompts with them begin, in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.config import ConfigError
from luce.supervisor.http.errors import ApiError
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.prefix_cache.prefix_index import common_tokens, pack, unpack

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel

_QUESTIONS = ("a", "I")  # two that have nothing in common: what prompts with both begin with, all do


def common_heads(files: Sequence[Path], text: TextModel) -> list[list[int]]:
    """One for each file. Raises ConfigError, or TextError."""
    return [_head(file, text) for file in files]


def _head(file: Path, text: TextModel) -> list[int]:
    try:
        system = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"common_prompts {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"common_prompts {file} is not UTF-8 text") from None
    renderer = Renderer(text)
    packed = []
    for question in _QUESTIONS:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        try:
            rendered = renderer.render(ChatPrompt(messages=messages))
        except ApiError as error:
            raise ConfigError(f"common_prompts {file}: {error.text}") from None
        packed.append(pack(rendered.ids))
        rendered.close()
    n_common = common_tokens(*packed)
    return unpack(packed[0])[:n_common]
