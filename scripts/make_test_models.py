#!/usr/bin/env python3
"""Writes tiny random-weight GGUF models, one for each model family that the tests need, and larger ones to measure.

Random weights make no sense of a text, but they run every kernel and every cache that the real family uses. The
weights are seeded and scaled so that logits are spread (a greedy step is rarely a tie) and the text is not constant.
This file knows GGUF's names of keys and tensors; it must not know the daemon.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

GENERATOR_VERSION = 2
BLOCK = 32  # weights in one Q8_0 block
MAX_DRAWN_BLOCKS = 1 << 18  # a larger tensor repeats them: only models made to be measured have such
STEPS_PER_STD = 40  # a standard deviation in Q8_0 steps: +-3 of them fit into int8
ROOT = Path(__file__).resolve().parent.parent
DEFAULT_TOKENIZER = ROOT / "models" / "luce-tiny-Q8_0.gguf"


@dataclass(frozen=True)
class Sizes:
    """The numbers that a family's builder needs; what a family lacks stays at its default."""

    arch: str
    n_embd: int = 128
    n_layer: int = 4
    n_ff: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    head: int = 64
    n_expert: int = 0
    n_expert_used: int = 2
    n_ff_expert: int = 64
    n_ff_shared: int = 64
    state_heads_k: int = 2
    state_heads_v: int = 4
    state: int = 32
    window: int = 128
    n_ctx: int = 8192
    has_vocab: bool = True


