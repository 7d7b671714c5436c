"""Which tensors a drafter has by its configuration, and what each is called in GGUF.

Names and shapes as load_arch_tensors in src/models/dflash.cpp of llama.cpp creates them. A checkpoint must have exactly
these: one that is missing, one too many and one of another shape or type is refused. Pure; reads no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from luce.supervisor.conversion.draft_config import DraftConfig
from luce.supervisor.conversion.errors import ConversionError
from luce.supervisor.conversion.safetensors_header import StoredTensor, WeightFile

_FLOATS = ("BF16", "F16", "F32")
_EMBEDDINGS = "embed_tokens.weight"
_COMPUTED = "rotary_emb.inv_freq"  # stored by some, a function of the configuration


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor by its name in the checkpoint (less a leading `model.`)."""

    gguf_name: str
    shape: tuple[int, ...]
    optional: bool = False
    keep_float32: bool = False  # what takes part in sums elsewhere than in a matrix product


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written, and where it comes from."""

    source: StoredTensor
    gguf_name: str
    keep_float32: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape

    @property
    def n_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


def plan_tensors(config: DraftConfig, files: tuple[WeightFile, ...]) -> tuple[PlannedTensor, ...]:
    """In the order in which the checkpoint has them. Raises ConversionError."""
    expected = dict(_expected(config))
    planned: dict[str, PlannedTensor] = {}
    for file in files:
        for tensor in file.tensors:
            name = tensor.name.removeprefix("model.")
            if _is_left_out(name, config):
                continue
            if name in planned:
                raise ConversionError(file.path, tensor.name, "the tensor stands twice, with and without `model.`")
            if name not in expected:
                raise ConversionError(
                    file.path,
                    tensor.name,
                    f"a drafter with the configuration in {config.path.name} has no such tensor",
                    "check that both belong together; this kind of drafter may need llama.cpp's convert_hf_to_gguf.py",
                )
            planned[name] = _plan(tensor, expected[name], config)
    for name, wanted in expected.items():
        if name not in planned and not wanted.optional:
            raise ConversionError(files[0].path, name, f"the tensor is missing, which {config.path.name} calls for")
    return tuple(planned.values())


def _is_left_out(name: str, config: DraftConfig) -> bool:
    # Some store embeddings that are not theirs to use: llama.cpp, finding any, would not read the target's.
    return name.endswith(_COMPUTED) or (name == _EMBEDDINGS and not config.has_embeddings)


def _plan(tensor: StoredTensor, wanted: Expected, config: DraftConfig) -> PlannedTensor:
    if tensor.shape != wanted.shape:
        raise ConversionError(
            tensor.path,
            tensor.name,
            f"its shape is {list(tensor.shape)}, by {config.path.name} it should be {list(wanted.shape)}",
            "check that both belong together, or download the checkpoint again",
        )
    if tensor.element_type not in _FLOATS:
        raise ConversionError(
            tensor.path,
            tensor.name,
            f"its dtype is {tensor.element_type}, and only {', '.join(_FLOATS)} are converted",
            "take the checkpoint in bfloat16",
        )
    return PlannedTensor(tensor, wanted.gguf_name, wanted.keep_float32)


def _expected(config: DraftConfig) -> Iterator[tuple[str, Expected]]:
    width = config.n_embd
    yield "fc.weight", Expected("fc.weight", (width, len(config.target_layer_ids) * width))
    yield "hidden_norm.weight", Expected("enc.output_norm.weight", (width,))
    yield "norm.weight", Expected("output_norm.weight", (width,))
    yield _EMBEDDINGS, Expected("token_embd.weight", (config.n_vocab, width), optional=True)
    yield "lm_head.weight", Expected("output.weight", (config.n_vocab, width), optional=True)
    for layer in range(config.n_layers):
        yield from _expected_of_layer(config, f"layers.{layer}.", f"blk.{layer}.")
    if config.selector is not None:
        rank = config.selector.rank
        prefix = "candidate_selector."
        yield f"{prefix}predecessor_codebook", Expected("selector_predecessor.weight", (config.n_vocab, rank))
        yield f"{prefix}successor_codebook", Expected("selector_successor.weight", (config.n_vocab, rank))
        yield f"{prefix}hidden_projection.weight", Expected("selector_hidden.weight", (rank, width))


def _expected_of_layer(config: DraftConfig, source: str, result: str) -> Iterator[tuple[str, Expected]]:
    width, n_query, n_key = config.n_embd, config.n_heads * config.n_head, config.n_kv_heads * config.n_head
    for name, gguf_name, shape in (
        ("input_layernorm.weight", "attn_norm.weight", (width,)),
        ("self_attn.q_proj.weight", "attn_q.weight", (n_query, width)),
        ("self_attn.k_proj.weight", "attn_k.weight", (n_key, width)),
        ("self_attn.v_proj.weight", "attn_v.weight", (n_key, width)),
        ("self_attn.o_proj.weight", "attn_output.weight", (width, n_query)),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", (config.n_head,)),
        ("self_attn.k_norm.weight", "attn_k_norm.weight", (config.n_head,)),
        ("post_attention_layernorm.weight", "ffn_norm.weight", (width,)),
        ("mlp.gate_proj.weight", "ffn_gate.weight", (config.n_ff, width)),
        ("mlp.up_proj.weight", "ffn_up.weight", (config.n_ff, width)),
        ("mlp.down_proj.weight", "ffn_down.weight", (width, config.n_ff)),
    ):
        yield source + name, Expected(result + gguf_name, shape)
    yield source + "self_attn.sinks", Expected(result + "attn_sinks.weight", (config.n_heads,), optional=True)
    if config.selector is not None:
        kernel = config.selector.kernel_size
        n_projected = 2 * kernel * (width // config.selector.group_size)
        for part, short in (("attention_conv", "attn_conv"), ("mlp_conv", "ffn_conv")):
            yield (
                f"{source}{part}.base_kernel",
                Expected(f"{result}{short}_base", (2, kernel, width), keep_float32=True),
            )
            yield (
                f"{source}{part}.kernel_projection.weight",
                Expected(f"{result}{short}_proj.weight", (n_projected, width)),
            )
