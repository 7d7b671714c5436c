"""What a model file says of its vocabulary, as plain values. Knows nothing of the native library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TokenKind = Literal["normal", "unknown", "control", "user_defined", "byte", "unused"]

# llama_token_attr, in the order in which a token's kind is told from its bits.
_KIND_BITS: tuple[tuple[int, TokenKind], ...] = (
    (1 << 3, "control"),
    (1 << 4, "user_defined"),
    (1 << 0, "unknown"),
    (1 << 5, "byte"),
    (1 << 1, "unused"),
)


@dataclass(frozen=True)
class SpecialToken:
    """A token with a meaning besides its spelling."""

    id: int
    text: str
    kind: TokenKind


@dataclass(frozen=True)
class VocabularyInfo:
    """A model's vocabulary and its special tokens; None where the model has no such token."""

    n_vocab: int
    has_text: bool
    kind: str
    architecture: str
    name: str
    n_ctx_train: int
    bos: int | None
    eos: int | None
    eot: int | None
    sep: int | None
    nl: int | None
    pad: int | None
    mask: int | None
    eog: frozenset[int]
    add_bos: bool
    add_eos: bool
    has_template: bool
    special: tuple[SpecialToken, ...]
    # Of fill-in-the-middle: before, after and at the gap; at the start of a project and of a file.
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None
    add_sep: bool = False  # between two texts
    rerank_template: str | None = None  # how a reranker reads {query} and {document}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> VocabularyInfo:
        plain = {key: value for key, value in values.items() if key not in ("eog", "special")}
        special = tuple(SpecialToken(token["id"], token["text"], token["kind"]) for token in values["special"])
        return cls(eog=frozenset(values["eog"]), special=special, **plain)


def token_kind(attributes: int) -> TokenKind:
    """The kind of a token from its attribute bits."""
    for bit, kind in _KIND_BITS:
        if attributes & bit:
            return kind
    return "normal"
