"""DraftConfig: all that llama.cpp's architecture `dflash` needs to know of a drafter, read from config.json.

DFlash (block diffusion over features of the target): https://arxiv.org/abs/2602.06036. Which entries there are and what
they mean: z-lab's checkpoints, and src/models/dflash.cpp of llama.cpp. Knows no tensors; no value of one model stands
here, and nothing that matters has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.supervisor.conversion.errors import ConversionError, shown
from luce.supervisor.conversion.fields import Fields
from luce.supervisor.conversion.files import read_json_file
from luce.supervisor.conversion.rope import Rope, read_rope

CONFIG_NAME = "config.json"
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS

_MAX_CONFIG_BYTES = 1 << 20
_MAX_WIDTH = 1 << 20
_ARCHITECTURES = ("DFlashDraftModel", "DFlash2DraftModel")
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_FULL, _SLIDING = "full_attention", "sliding_attention"
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
    fields = Fields(path, read_json_file(path, _MAX_CONFIG_BYTES, "name a DFlash checkpoint's folder"))
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
    logit_softcap = _number_of(fields, own, "final_logit_softcapping")
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
        rope=read_rope(fields, n_head),
        activation=_activation(fields),
        block_size=_block_size(fields, own, n_context),
        mask_token=_mask_token(fields, own, n_vocab),
        target_layer_ids=_target_layer_ids(fields, own, n_target_layers),
        n_target_layers=n_target_layers,
        has_embeddings=fields.optional_flag("has_embed_tokens") is not False,
        window=_window(fields, own, n_layers),
        causal=_causal(fields, own),
        logit_scale=_number_of(fields, own, "output_multiplier"),
        logit_softcap=logit_softcap if logit_softcap is not None and logit_softcap > 0 else None,
        embedding_scale=_number_of(fields, own, "input_embedding_scale"),
        value_scale=own.optional_number("attention_value_scale"),
        selector=_selector(own, n_embd),
    )


def _check_kind(folder: Path, fields: Fields) -> None:
    architectures = fields.optional_texts("architectures")
    if not architectures:
        raise fields.refusal(
            "architectures", "it is missing, so this is no DFlash drafter", "name a DFlash checkpoint's folder"
        )
    if architectures[0] not in _ARCHITECTURES:
        raise fields.refusal(
            "architectures", f"{shown(architectures[0])} is not {' or '.join(_ARCHITECTURES)}", _BY_OTHER_MEANS
        )
    if fields.optional_flag("rope_is_neox_style") is False:
        raise fields.refusal("rope_is_neox_style", "heads that rotate in pairs are not converted", _BY_OTHER_MEANS)
    if (folder / "mask_embedding.pt").exists():
        raise ConversionError(
            folder / "mask_embedding.pt", "", "a mask token's own embedding is not converted", _BY_OTHER_MEANS
        )


def _head_width(fields: Fields, n_embd: int, n_heads: int) -> int:
    n_head = fields.optional_count("head_dim", most=_MAX_WIDTH)
    if n_head is None:
        if n_embd % n_heads != 0:
            raise fields.refusal(
                "head_dim", f"it is missing, and hidden_size {n_embd} is no multiple of {n_heads} heads"
            )
        n_head = n_embd // n_heads
    if n_head % 2 != 0:
        raise fields.refusal("head_dim", f"it is {n_head}, and an odd width cannot rotate")
    return n_head


def _activation(fields: Fields) -> str:
    activation = fields.optional_text("hidden_act")
    if activation is None:
        raise fields.refusal("hidden_act", "it is missing")
    if activation not in _ACTIVATIONS:
        raise fields.refusal("hidden_act", f"{shown(activation)} is none of {', '.join(_ACTIVATIONS)}", _BY_OTHER_MEANS)
    return activation


def _one_of(fields: Fields, own: Fields, key: str, least: int, most: int) -> int | None:
    """An entry that stands in dflash_config or at the top; in both it must be the same."""
    inner, outer = own.optional_count(key, least, most), fields.optional_count(key, least, most)
    if inner is not None and outer is not None and inner != outer:
        raise own.refusal(key, f"it is {inner} here and {outer} at the top")
    return outer if inner is None else inner


def _number_of(fields: Fields, own: Fields, key: str) -> float | None:
    inner = own.optional_number(key)
    return fields.optional_number(key) if inner is None else inner


def _block_size(fields: Fields, own: Fields, n_context: int) -> int:
    size = _one_of(fields, own, "block_size", 2, n_context)
    if size is None:
        raise fields.refusal("block_size", "it is missing: how many tokens does the drafter see at once?")
    return size


def _mask_token(fields: Fields, own: Fields, n_vocab: int) -> int:
    token = _one_of(fields, own, "mask_token_id", 0, n_vocab - 1)
    if token is None:
        raise own.refusal("mask_token_id", "it is missing: which token stands for those to be drafted?")
    return token


def _target_layer_ids(fields: Fields, own: Fields, n_target_layers: int | None) -> tuple[int, ...]:
    where = own if own.has("target_layer_ids") else fields
    ids = where.optional_list("target_layer_ids")
    if ids is None:
        raise own.refusal("target_layer_ids", "it is missing: which of the target's layers does the drafter read?")
    if not ids:
        raise where.refusal("target_layer_ids", "the list is empty: the drafter would read no layer of its target")
    known: list[int] = []
    end = MAX_LAYERS if n_target_layers is None else n_target_layers
    for entry in ids:
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise where.refusal("target_layer_ids", f"{shown(entry)} stands in it, whole numbers were expected")
        if not 0 <= entry < end:
            raise where.refusal(
                "target_layer_ids", f"{shown(entry)} is no layer of a target with {end}: 0 to {end - 1} are"
            )
        if entry in known:
            raise where.refusal("target_layer_ids", f"{entry} stands twice in it")
        known.append(entry)
    return tuple(known)


def _window(fields: Fields, own: Fields, n_layers: int) -> Window | None:
    all_layers = own.optional_flag("use_swa") is True
    n_tokens = own.optional_count("swa_window_size", least=0) or fields.optional_count("sliding_window", least=0)
    types = fields.optional_texts("layer_types")
    if types is not None:
        if len(types) != n_layers:
            raise fields.refusal("layer_types", f"{len(types)} entries do not describe {n_layers} layers")
        for entry in types:
            if entry not in (_FULL, _SLIDING):
                raise fields.refusal(
                    "layer_types", f"{shown(entry)} is neither {_FULL} nor {_SLIDING}", _BY_OTHER_MEANS
                )
    if not all_layers and fields.optional_flag("use_sliding_window") is not True:
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


def _causal(fields: Fields, own: Fields) -> bool | None:
    outer = fields.optional_flag("is_causal")
    return own.optional_flag("causal") if outer is None else outer


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
