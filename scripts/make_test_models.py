#!/usr/bin/env python3
"""Writes tiny random-weight GGUF models, one for each model family that the tests need, drafts for them (in drafts/),
and larger ones to measure.

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
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import ExpertGatingFuncType, GGUFReader, GGUFValueType, GGUFWriter, PoolingType, TokenType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.draft_models import (  # noqa: E402
    Builder,
    dflash,
    eagle3,
    gemma4_assistant,
    mtp_head_alone,
    with_mtp_head,
    with_rope_base,
)
from scripts.embedding_models import bert, last_token, write_wordpieces, yes_or_no  # noqa: E402
from scripts.gguf_weights import (  # noqa: E402
    Sizes,
    Weights,
    add_attention,
    add_common_keys,
    add_dense,
    add_ends,
    add_experts,
    add_shared_expert,
)
from scripts.projector_models import projector  # noqa: E402

# Raise it with any change of what is written, here or in draft_models.py, embedding_models.py and gguf_weights.py:
# files of other versions are written anew, and the tests look at this file alone to see whether there are any.
GENERATOR_VERSION = 9
DEFAULT_TOKENIZER = ROOT / "models" / "luce-tiny-Q8_0.gguf"


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


def add_qwen35_keys(w: GGUFWriter, s: Sizes) -> None:
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


def build_qwen35(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    add_qwen35_keys(w, s)
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
            add_shared_expert(t, b, s)
        else:
            add_dense(t, b, s.n_embd, s.n_ff)


def add_gemma4_experts(t: Weights, b: str, s: Sizes) -> None:
    """The router reads what attention gives by a scale of its own; gate and up are one, down has a scale an expert."""
    for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
        t.norm(f"{b}{name}.weight", s.n_embd)
    t.normal(b + "ffn_gate_inp.weight", s.n_embd, s.n_expert, deviation=2 / math.sqrt(s.n_embd))
    t.plain(b + "ffn_gate_inp.scale", np.full(s.n_embd, math.sqrt(s.n_embd)))
    t.matrix(b + "ffn_gate_up_exps.weight", s.n_embd, 2 * s.n_ff_expert, s.n_expert)
    t.matrix(b + "ffn_down_exps.weight", s.n_ff_expert, s.n_embd, s.n_expert)
    t.normal(b + "ffn_down_exps.scale", s.n_expert, deviation=0.2, mean=1.0)


def build_gemma4(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    """Sliding layers have small heads and a window, every third layer attends to everything with heads twice that.
    A mixture has experts beside the dense part and, as the released one, no inputs of each layer's own."""
    swa = [i % 3 != 2 for i in range(s.n_layer)]
    n_kv = [s.n_head_kv if sliding else 1 for sliding in swa]
    wide = 2 * s.head
    per_layer = 0 if s.n_expert else 32
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
    if per_layer:
        t.matrix("per_layer_token_embd.weight", per_layer * s.n_layer, n_vocab)
        t.matrix("per_layer_model_proj.weight", s.n_embd, per_layer * s.n_layer)
        t.norm("per_layer_proj_norm.weight", per_layer)
    t.plain("rope_freqs.weight", np.ones(wide // 2))
    for i in range(s.n_layer):
        b, head = f"blk.{i}.", s.head if swa[i] else wide
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm"):
            if per_layer or name != "post_norm":
                t.norm(f"{b}{name}.weight", s.n_embd)
        add_attention(t, b, s, n_head=s.n_head, n_head_kv=n_kv[i], head=head, n_out_q=s.n_head * head)
        add_dense(t, b, s.n_embd, s.n_ff)
        if per_layer:
            t.matrix(b + "inp_gate.weight", s.n_embd, per_layer)
            t.matrix(b + "proj.weight", per_layer, s.n_embd)
        if s.n_expert:
            add_gemma4_experts(t, b, s)
        t.plain(b + "layer_output_scale.weight", np.ones(1))


def build_laguna(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    """One leading dense layer, then experts; layer 0 of 4 attends to everything, the others slide with more heads."""
    n_head = [s.n_head if i % 4 == 0 else s.n_head + s.n_head_kv for i in range(s.n_layer)]
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


QWEN3 = Sizes("qwen3")
QWEN35 = Sizes("qwen35", n_layer=8)
GEMMA4 = Sizes("gemma4", n_layer=6)
BERT = Sizes("bert", n_embd=64, n_layer=2, n_ff=128, n_ctx=512)
DRAFT = Sizes("dflash", n_layer=2)
HEAD = Sizes("eagle3", n_layer=1)

MODELS: dict[str, tuple[Builder, Sizes]] = {
    "qwen3": (build_qwen3, QWEN3),
    "qwen3moe": (build_qwen3, Sizes("qwen3moe", n_expert=8)),
    "qwen35": (build_qwen35, QWEN35),
    "qwen35moe": (build_qwen35, Sizes("qwen35moe", n_layer=8, n_expert=8)),
    # Without a layer of attention: refused.
    "qwen35_recurrent": (build_qwen35, replace(QWEN35, n_layer=3)),
    "gemma4": (build_gemma4, GEMMA4),
    "gemma4moe": (build_gemma4, Sizes("gemma4", n_layer=6, n_expert=8)),
    "laguna": (build_laguna, Sizes("laguna", n_layer=5, n_expert=8)),
    "no_vocab": (build_qwen3, Sizes("qwen3", has_vocab=False)),
    # Embedding models and rerankers: encoders, and decoders whose last token says it all.
    "embeddings/bert": (bert(PoolingType.MEAN), BERT),
    "embeddings/bert-cls": (bert(PoolingType.CLS), replace(BERT, seed="embeddings/bert")),
    "embeddings/bert-rank": (bert(PoolingType.RANK), replace(BERT, seed="embeddings/bert")),
    "embeddings/qwen3": (last_token(build_qwen3), replace(QWEN3, seed="qwen3")),
    "embeddings/qwen3-rank": (yes_or_no(build_qwen3), replace(QWEN3, seed="qwen3")),
    # qwen35 with a head that drafts.
    "qwen35_mtp": (with_mtp_head(build_qwen35), replace(QWEN35, seed="qwen35")),
    "qwen35moe_mtp": (with_mtp_head(build_qwen35), Sizes("qwen35moe", n_layer=8, n_expert=8)),
    # Projectors, for models whose rows have the same number of values: qwen3's and gemma4's.
    "mmproj/llava": (projector("mlp", image=80, n_text=QWEN3.n_embd), Sizes("clip", has_vocab=False)),
    "mmproj/qwen3vl": (projector("qwen3vl_merger", image=80, n_text=QWEN35.n_embd), Sizes("clip", has_vocab=False)),
    "mmproj/gemma3": (projector("gemma3", image=128, n_text=GEMMA4.n_embd), Sizes("clip", has_vocab=False)),
    # Drafts, each with its target's name at the end.
    "drafts/dflash-qwen3": (dflash([0, 2, 3]), DRAFT),
    "drafts/dflash-causal": (dflash([0, 2, 3], is_causal=True), replace(DRAFT, seed="drafts/dflash-qwen3")),
    "drafts/dspark-qwen3": (dflash([0, 2, 3], head="anchor"), DRAFT),
    "drafts/dspark-bonus": (dflash([0, 2, 3], head="bonus"), DRAFT),
    "drafts/dflash2-qwen3": (dflash([0, 2, 3], head="selector"), DRAFT),
    "drafts/dflash2-qwen35": (dflash([1, 3, 5, 7], sections=True, head="selector"), DRAFT),
    "drafts/dflash-qwen3moe": (dflash([1, 2, 3]), DRAFT),
    "drafts/dflash-qwen35": (dflash([1, 3, 5, 7], sections=True), DRAFT),
    "drafts/dflash-qwen35moe": (dflash([1, 4, 7], sections=True), DRAFT),
    "drafts/dflash-gemma4": (dflash([1, 3, 5], embedding_scale=math.sqrt(DRAFT.n_embd)), DRAFT),
    "drafts/dflash-laguna": (dflash([1, 2, 4], window=64), replace(DRAFT, n_layer=3)),
    "drafts/eagle3-qwen3": (eagle3([1, 2, 3], n_embd_target=QWEN3.n_embd), HEAD),
    "drafts/eagle3-qwen35": (eagle3([2, 4, 8], n_embd_target=QWEN35.n_embd, is_reduced=True), replace(HEAD, n_embd=64)),
    "drafts/mtp-qwen35": (mtp_head_alone(add_qwen35_keys), replace(QWEN35, seed="qwen35")),
    "drafts/assistant-gemma4": (gemma4_assistant(GEMMA4), Sizes("gemma4-assistant", n_embd=64, n_layer=3)),
    "drafts/simple-qwen3": (with_rope_base(9e5, build_qwen3), replace(QWEN3, seed="qwen3")),
    # Drafts that are refused: another vocabulary, a narrower hidden size, a layer that none has.
    "drafts/other-vocabulary": (build_qwen3, Sizes("qwen3", n_embd=64, n_layer=1, swaps_tokens=True)),
    "drafts/dflash-narrow": (dflash([0, 2, 3]), replace(DRAFT, n_embd=64)),
    "drafts/dflash-deep": (dflash([0, 2, 99]), DRAFT),
    "drafts/eagle3-deep": (eagle3([1, 2, 99], n_embd_target=QWEN3.n_embd), HEAD),
}

BENCH_SHAPES: dict[str, tuple[Builder, Sizes]] = {
    "bench-attention-small": (build_qwen3, Sizes("qwen3", 256, 3, 2048, n_head_kv=1, n_ctx=65536)),
    "bench-window-small": (build_gemma4, Sizes("gemma4", 256, 6, 1536, n_head_kv=1, window=512, n_ctx=65536)),
    # One small layer of attention, so that a token costs little late in an answer, too.
    "bench-answers": (build_qwen35, Sizes("qwen35", 64, 4, 256, n_head=1, n_head_kv=1, n_ctx=65536)),
    "bench-150m": (build_qwen3, Sizes("qwen3", n_embd=768, n_layer=16, n_ff=3072, n_head=12, n_head_kv=4)),
    # Its tokens cost what they cost of a large vocabulary.
    "bench-vocabulary": (build_qwen3, Sizes("qwen3", 768, 16, 3072, n_head=12, n_head_kv=4, n_ids=248320)),
    "bench-hybrid-150m": (
        build_qwen35,
        Sizes("qwen35", 768, 16, 2560, n_head=12, n_head_kv=4, state_heads_k=8, state_heads_v=16, state=64),
    ),
    "bench-8b": (
        build_qwen35,
        Sizes("qwen35", 4096, 32, 14336, 32, 8, head=128, state_heads_k=16, state_heads_v=32, state=128),
    ),
    "bench-8b-attention": (build_qwen3, Sizes("qwen3", 4096, 36, 12288, 32, 8, head=128, n_ctx=65536)),
    # As large as a model of 0.6B that says what of a prompt matters to one without a vocabulary.
    "bench-scorer": (
        build_qwen3,
        Sizes("qwen3", 1024, 28, 3072, 16, 8, head=128, n_ctx=262144, has_vocab=False, n_ids=248320),
    ),
    # As large as what people run: a hybrid of 27B, and a mixture of 26B of which a token reads 4B.
    "bench-27b": (
        build_qwen35,
        Sizes("qwen35", 5120, 64, 17408, 24, 4, head=256, state_heads_k=16, state_heads_v=48, state=128, n_ctx=262144),
    ),
    "bench-26b-a4b": (
        build_qwen35,
        Sizes(
            "qwen35moe",
            2816,
            32,
            n_head=16,
            n_head_kv=4,
            head=256,
            n_expert=128,
            n_expert_used=8,
            n_ff_expert=704,
            n_ff_shared=2112,
            state_heads_k=16,
            state_heads_v=32,
            state=128,
            n_ctx=262144,
        ),
    ),
    # As large as two mixtures that people run on cards of 8 to 24 GiB: Gemma 4's of 26B and Laguna's of 33B.
    "bench-gemma4-26b": (
        build_gemma4,
        Sizes("gemma4", 2816, 30, 2112, 16, 8, 256, 128, 8, 704, window=1024, n_ctx=262144, n_ids=262144, is_q4=True),
    ),
    "bench-laguna-33b": (
        build_laguna,
        Sizes(
            "laguna", 2048, 40, 8192, 48, 8, 128, 256, 8, 512, 512, window=512, n_ctx=131072, n_ids=100352, is_q4=True
        ),
    ),
    # bench-8b's drafter, which is never right: what the gate has to see.
    "bench-8b-dflash": (
        dflash([2, 10, 18, 26, 31], sections=True),
        Sizes("dflash", 4096, 5, 14336, 32, 8, head=128),
    ),
}


@cache
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
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        writer = GGUFWriter(scratch, sizes.arch)
        writer.add_name(name)
        writer.add_uint32("luce.generator_version", GENERATOR_VERSION)
        n_vocab = sizes.n_ids
        if sizes.arch == "bert":
            n_vocab = write_wordpieces(writer)
        elif sizes.has_vocab:
            for key, value, kind, element in read_tokenizer(tokenizer):
                if key == "tokenizer.ggml.tokens":
                    texts = [*value[:300], value[301], value[300], *value[302:]] if sizes.swaps_tokens else value
                    texts = [*texts, *(f"word{i}" for i in range(len(texts), sizes.n_ids))]
                    n_vocab = len(texts)
                    writer.add_array(key, texts)
                elif key == "tokenizer.ggml.token_type":
                    added = [TokenType.NORMAL] * (sizes.n_ids - len(value))
                    writer.add_token_types([*value, *added])
                else:
                    writer.add_key_value(key, value, kind, element)
        else:
            writer.add_string("tokenizer.ggml.model", "no_vocab")
        writer.add_vocab_size(n_vocab)
        weights = Weights(writer, zlib.crc32((sizes.seed or name).encode()), is_q4=sizes.is_q4)
        build(writer, weights, sizes, n_vocab)
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
    if not options.only and not options.shape:  # the tests ask this whether they have to make any
        (options.out_dir / "made-by.py").write_bytes(Path(__file__).read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
