"""Rope: how a drafter's heads rotate with the position, read from config.json in either of transformers' spellings.

The drafter rotates alike in all its layers: llama.cpp's `dflash` has one base. Knows nothing of the rest of a drafter.
"""

from __future__ import annotations

from dataclasses import dataclass

from luce.supervisor.conversion.errors import shown
from luce.supervisor.conversion.fields import Fields

_ELSEWHERE = "convert it with llama.cpp's convert_hf_to_gguf.py, if that knows it, and name the GGUF file"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Positions beyond those of the first training. None: llama.cpp's own default."""

    kind: str  # "linear" or "yarn"
    factor: float
    n_context_before: int | None = None
    extrapolation_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """`base` None: config.json does not say, so the target's holds. `n_rotating` of a head's width; None: all of it."""

    base: float | None
    n_rotating: int | None
    scaling: Scaling | None


def read_rope(fields: Fields, n_head: int) -> Rope:
    """Raises ConversionError."""
    inner = fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if inner.has("full_attention"):
        base = inner.section("full_attention").optional_number("rope_theta", positive=True)
        windowed = inner.section("sliding_attention").optional_number("rope_theta", positive=True)
        if windowed is not None and windowed != base:
            raise inner.refusal(
                "sliding_attention.rope_theta", "layers with bases of their own are not known", _ELSEWHERE
            )
        inner = inner.section("full_attention")
    base, at_top = (
        inner.optional_number("rope_theta", positive=True),
        fields.optional_number("rope_theta", positive=True),
    )
    if base is not None and at_top is not None and base != at_top:
        raise inner.refusal("rope_theta", f"it is {base:g} here and {at_top:g} at the top")
    return Rope(at_top if base is None else base, _n_rotating(fields, inner, n_head), _scaling(fields, inner))


def _n_rotating(fields: Fields, inner: Fields, n_head: int) -> int | None:
    where = inner if inner.has("partial_rotary_factor") else fields
    part = where.optional_number("partial_rotary_factor", positive=True)
    if part is None:
        return None
    n_rotating = int(n_head * part) if part <= 1 else 0
    if n_rotating < 2 or n_rotating % 2 != 0:
        raise where.refusal("partial_rotary_factor", f"{part:g} of a head of {n_head} is no even part of it")
    return n_rotating


def _scaling(fields: Fields, inner: Fields) -> Scaling | None:
    key = "rope_type" if inner.has("rope_type") else "type"
    kind = inner.optional_text(key)
    if kind is None or kind == "default":
        return None
    if kind not in ("linear", "yarn"):
        raise inner.refusal(key, f"{shown(kind)} is none of default, linear and yarn", _ELSEWHERE)
    factor = inner.positive_number("factor")
    if kind == "linear":
        return Scaling(kind, factor)
    for name in ("mscale", "mscale_all_dim"):
        if inner.has(name):
            raise inner.refusal(name, "yarn with a scale of its own is not known", _ELSEWHERE)
    where = inner if inner.has("original_max_position_embeddings") else fields
    attention = "attention_factor" if inner.has("attention_factor") else "attn_factor"
    return Scaling(
        kind,
        factor,
        n_context_before=where.count("original_max_position_embeddings"),
        extrapolation_factor=inner.optional_number("extrapolation_factor"),
        attention_factor=inner.optional_number(attention),
        beta_fast=inner.optional_number("beta_fast"),
        beta_slow=inner.optional_number("beta_slow"),
    )
