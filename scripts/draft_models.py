"""Random-weight draft models of every kind that llama.cpp loads: DFlash, EAGLE-3, MTP heads, Gemma 4's assistant.

Each is made for one of the test models as its target, so the numbers that both must agree on (hidden size, layers,
KV heads) are that target's. Their drafts are as good as chance, but run all that real ones run. Only the plain draft
model's are better: it has its target's weights.
This file knows GGUF's names of keys and tensors; it must not know the daemon.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Literal

import numpy as np
from gguf import GGUFWriter

from scripts.gguf_weights import (
    Sizes,
    Weights,
    add_attention,
    add_common_keys,
    add_dense,
    add_ends,
    add_experts,
    add_shared_expert,
)

Builder = Callable[[GGUFWriter, Weights, Sizes, int], None]

MTP_SEED = zlib.crc32(b"mtp heads")  # the heads are the same in the target's file and in one of their own
N_REDUCED_VOCAB = 1024
STRENGTH = 4.0
RANK = 32  # of what a drafter's head knows of a token


def mask_token(n_vocab: int) -> int:
    """The drafts' mask token: the packaged vocabulary's, whose last ten ids are kept for such."""
    return n_vocab - 7


def dflash(
    target_layers: list[int], *, sections: bool = False, window: int = 0, embedding_scale: float = 0.0,
    is_causal: bool = False, head: Literal["", "anchor", "bonus", "selector"] = "",
) -> Builder:  # fmt: skip
    """A block-diffusion draft that reads the inputs of `target_layers`; `sections` for a target with M-RoPE, `window`
    for sliding attention in all layers but the last; `is_causal`: a block's tokens see only those before them; `head`:
    a DSpark draft, which drafts from its block's first place on (anchor) or from the second (bonus), or a DFlash2 draft
    (selector)."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        add_common_keys(w, s)
        w.add_uint32(f"{s.arch}.block_size", 16)
        w.add_array(f"{s.arch}.target_layers", target_layers)
        w.add_mask_token_id(mask_token(n_vocab))
        if sections:
            w.add_array(f"{s.arch}.rope.dimension_sections", [s.head // 2, 0, 0, 0])
        if window:
            w.add_sliding_window(window)
            w.add_array(f"{s.arch}.attention.sliding_window_pattern", [i < s.n_layer - 1 for i in range(s.n_layer)])
        if embedding_scale:
            w.add_float32(f"{s.arch}.embedding_scale", embedding_scale)
        if is_causal:
            w.add_causal_attention(True)
        t.matrix("fc.weight", len(target_layers) * s.n_embd, s.n_embd)
        t.norm("enc.output_norm.weight", s.n_embd)
        t.norm("output_norm.weight", s.n_embd)
        for i in range(s.n_layer):
            b = f"blk.{i}."
            t.norm(b + "attn_norm.weight", s.n_embd)
            # Strong, so that drafts differ with the text and not with the masks' positions alone.
            add_attention(
                t,
                b,
                s,
                n_head=s.n_head,
                n_head_kv=s.n_head_kv,
                head=s.head,
                n_out_q=s.n_head * s.head,
                strength=STRENGTH,
            )
            t.norm(b + "ffn_norm.weight", s.n_embd)
            add_dense(t, b, s.n_embd, s.n_ff)
        if head in {"anchor", "bonus"}:
            w.add_bool(f"{s.arch}.sample_from_anchor", head == "anchor")
            t.matrix("markov_w1.weight", RANK, n_vocab)
            t.matrix("markov_w2.weight", RANK, n_vocab, gain=STRENGTH)
            t.matrix("conf_proj.weight", s.n_embd + RANK, 1)
        if head == "selector":
            add_selector(w, t, s, n_vocab)

    return build


def add_selector(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
    """What DFlash2 has more than DFlash: convolutions along the block, and the choice among each place's likeliest."""
    kernel, group, top_k = 3, 16, 8
    for key, value in {"conv_kernel_size": kernel, "conv_group_size": group, "selector_rank": RANK}.items():
        w.add_uint32(f"{s.arch}.{key}", value)
    w.add_uint32(f"{s.arch}.selector_top_k", top_k)
    t.matrix("selector_predecessor.weight", RANK, n_vocab, gain=STRENGTH)
    t.matrix("selector_successor.weight", RANK, n_vocab, gain=STRENGTH)
    t.matrix("selector_hidden.weight", s.n_embd, RANK)
    for i in range(s.n_layer):
        for part in ("attn_conv", "ffn_conv"):
            t.normal(f"blk.{i}.{part}_base", s.n_embd, kernel, 2, deviation=0.3)
            t.matrix(f"blk.{i}.{part}_proj.weight", s.n_embd, 2 * kernel * (s.n_embd // group))


def eagle3(target_layers: list[int], *, n_embd_target: int, is_reduced: bool = False) -> Builder:
    """One layer over the fused inputs of three layers of the target. Embeddings are the target's where the sizes are
    equal; `is_reduced`: its output knows every eighth token only."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        add_common_keys(w, s)
        w.add_array(f"{s.arch}.target_layers", target_layers)
        w.add_uint32(f"{s.arch}.target_hidden_size", n_embd_target)
        t.matrix("fc.weight", len(target_layers) * n_embd_target, s.n_embd)
        t.norm("output_norm.weight", s.n_embd)
        n_out = N_REDUCED_VOCAB if is_reduced else n_vocab
        if is_reduced or s.n_embd != n_embd_target:
            t.matrix("output.weight", s.n_embd, n_out, gain=6.0)
        if is_reduced:
            ids = np.arange(N_REDUCED_VOCAB, dtype=np.int64) * (n_vocab // N_REDUCED_VOCAB)
            w.add_tensor("d2t", ids)
        if s.n_embd != n_embd_target:
            t.matrix("token_embd.weight", s.n_embd, n_vocab, gain=math.sqrt(s.n_embd))
        b = "blk.0."
        for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
            t.norm(f"{b}{name}.weight", s.n_embd)
        t.matrix(b + "attn_q.weight", 2 * s.n_embd, s.n_head * s.head)
        t.matrix(b + "attn_k.weight", 2 * s.n_embd, s.n_head_kv * s.head)
        t.matrix(b + "attn_v.weight", 2 * s.n_embd, s.n_head_kv * s.head)
        t.matrix(b + "attn_output.weight", s.n_head * s.head, s.n_embd)
        add_dense(t, b, s.n_embd, s.n_ff)

    return build


def add_mtp_head(w: GGUFWriter, s: Sizes) -> None:
    """The block after the last one of a Qwen3.5: an attention layer over a token's embedding and the hidden state
    before it."""
    t = Weights(w, MTP_SEED)
    w.kv_data[0][f"{s.arch}.block_count"].value = s.n_layer + 1
    w.add_nextn_predict_layers(1)
    b = f"blk.{s.n_layer}."
    t.norm(b + "attn_norm.weight", s.n_embd)
    add_attention(t, b, s, n_head=s.n_head, n_head_kv=s.n_head_kv, head=s.head, n_out_q=2 * s.n_head * s.head)
    t.norm(b + "post_attention_norm.weight", s.n_embd)
    if s.n_expert:
        add_experts(t, b, s)
        add_shared_expert(t, b, s)
    else:
        add_dense(t, b, s.n_embd, s.n_ff)
    t.matrix(b + "nextn.eh_proj.weight", 2 * s.n_embd, s.n_embd)
    t.norm(b + "nextn.enorm.weight", s.n_embd)
    t.norm(b + "nextn.hnorm.weight", s.n_embd)
    t.norm(b + "nextn.shared_head_norm.weight", s.n_embd)


def with_rope_base(base: float, build_target: Builder) -> Builder:
    """The target's weights at positions that it takes for others: right now and then."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        build_target(w, t, s, n_vocab)
        w.kv_data[0][f"{s.arch}.rope.freq_base"].value = base

    return build


def with_mtp_head(build_target: Builder) -> Builder:
    """The target with a head of its own, in one file."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        build_target(w, t, s, n_vocab)
        add_mtp_head(w, s)

    return build


def mtp_head_alone(add_target_keys: Callable[[GGUFWriter, Sizes], None]) -> Builder:
    """That head in a file of its own, with the ends that it shares with its target."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        add_target_keys(w, s)
        add_ends(t, s, n_vocab)
        add_mtp_head(w, s)

    return build


def gemma4_assistant(target: Sizes) -> Builder:
    """Heads without a KV of their own: sliding ones attend to the target's last but one layer, the last one to its
    last, so their KV heads are those."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        swa = [i < s.n_layer - 1 for i in range(s.n_layer)]
        wide = 2 * target.head
        add_common_keys(w, s)
        del w.kv_data[0][f"{s.arch}.attention.head_count_kv"]
        w.add_head_count_kv([target.n_head_kv if sliding else 1 for sliding in swa])
        w.kv_data[0][f"{s.arch}.attention.key_length"].value = wide
        w.kv_data[0][f"{s.arch}.attention.value_length"].value = wide
        w.add_uint32(f"{s.arch}.attention.key_length_swa", target.head)
        w.add_uint32(f"{s.arch}.attention.value_length_swa", target.head)
        w.add_uint32(f"{s.arch}.embedding_length_out", target.n_embd)
        w.add_nextn_predict_layers(s.n_layer)
        w.add_sliding_window(target.window)
        w.add_array(f"{s.arch}.attention.sliding_window_pattern", swa)
        w.add_rope_dimension_count(wide)
        w.add_uint32(f"{s.arch}.rope.dimension_count_swa", target.head)
        w.add_float32(f"{s.arch}.rope.freq_base_swa", 1e4)
        t.matrix("token_embd.weight", s.n_embd, n_vocab, gain=math.sqrt(s.n_embd))
        t.norm("output_norm.weight", s.n_embd)
        t.matrix("nextn.pre_projection.weight", 2 * target.n_embd, s.n_embd)
        t.matrix("nextn.post_projection.weight", s.n_embd, target.n_embd)
        t.plain("rope_freqs.weight", np.ones(wide // 2))
        for i, sliding in enumerate(swa):
            b, head = f"blk.{i}.", target.head if sliding else wide
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                t.norm(f"{b}{name}.weight", s.n_embd)
            t.matrix(b + "attn_q.weight", s.n_embd, s.n_head * head)
            t.matrix(b + "attn_output.weight", s.n_head * head, s.n_embd)
            t.norm(b + "attn_q_norm.weight", head)
            t.plain(b + "layer_output_scale.weight", np.ones(1))
            add_dense(t, b, s.n_embd, s.n_ff)

    return build
