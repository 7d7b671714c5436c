"""Small DFlash checkpoints and targets, taken apart so that a test can spoil one thing and write the rest as it was."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

N_EMBD, N_LAYERS, N_HEADS, N_KV_HEADS, N_HEAD, N_FF, N_VOCAB = 64, 2, 4, 2, 16, 96, 32
N_TARGET_LAYERS = 4
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "F8_E4M3": 1}

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": N_EMBD,
    "intermediate_size": N_FF,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": N_HEADS,
    "num_key_value_heads": N_KV_HEADS,
    "head_dim": N_HEAD,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "vocab_size": N_VOCAB,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "layer_types": ["full_attention"] * N_LAYERS,
    "use_sliding_window": False,
    "sliding_window": None,
    "block_size": 4,
    "num_target_layers": N_TARGET_LAYERS,
    "dflash_config": {"mask_token_id": 31, "target_layer_ids": [0, 2]},
}


def shapes() -> dict[str, list[int]]:
    """The tensors that CONFIG calls for."""
    wanted = {"fc.weight": [N_EMBD, 2 * N_EMBD], "hidden_norm.weight": [N_EMBD], "norm.weight": [N_EMBD]}
    for layer in range(N_LAYERS):
        prefix = f"layers.{layer}."
        wanted |= {
            prefix + "input_layernorm.weight": [N_EMBD],
            prefix + "post_attention_layernorm.weight": [N_EMBD],
            prefix + "self_attn.q_proj.weight": [N_HEADS * N_HEAD, N_EMBD],
            prefix + "self_attn.k_proj.weight": [N_KV_HEADS * N_HEAD, N_EMBD],
            prefix + "self_attn.v_proj.weight": [N_KV_HEADS * N_HEAD, N_EMBD],
            prefix + "self_attn.o_proj.weight": [N_EMBD, N_HEADS * N_HEAD],
            prefix + "self_attn.q_norm.weight": [N_HEAD],
            prefix + "self_attn.k_norm.weight": [N_HEAD],
            prefix + "mlp.gate_proj.weight": [N_FF, N_EMBD],
            prefix + "mlp.up_proj.weight": [N_FF, N_EMBD],
            prefix + "mlp.down_proj.weight": [N_EMBD, N_FF],
        }
    return wanted


@dataclass
class Checkpoint:
    """config.json and one safetensors file, in pieces. `length`: what the file gives as its header's length."""

    config: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(CONFIG))
    header: dict[str, Any] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    length: int | None = None
    raw_config: bytes | None = None
    raw_header: bytes | None = None

    def add(self, name: str, shape: list[int], element_type: str = "BF16") -> None:
        """With numbers between -1 and 1, the same ones each time."""
        n = int(np.prod(shape))
        values = np.random.default_rng(len(self.header)).uniform(-1, 1, n).astype(np.float32)
        if element_type == "BF16":
            raw = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        elif element_type in ("F16", "F32"):
            raw = values.astype({"F16": "<f2", "F32": "<f4"}[element_type]).tobytes()
        else:
            raw = bytes(n * ITEM_BYTES[element_type])
        begin = len(self.data)
        self.data += raw
        self.header[name] = {"dtype": element_type, "shape": shape, "data_offsets": [begin, begin + len(raw)]}

    def drop(self, name: str) -> None:
        """The tensor, and its bytes with it."""
        begin, end = self.header.pop(name)["data_offsets"]
        del self.data[begin:end]
        for entry in self.header.values():
            if entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]

    def weights(self) -> bytes:
        raw = json.dumps(self.header).encode() if self.raw_header is None else self.raw_header
        length = len(raw) if self.length is None else self.length
        return length.to_bytes(8, "little") + raw + self.data

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        raw = json.dumps(self.config).encode() if self.raw_config is None else self.raw_config
        (folder / "config.json").write_bytes(raw)
        (folder / "model.safetensors").write_bytes(self.weights())
        return folder


def checkpoint(element_type: str = "BF16") -> Checkpoint:
    whole = Checkpoint()
    for name, shape in shapes().items():
        whole.add(name, shape, element_type)
    return whole


def with_selector() -> Checkpoint:
    """Of the second generation, DFlash2."""
    whole = checkpoint()
    whole.config["architectures"] = ["DFlash2DraftModel"]
    whole.config["dflash_config"] |= {
        "conv_kernel_size": 3, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4,
    }  # fmt: skip
    for layer in range(N_LAYERS):
        for part in ("attention_conv", "mlp_conv"):
            whole.add(f"layers.{layer}.{part}.base_kernel", [2, 3, N_EMBD])
            whole.add(f"layers.{layer}.{part}.kernel_projection.weight", [2 * 3 * 4, N_EMBD])
    whole.add("candidate_selector.predecessor_codebook", [N_VOCAB, 8])
    whole.add("candidate_selector.successor_codebook", [N_VOCAB, 8])
    whole.add("candidate_selector.hidden_projection.weight", [8, N_EMBD])
    return whole


def write_target(
    path: Path,
    *,
    architecture: str = "qwen3",
    n_embd: int = N_EMBD,
    n_layers: int = N_TARGET_LAYERS,
    tokens: list[str] | None = None,
    token_types: list[int] | None = None,
    tokenizer: str = "gpt2",
    rope_base: float | None = 10000.0,
    sections: list[int] | None = None,
) -> Path:
    """A model's header with a vocabulary, and one tensor; enough to be a target by."""
    writer = GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.block_count", n_layers)
    writer.add_uint32(f"{architecture}.embedding_length", n_embd)
    if rope_base is not None:
        writer.add_float32(f"{architecture}.rope.freq_base", rope_base)
    if sections is not None:
        writer.add_array(f"{architecture}.rope.dimension_sections", sections)
    tokens = vocabulary() if tokens is None else tokens
    writer.add_string("tokenizer.ggml.model", tokenizer)
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", token_types or [1] * (len(tokens) - 1) + [3])
    writer.add_tensor("output_norm.weight", np.ones(n_embd, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def vocabulary(n_vocab: int = N_VOCAB) -> list[str]:
    return [f"t{token}" for token in range(n_vocab - 1)] + ["<|mask|>"]


def byte_level_tokenizer(tokens: list[str]) -> dict[str, Any]:
    """tokenizer.json of these tokens; the last one is special."""
    return {
        "added_tokens": [{"id": len(tokens) - 1, "content": tokens[-1], "special": True}],
        "pre_tokenizer": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {text: token for token, text in enumerate(tokens[:-1])}, "merges": ["t 1"]},
    }
