"""Tiny random projectors (mmproj files) for the tests' models: what makes rows of embeddings of an image.

Three kinds: LLaVA's, whose rows are read like tokens; Gemma 3's, whose rows see each other; Qwen 3's, whose rows have
places in two dimensions. This file knows GGUF's names of keys and tensors; it must not know the daemon.
"""

from __future__ import annotations

from gguf import GGUFWriter

from scripts.draft_models import Builder
from scripts.gguf_weights import Sizes, Weights

PATCH = 8
N_EMBD, N_FF, N_HEAD = 64, 128, 2


def projector(kind: str, *, image: int, n_text: int, n_layer: int = 2) -> Builder:
    """`image`: pixels a side; `n_text`: values of a row, as the text model takes them."""

    def build(w: GGUFWriter, t: Weights, s: Sizes, n_vocab: int) -> None:
        del s, n_vocab
        w.add_string("general.type", "mmproj")
        w.add_string("clip.projector_type", kind)
        w.add_bool("clip.has_vision_encoder", True)
        w.add_bool("clip.use_gelu", True)
        for key, value in {
            "image_size": image, "patch_size": PATCH, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
            "block_count": n_layer, "projection_dim": n_text, "attention.head_count": N_HEAD,
        }.items():  # fmt: skip
            w.add_uint32(f"clip.vision.{key}", value)
        w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        w.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        w.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
        t.normal("v.patch_embd.weight", PATCH, PATCH, 3, N_EMBD, deviation=0.2)
        t.normal("v.patch_embd.bias", N_EMBD, deviation=0.1)
        t.normal("v.position_embd.weight", N_EMBD, (image // PATCH) ** 2, deviation=1.0)
        for i in range(n_layer):
            _layer(t, f"v.blk.{i}.", is_fused=kind == "qwen3vl_merger")
        t.norm("v.post_ln.weight", N_EMBD)
        t.normal("v.post_ln.bias", N_EMBD, deviation=0.1)
        if kind == "gemma3":
            w.add_uint32("clip.vision.projector.scale_factor", 2)
            t.norm("mm.soft_emb_norm.weight", N_EMBD)
            t.normal("mm.input_projection.weight", n_text, N_EMBD, deviation=N_EMBD**-0.5)
        else:
            n_merged = N_EMBD
            if kind == "qwen3vl_merger":
                w.add_uint32("clip.vision.spatial_merge_size", 2)
                t.normal("v.patch_embd.weight.1", PATCH, PATCH, 3, N_EMBD, deviation=0.2)  # a picture is two frames
                n_merged *= 4
            for number, n_inputs in ((0, n_merged), (2, n_text)):
                t.normal(f"mm.{number}.weight", n_inputs, n_text, deviation=2 * n_inputs**-0.5)
                t.normal(f"mm.{number}.bias", n_text, deviation=0.1)

    return build


def _layer(t: Weights, b: str, *, is_fused: bool) -> None:
    """`is_fused`: queries, keys and values are one tensor."""
    outputs = {"qkv": 3 * N_EMBD, "out": N_EMBD} if is_fused else dict.fromkeys(("q", "k", "v", "out"), N_EMBD)
    for name, n_outputs in outputs.items():
        t.normal(f"{b}attn_{name}.weight", N_EMBD, n_outputs, deviation=N_EMBD**-0.5)
        t.normal(f"{b}attn_{name}.bias", n_outputs, deviation=0.1)
    for name in ("ln1", "ln2"):
        t.norm(f"{b}{name}.weight", N_EMBD)
        t.normal(f"{b}{name}.bias", N_EMBD, deviation=0.1)
    t.normal(f"{b}ffn_up.weight", N_EMBD, N_FF, deviation=N_EMBD**-0.5)
    t.normal(f"{b}ffn_up.bias", N_FF, deviation=0.1)
    t.normal(f"{b}ffn_down.weight", N_FF, N_EMBD, deviation=N_FF**-0.5)
    t.normal(f"{b}ffn_down.bias", N_EMBD, deviation=0.1)
