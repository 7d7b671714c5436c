"""DraftConfig: all that llama.cpp's architecture `dflash` needs to know of a drafter, read from config.json.

DFlash (block diffusion over features of the target): https://arxiv.org/abs/2602.06036. Which entries there are and what
they mean: z-lab's checkpoints, and src/models/dflash.cpp of llama.cpp. Knows no tensors; no value of one model stands
here, and nothing that matters has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luce.supervisor.conversion.reading import ConversionError, Fields, read_json_file, shown

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS

_MAX_WIDTH = 1 << 20
_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_NAME_FOLDER = "name a DFlash checkpoint's folder"
_BY_OTHER_MEANS = (
    "convert it with llama.cpp's convert_hf_to_gguf.py --target-model-dir, if that knows it, and name the GGUF file"
)


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding windows: how many tokens, and which layers have one."""

    n_tokens: int
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Selector:
    """What the second generation of DFlash adds: convolutions over the block, and a choice among paths."""

    kernel_size: int
    group_size: int
    rank: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Rope:
    """How heads rotate with the position, alike in all layers. `base` None: config.json does not say, so the target's
    holds. `n_rotating` of a head's width; None: all of it. `scaling`: to positions beyond those of the first training,
    by GGUF's names; None: llama.cpp's own default."""

    base: float | None
    n_rotating: int | None
    scaling: tuple[tuple[str, str | int | float | None], ...]


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """One drafter's config.json, checked in itself."""

    path: Path
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    n_head: int  # the width of one head
    n_vocab: int
    n_context: int
    rms_epsilon: float
    rope: Rope
    activation: str
    block_size: int
    mask_token: int
    target_layer_ids: tuple[int, ...]  # the target's layers whose outputs are read, counted from 0
    n_target_layers: int | None
    has_embeddings: bool  # of its own; without them it reads the target's, whatever is stored
    window: Window | None
    causal: bool | None
    logit_scale: float | None
    logit_softcap: float | None
    embedding_scale: float | None
    value_scale: float | None
    selector: Selector | None

    def refusal(self, field: str, problem: str, advice: str) -> ConversionError:
        return ConversionError(self.path, field, problem, advice)


def read_draft_config(folder: Path) -> DraftConfig:
    """Raises ConversionError."""
    path = folder / CONFIG_NAME
    fields = Fields(path, read_json_file(path, MAX_CONFIG_BYTES, _NAME_FOLDER))
    _check_kind(folder, fields)
    own = fields.section("dflash_config")
    n_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    n_embd = fields.count("hidden_size", most=_MAX_WIDTH)
    n_heads = fields.count("num_attention_heads", most=_MAX_WIDTH)
    n_kv_heads = fields.optional_count("num_key_value_heads", most=_MAX_WIDTH) or n_heads
    if n_heads % n_kv_heads != 0:
        raise fields.refusal("num_key_value_heads", f"{n_heads} query heads are no multiple of {n_kv_heads}")
    n_head = _head_width(fields, n_embd, n_heads)
    n_vocab = fields.count("vocab_size")
    n_context = fields.count("max_position_embeddings")
    n_target_layers = _one_of(fields, own, "num_target_layers", 1, MAX_LAYERS)
    activation = fields.optional("hidden_act", str)
    if activation is None:
        raise fields.refusal("hidden_act", "it is missing")
    if activation not in _ACTIVATIONS:
        problem = f"{shown(activation)} is none of {', '.join(_ACTIVATIONS)}"
        raise fields.refusal("hidden_act", problem, _BY_OTHER_MEANS)
    block_size = _one_of(fields, own, "block_size", 2, n_context)
    if block_size is None:
        raise fields.refusal("block_size", "it is missing: how many tokens does the drafter see at once?")
    mask_token = _one_of(fields, own, "mask_token_id", 0, n_vocab - 1)
    if mask_token is None:
        raise own.refusal("mask_token_id", "it is missing: which token stands for those to be drafted?")
    logit_softcap = _number_of(fields, own, "final_logit_softcapping")
    causal = fields.optional("is_causal", bool)
    return DraftConfig(
        path=path,
        n_layers=n_layers,
        n_embd=n_embd,
        n_ff=fields.count("intermediate_size", most=1 << 24),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        n_head=n_head,
        n_vocab=n_vocab,
        n_context=n_context,
        rms_epsilon=fields.positive_number("rms_norm_eps"),
        rope=_rope(fields, n_head),
        activation=activation,
        block_size=block_size,
        mask_token=mask_token,
        target_layer_ids=_target_layer_ids(fields, own, n_target_layers),
        n_target_layers=n_target_layers,
        has_embeddings=fields.optional("has_embed_tokens", bool) is not False,
        window=_window(fields, own, n_layers),
        causal=own.optional("causal", bool) if causal is None else causal,
        logit_scale=_number_of(fields, own, "output_multiplier"),
        logit_softcap=logit_softcap if logit_softcap is not None and logit_softcap > 0 else None,
        embedding_scale=_number_of(fields, own, "input_embedding_scale"),
        value_scale=own.optional_number("attention_value_scale"),
        selector=_selector(own, n_embd),
    )


