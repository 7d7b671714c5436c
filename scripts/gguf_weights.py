"""Building blocks of random-weight GGUF models: sizes, drawn tensors, and the parts that families have in common.

What a family is made of stands in make_test_models.py, what a draft is made of in draft_models.py. The order in which a
builder draws its tensors is part of a model: two builders that begin alike with one seed begin with the same weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

BLOCK = 32  # weights in one Q8_0 block
MAX_DRAWN_BLOCKS = 1 << 18  # a larger tensor repeats them: only models made to be measured have such
STEPS_PER_STD = 40  # a standard deviation in Q8_0 steps: +-3 of them fit into int8
Q4_STEPS_PER_STD = 2.5  # in Q4_0 steps, of which there are 16


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
    n_ids: int = 512  # of a model without a vocabulary; of others at least so many, words of no meaning at the end
    swaps_tokens: bool = False  # a vocabulary of the same size with other texts
    is_q4: bool = False  # Q4_0 in place of Q8_0
    seed: str = ""  # the model whose weights are drawn (the prefix of); none: its own


class Weights:
    """Draws tensors and gives them to the writer. Dimensions are in ggml's order, the fastest first."""

    def __init__(self, writer: GGUFWriter, seed: int, *, is_q4: bool = False) -> None:
        self._writer = writer
        self._random = np.random.default_rng(seed)
        self._is_q4 = is_q4

    def matrix(self, name: str, *dims: int, gain: float = 1.0) -> None:
        """Quantised weights with a deviation of gain / sqrt(inputs), so that a product keeps the size of its input."""
        steps_per_std = Q4_STEPS_PER_STD if self._is_q4 else STEPS_PER_STD
        n_blocks = math.prod(dims) // BLOCK
        n_drawn = min(n_blocks, MAX_DRAWN_BLOCKS)
        steps = np.rint(self._random.standard_normal((n_drawn, BLOCK), dtype=np.float32) * steps_per_std)
        scale = np.frombuffer(np.float16(gain / math.sqrt(dims[0]) / steps_per_std).tobytes(), np.uint8)
        if self._is_q4:
            nibbles = (np.clip(steps, -8, 7) + 8).astype(np.uint8)
            weights = nibbles[:, : BLOCK // 2] | nibbles[:, BLOCK // 2 :] << 4
        else:
            weights = np.clip(steps, -127, 127).astype(np.int8).view(np.uint8)
        blocks = np.concatenate([np.broadcast_to(scale, (n_drawn, 2)), weights], axis=1)
        rows = (*reversed(dims[1:]), dims[0] // BLOCK * blocks.shape[1])
        data = np.resize(blocks, (n_blocks, blocks.shape[1])).reshape(rows)
        kind = GGMLQuantizationType.Q4_0 if self._is_q4 else GGMLQuantizationType.Q8_0
        self._writer.add_tensor(name, data, raw_dtype=kind)

    def norm(self, name: str, n: int, *, scale: float = 1.0) -> None:
        self.plain(name, scale * (1 + 0.1 * self._random.standard_normal(n)))

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


def add_attention(
    t: Weights, b: str, s: Sizes, *, n_head: int, n_head_kv: int, head: int, n_out_q: int, strength: float = 1.0
) -> None:
    """`strength`: how sharply it chooses among the positions, and how much of its output goes on."""
    t.matrix(b + "attn_q.weight", s.n_embd, n_out_q)
    t.matrix(b + "attn_k.weight", s.n_embd, n_head_kv * head)
    t.matrix(b + "attn_v.weight", s.n_embd, n_head_kv * head)
    t.matrix(b + "attn_output.weight", n_head * head, s.n_embd, gain=strength)
    t.norm(b + "attn_q_norm.weight", head, scale=strength)
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


def add_shared_expert(t: Weights, b: str, s: Sizes) -> None:
    """Qwen3.5's, beside those that a router chooses."""
    t.normal(b + "ffn_gate_inp_shexp.weight", s.n_embd, deviation=1 / math.sqrt(s.n_embd))
    add_dense(t, b, s.n_embd, s.n_ff_shared, "_shexp")