class Weights:
    """Draws tensors and gives them to the writer. Dimensions are in ggml's order, the fastest first."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, *dims: int, gain: float = 1.0) -> None:
        """Q8_0 weights with a deviation of gain / sqrt(inputs), so that a product keeps the size of its input."""
        n_blocks = math.prod(dims) // BLOCK
        n_drawn = min(n_blocks, MAX_DRAWN_BLOCKS)
        steps = self._random.standard_normal((n_drawn, BLOCK), dtype=np.float32) * STEPS_PER_STD
        blocks = np.empty((n_drawn, BLOCK + 2), np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(gain / math.sqrt(dims[0]) / STEPS_PER_STD).tobytes(), np.uint8)
        blocks[:, 2:] = np.clip(np.rint(steps), -127, 127).astype(np.int8).view(np.uint8)
        rows = (*reversed(dims[1:]), dims[0] // BLOCK * (BLOCK + 2))
        data = np.resize(blocks, (n_blocks, BLOCK + 2)).reshape(rows)
        self._writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType.Q8_0)

    def norm(self, name: str, n: int) -> None:
        self.plain(name, 1 + 0.1 * self._random.standard_normal(n))

    def normal(self, name: str, *dims: int, deviation: float, mean: float = 0.0) -> None:
        self.plain(name, mean + deviation * self._random.standard_normal(tuple(reversed(dims))))

    def plain(self, name: str, values: np.ndarray[Any, Any]) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values, np.float32))


def add_common_keys(w: GGUFWriter, s: Sizes) -> None:
    w.add_block_count(s.n_layer)
    w.add_context_length(s.n_ctx)
    w.add_embedding_length(s.n_embd)
    w.add_head_count(s.n_head)
    w.add_head_count_kv(s.n_head_kv)
    w.add_key_length(s.head)
    w.add_value_length(s.head)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e6)
    w.add_feed_forward_length(s.n_ff)
    if s.n_expert:
        w.add_expert_count(s.n_expert)
        w.add_expert_used_count(s.n_expert_used)
        w.add_expert_feed_forward_length(s.n_ff_expert)


def add_ends(t: Weights, s: Sizes, n_vocab: int) -> None:
    """Embedding and output are apart: tied random ones would mostly repeat the last token."""
    t.matrix("token_embd.weight", s.n_embd, n_vocab, gain=math.sqrt(s.n_embd))
    t.matrix("output.weight", s.n_embd, n_vocab, gain=6.0)
    t.norm("output_norm.weight", s.n_embd)


def add_attention(t: Weights, b: str, s: Sizes, *, n_head: int, n_head_kv: int, head: int, n_out_q: int) -> None:
    t.matrix(b + "attn_q.weight", s.n_embd, n_out_q)
    t.matrix(b + "attn_k.weight", s.n_embd, n_head_kv * head)
    t.matrix(b + "attn_v.weight", s.n_embd, n_head_kv * head)
    t.matrix(b + "attn_output.weight", n_head * head, s.n_embd)
    t.norm(b + "attn_q_norm.weight", head)
    t.norm(b + "attn_k_norm.weight", head)


def add_dense(t: Weights, b: str, n_embd: int, n_ff: int, suffix: str = "") -> None:
    t.matrix(f"{b}ffn_gate{suffix}.weight", n_embd, n_ff)
    t.matrix(f"{b}ffn_up{suffix}.weight", n_embd, n_ff)
    t.matrix(f"{b}ffn_down{suffix}.weight", n_ff, n_embd)


def add_experts(t: Weights, b: str, s: Sizes) -> None:
    t.normal(b + "ffn_gate_inp.weight", s.n_embd, s.n_expert, deviation=2 / math.sqrt(s.n_embd))
    t.matrix(b + "ffn_gate_exps.weight", s.n_embd, s.n_ff_expert, s.n_expert)
    t.matrix(b + "ffn_up_exps.weight", s.n_embd, s.n_ff_expert, s.n_expert)
    t.matrix(b + "ffn_down_exps.weight", s.n_ff_expert, s.n_embd, s.n_expert)


def build_qwen3(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    add_common_keys(w, s)
    add_ends(t, s, n_vocab)
    for i in range(s.n_layer):
        b = f"blk.{i}."
        t.norm(b + "attn_norm.weight", s.n_embd)
        add_attention(t, b, s, n_head=s.n_head, n_head_kv=s.n_head_kv, head=s.head, n_out_q=s.n_head * s.head)
        t.norm(b + "ffn_norm.weight", s.n_embd)
        if s.n_expert:
            add_experts(t, b, s)
        else:
            add_dense(t, b, s.n_embd, s.n_ff)


def add_recurrent(t: Weights, b: str, s: Sizes) -> None:
    inner = s.state_heads_v * s.state
    conv = inner + 2 * s.state_heads_k * s.state
    t.matrix(b + "attn_qkv.weight", s.n_embd, conv)
    t.matrix(b + "attn_gate.weight", s.n_embd, inner)
    t.normal(b + "ssm_a", s.state_heads_v, deviation=0.2, mean=-1.0)
    t.normal(b + "ssm_dt.bias", s.state_heads_v, deviation=0.5, mean=-2.0)
    t.matrix(b + "ssm_alpha.weight", s.n_embd, s.state_heads_v)
    t.matrix(b + "ssm_beta.weight", s.n_embd, s.state_heads_v)
    t.normal(b + "ssm_conv1d.weight", 4, conv, deviation=0.5)
    t.norm(b + "ssm_norm.weight", s.state)
    t.matrix(b + "ssm_out.weight", inner, s.n_embd)


def build_qwen35(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    add_common_keys(w, s)
    w.add_rope_dimension_count(s.head // 4)
    w.add_array(f"{s.arch}.rope.dimension_sections", [3, 3, 2, 0])
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(s.state)
    w.add_ssm_group_count(s.state_heads_k)
    w.add_ssm_time_step_rank(s.state_heads_v)
    w.add_ssm_inner_size(s.state_heads_v * s.state)
    w.add_uint32(f"{s.arch}.full_attention_interval", 4)
    if s.n_expert:
        w.add_expert_shared_feed_forward_length(s.n_ff_shared)
    add_ends(t, s, n_vocab)
    for i in range(s.n_layer):
        b = f"blk.{i}."
        t.norm(b + "attn_norm.weight", s.n_embd)
        if i % 4 == 3:  # queries carry their gate: twice the size
            add_attention(t, b, s, n_head=s.n_head, n_head_kv=s.n_head_kv, head=s.head, n_out_q=2 * s.n_head * s.head)
        else:
            add_recurrent(t, b, s)
        t.norm(b + "post_attention_norm.weight", s.n_embd)
        if s.n_expert:
            add_experts(t, b, s)
            t.normal(b + "ffn_gate_inp_shexp.weight", s.n_embd, deviation=1 / math.sqrt(s.n_embd))
            add_dense(t, b, s.n_embd, s.n_ff_shared, "_shexp")
        else:
            add_dense(t, b, s.n_embd, s.n_ff)


def build_gemma4(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    """Sliding layers have small heads and a window, every third layer attends to everything with heads twice that."""
    swa = [i % 3 != 2 for i in range(s.n_layer)]
    n_kv = [s.n_head_kv if sliding else 1 for sliding in swa]
    wide = 2 * s.head
    per_layer = 32
    add_common_keys(w, s)
    del w.kv_data[0][f"{s.arch}.attention.head_count_kv"]
    w.add_head_count_kv(n_kv)
    w.kv_data[0][f"{s.arch}.attention.key_length"].value = wide
    w.kv_data[0][f"{s.arch}.attention.value_length"].value = wide
    w.add_uint32(f"{s.arch}.attention.key_length_swa", s.head)
    w.add_uint32(f"{s.arch}.attention.value_length_swa", s.head)
    w.add_sliding_window(s.window)
    w.add_array(f"{s.arch}.attention.sliding_window_pattern", swa)
    w.add_uint32(f"{s.arch}.attention.shared_kv_layers", 0)
    w.add_rope_dimension_count(wide)
    w.add_uint32(f"{s.arch}.rope.dimension_count_swa", s.head)
    w.add_float32(f"{s.arch}.rope.freq_base_swa", 1e4)
    w.add_final_logit_softcapping(30.0)
    w.add_uint32(f"{s.arch}.embedding_length_per_layer_input", per_layer)
    add_ends(t, s, n_vocab)
    t.matrix("per_layer_token_embd.weight", per_layer * s.n_layer, n_vocab)
    t.matrix("per_layer_model_proj.weight", s.n_embd, per_layer * s.n_layer)
    t.norm("per_layer_proj_norm.weight", per_layer)
    t.plain("rope_freqs.weight", np.ones(wide // 2))
    for i in range(s.n_layer):
        b, head = f"blk.{i}.", s.head if swa[i] else wide
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            t.norm(f"{b}{name}.weight", s.n_embd)
        add_attention(t, b, s, n_head=s.n_head, n_head_kv=n_kv[i], head=head, n_out_q=s.n_head * head)
        add_dense(t, b, s.n_embd, s.n_ff)
        t.matrix(b + "inp_gate.weight", s.n_embd, per_layer)
        t.matrix(b + "proj.weight", per_layer, s.n_embd)
        t.plain(b + "layer_output_scale.weight", np.ones(1))


def build_laguna(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    """One leading dense layer, then experts; layer 0 of 4 attends to everything, the others slide with more heads."""
    n_head = [s.n_head if i % 4 == 0 else s.n_head + 2 for i in range(s.n_layer)]
    add_common_keys(w, s)
    del w.kv_data[0][f"{s.arch}.attention.head_count"]
    w.add_head_count(n_head)
    w.add_leading_dense_block_count(1)
    w.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    w.add_expert_weights_scale(1.5)
    w.add_expert_weights_norm(True)
    w.add_expert_shared_feed_forward_length(s.n_ff_shared)
    w.add_sliding_window(s.window)
    w.add_rope_dimension_count(s.head // 2)
    w.add_uint32(f"{s.arch}.rope.dimension_count_swa", s.head)
    w.add_float32(f"{s.arch}.rope.freq_base_swa", 1e4)
    add_ends(t, s, n_vocab)
    for i in range(s.n_layer):
        b = f"blk.{i}."
        t.norm(b + "attn_norm.weight", s.n_embd)
        add_attention(t, b, s, n_head=n_head[i], n_head_kv=s.n_head_kv, head=s.head, n_out_q=n_head[i] * s.head)
        t.matrix(b + "attn_gate.weight", s.n_embd, n_head[i])
        t.norm(b + "ffn_norm.weight", s.n_embd)
        if i == 0:
            add_dense(t, b, s.n_embd, s.n_ff)
            continue
        add_experts(t, b, s)
        t.normal(b + "exp_probs_b.bias", s.n_expert, deviation=0.1)
        add_dense(t, b, s.n_embd, s.n_ff_shared, "_shexp")


Builder = Callable[[GGUFWriter, Weights, Sizes, int], None]

MODELS: dict[str, tuple[Builder, Sizes]] = {
    "qwen3": (build_qwen3, Sizes("qwen3")),
    "qwen3moe": (build_qwen3, Sizes("qwen3moe", n_expert=8)),
    "qwen35": (build_qwen35, Sizes("qwen35", n_layer=8)),
    "qwen35moe": (build_qwen35, Sizes("qwen35moe", n_layer=8, n_expert=8)),
    "gemma4": (build_gemma4, Sizes("gemma4", n_layer=6)),
    "laguna": (build_laguna, Sizes("laguna", n_layer=5, n_expert=8)),
    "no_vocab": (build_qwen3, Sizes("qwen3", has_vocab=False)),
}

BENCH_SHAPES: dict[str, tuple[Builder, Sizes]] = {
    "bench-attention-small": (build_qwen3, Sizes("qwen3", 256, 3, 2048, n_head_kv=1, n_ctx=65536)),
    "bench-window-small": (build_gemma4, Sizes("gemma4", 256, 6, 1536, n_head_kv=1, window=512, n_ctx=65536)),
    "bench-150m": (build_qwen3, Sizes("qwen3", n_embd=768, n_layer=16, n_ff=3072, n_head=12, n_head_kv=4)),
    "bench-hybrid-150m": (
        build_qwen35,
        Sizes("qwen35", 768, 16, 2560, n_head=12, n_head_kv=4, state_heads_k=8, state_heads_v=16, state=64),
    ),
    "bench-8b": (
        build_qwen35,
        Sizes("qwen35", 4096, 32, 14336, 32, 8, head=128, state_heads_k=16, state_heads_v=32, state=128),
    ),
}


def read_tokenizer(path: Path) -> list[tuple[str, Any, GGUFValueType, GGUFValueType | None]]:
    """All tokenizer.* pairs of a model: key, value, type, element type (arrays)."""
    found = []
    for key, field in GGUFReader(path).fields.items():
        if key.startswith("tokenizer."):
            element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            found.append((key, field.contents(), field.types[0], element))
    if not found:
        raise SystemExit(f"{path} holds no tokenizer")
    return found


def is_current(path: Path, name: str) -> bool:
    if not path.exists():
        return False
    try:
        fields = GGUFReader(path).fields
    except (ValueError, OSError, IndexError):
        return False
    label, version = fields.get("general.name"), fields.get("luce.generator_version")
    return bool(label and version and label.contents() == name and version.contents() == GENERATOR_VERSION)


def write_model(path: Path, name: str, tokenizer: Path) -> None:
    build, sizes = {**MODELS, **BENCH_SHAPES}[name]
    handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        writer = GGUFWriter(scratch, sizes.arch)
        writer.add_name(name)
        writer.add_uint32("luce.generator_version", GENERATOR_VERSION)
        n_vocab = 512
        if sizes.has_vocab:
            for key, value, kind, element in read_tokenizer(tokenizer):
                writer.add_key_value(key, value, kind, element)
                n_vocab = len(value) if key == "tokenizer.ggml.tokens" else n_vocab
        else:
            writer.add_string("tokenizer.ggml.model", "no_vocab")
        writer.add_vocab_size(n_vocab)
        build(writer, Weights(writer, zlib.crc32(name.encode())), sizes, n_vocab)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        Path(scratch).replace(path)
    finally:
        Path(scratch).unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Write tiny random-weight GGUF models for tests, or larger ones for measurements.",
        epilog=f"Models: {', '.join(MODELS)}. Shapes for measurements: {', '.join(BENCH_SHAPES)}. "
        "A file that is there and was written by this version is kept.",
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="folder for the files (NAME.gguf)")
    parser.add_argument("--only", nargs="+", choices=list(MODELS), metavar="NAME", help="write these models only")
    parser.add_argument("--shape", nargs="+", choices=list(BENCH_SHAPES), default=[], metavar="SHAPE",
                        help="write these larger models (alone, unless --only names others)")  # fmt: skip
    parser.add_argument("--tokenizer-from", type=Path, default=DEFAULT_TOKENIZER, metavar="GGUF",
                        help="model whose vocabulary and template are used (default: the packaged one)")  # fmt: skip
    options = parser.parse_args(arguments)
    if not options.tokenizer_from.is_file():
        parser.error(f"--tokenizer-from {options.tokenizer_from}: no such file")
    options.out_dir.mkdir(parents=True, exist_ok=True)
    for name in [*(options.only or ([] if options.shape else MODELS)), *options.shape]:
        path = options.out_dir / f"{name}.gguf"
        if is_current(path, name):
            print(f"{path}: current")
            continue
        write_model(path, name, options.tokenizer_from)
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