def _check_kind(folder: Path, fields: Fields) -> None:
    architectures = fields.optional_texts("architectures")
    if not architectures:
        raise fields.refusal("architectures", "it is missing, so this is no DFlash drafter", _NAME_FOLDER)
    if architectures[0] not in _ARCHITECTURES:
        problem = f"{shown(architectures[0])} is not {' or '.join(_ARCHITECTURES)}"
        raise fields.refusal("architectures", problem, _BY_OTHER_MEANS)
    if fields.optional("rope_is_neox_style", bool) is False:
        raise fields.refusal("rope_is_neox_style", "heads that rotate in pairs are not converted", _BY_OTHER_MEANS)
    mask = folder / "mask_embedding.pt"
    if mask.exists():
        raise ConversionError(mask, "", "a mask token's own embedding is not converted", _BY_OTHER_MEANS)


def _head_width(fields: Fields, n_embd: int, n_heads: int) -> int:
    n_head = fields.optional_count("head_dim", most=_MAX_WIDTH)
    if n_head is None:
        if n_embd % n_heads != 0:
            problem = f"it is missing, and hidden_size {n_embd} is no multiple of {n_heads} heads"
            raise fields.refusal("head_dim", problem)
        n_head = n_embd // n_heads
    if n_head % 2 != 0:
        raise fields.refusal("head_dim", f"it is {n_head}, and an odd width cannot rotate")
    return n_head


def _one_of(fields: Fields, own: Fields, key: str, least: int, most: int) -> int | None:
    """An entry that stands in dflash_config or at the top; in both it must be the same."""
    inner, outer = own.optional_count(key, least, most), fields.optional_count(key, least, most)
    if inner is not None and outer is not None and inner != outer:
        raise own.refusal(key, f"it is {inner} here and {outer} at the top")
    return outer if inner is None else inner


def _number_of(fields: Fields, own: Fields, key: str) -> float | None:
    inner = own.optional_number(key)
    return fields.optional_number(key) if inner is None else inner


def _target_layer_ids(fields: Fields, own: Fields, n_target_layers: int | None) -> tuple[int, ...]:
    key = "target_layer_ids"
    where = own if own.has(key) else fields
    ids: list[Any] | None = where.optional(key, list)
    if ids is None:
        raise own.refusal(key, "it is missing: which of the target's layers does the drafter read?")
    if not ids:
        raise where.refusal(key, "the list is empty: the drafter would read no layer of its target")
    end = MAX_LAYERS if n_target_layers is None else n_target_layers
    for place, entry in enumerate(ids):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise where.refusal(key, f"{shown(entry)} stands in it, whole numbers were expected")
        if not 0 <= entry < end:
            raise where.refusal(key, f"{shown(entry)} is no layer of a target with {end}: 0 to {end - 1} are")
        if entry in ids[:place]:
            raise where.refusal(key, f"{entry} stands twice in it")
    return tuple(ids)


