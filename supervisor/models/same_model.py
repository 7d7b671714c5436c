"""Whether model files are the same model, so that engines may stand in for each other: ids mean the same, answers come
from weights of one shape. Quantisations may differ.

From their headers alone. What cannot be read is not judged: the engine that is to load it says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from luce.supervisor.models.gguf_header import GgufError, read_gguf_entries, read_gguf_header

_VOCABULARY = ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
_SHAPE = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "expert_count")


def difference(first: Path, second: Path) -> str | None:
    """In which way they are not the same model; None: in none that is known."""
    try:
        if first.samefile(second):
            return None
        headers = read_gguf_header(first), read_gguf_header(second)
        architecture = headers[0].metadata.get("general.architecture")
        if headers[1].metadata.get("general.architecture") != architecture:
            return "another architecture"
        if any(_differ(headers[0].metadata, headers[1].metadata, f"{architecture}.{name}") for name in _SHAPE):
            return "other layers"
        entries = read_gguf_entries(first, "tokenizer.ggml."), read_gguf_entries(second, "tokenizer.ggml.")
    except (GgufError, OSError):
        return None
    if any(_differ(entries[0], entries[1], name) for name in _VOCABULARY):
        return "another vocabulary"
    return None


def _differ(first: Mapping[str, object], second: Mapping[str, object], name: str) -> bool:
    return first.get(name) != second.get(name)