def _window(fields: Fields, own: Fields, n_layers: int) -> Window | None:
    all_layers = own.optional("use_swa", bool) is True
    n_tokens = own.optional_count("swa_window_size", least=0) or fields.optional_count("sliding_window", least=0)
    types = fields.optional_texts("layer_types")
    if types is not None:
        if len(types) != n_layers:
            raise fields.refusal("layer_types", f"{len(types)} entries do not describe {n_layers} layers")
        for entry in types:
            if entry not in (_FULL, _SLIDING):
                problem = f"{shown(entry)} is neither {_FULL} nor {_SLIDING}"
                raise fields.refusal("layer_types", problem, _BY_OTHER_MEANS)
    if not all_layers and fields.optional("use_sliding_window", bool) is not True:
        return None
    if not n_tokens:
        if all_layers or (types is not None and _SLIDING in types):
            raise fields.refusal("sliding_window", "it is missing, and layers with a window are asked for")
        return None
    if all_layers:
        return Window(n_tokens, (True,) * n_layers)
    if types is None:
        raise fields.refusal("layer_types", "it is missing: which layers have the sliding window?")
    layers = tuple(entry == _SLIDING for entry in types)
    return Window(n_tokens, layers) if any(layers) else None


def _selector(own: Fields, n_embd: int) -> Selector | None:
    if not own.has("conv_kernel_size"):
        return None
    selector = Selector(
        kernel_size=own.count("conv_kernel_size", most=1024),
        group_size=own.count("conv_group_size", most=n_embd),
        rank=own.count("selector_rank", most=_MAX_WIDTH),
        top_k=own.count("selector_top_k", most=1024),
    )
    if n_embd % selector.group_size != 0:
        raise own.refusal("conv_group_size", f"hidden_size {n_embd} is no multiple of {selector.group_size}")
    if selector.top_k * (selector.top_k + 1) > n_embd:
        raise own.refusal("selector_top_k", f"the paths among {selector.top_k} do not fit into hidden_size {n_embd}")
    return selector


def _rope(fields: Fields, n_head: int) -> Rope:
    """In either of transformers' spellings."""
    inner = fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if inner.has(_FULL):
        base = inner.section(_FULL).optional_number("rope_theta", positive=True)
        windowed = inner.section(_SLIDING).optional_number("rope_theta", positive=True)
        if windowed is not None and windowed != base:
            problem = "layers with bases of their own are not known"
            raise inner.refusal(f"{_SLIDING}.rope_theta", problem, _BY_OTHER_MEANS)
        inner = inner.section(_FULL)
    base = inner.optional_number("rope_theta", positive=True)
    at_top = fields.optional_number("rope_theta", positive=True)
    if base is not None and at_top is not None and base != at_top:
        raise inner.refusal("rope_theta", f"it is {base:g} here and {at_top:g} at the top")
    return Rope(at_top if base is None else base, _n_rotating(fields, inner, n_head), tuple(_scaling(fields, inner)))


def _n_rotating(fields: Fields, inner: Fields, n_head: int) -> int | None:
    where = inner if inner.has("partial_rotary_factor") else fields
    part = where.optional_number("partial_rotary_factor", positive=True)
    if part is None:
        return None
    n_rotating = int(n_head * part) if part <= 1 else 0
    if n_rotating < 2 or n_rotating % 2 != 0:
        raise where.refusal("partial_rotary_factor", f"{part:g} of a head of {n_head} is no even part of it")
    return n_rotating


def _scaling(fields: Fields, inner: Fields) -> list[tuple[str, str | int | float | None]]:
    key = "rope_type" if inner.has("rope_type") else "type"
    kind = inner.optional(key, str)
    if kind is None or kind == "default":
        return []
    if kind not in ("linear", "yarn"):
        raise inner.refusal(key, f"{shown(kind)} is none of default, linear and yarn", _BY_OTHER_MEANS)
    scaling: list[tuple[str, str | int | float | None]] = [("type", kind), ("factor", inner.positive_number("factor"))]
    if kind == "linear":
        return scaling
    for name in ("mscale", "mscale_all_dim"):
        if inner.has(name):
            raise inner.refusal(name, "yarn with a scale of its own is not known", _BY_OTHER_MEANS)
    where = inner if inner.has("original_max_position_embeddings") else fields
    attention = "attention_factor" if inner.has("attention_factor") else "attn_factor"
    return [
        *scaling,
        ("original_context_length", where.count("original_max_position_embeddings")),
        ("yarn_ext_factor", inner.optional_number("extrapolation_factor")),
        ("yarn_attn_factor", inner.optional_number(attention)),
        ("yarn_beta_fast", inner.optional_number("beta_fast")),
        ("yarn_beta_slow", inner.optional_number("beta_slow")),
    ]
