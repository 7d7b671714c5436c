"""Seeded, structured mutations of a GGUF file: the broken and malicious models that a daemon must survive.

Takes a file apart (keys, tensor infos, tensor data), changes one to three things in it, and writes it again without
asking whether the result makes sense. The same seed and number give the same bytes. Must not know what the daemon
does with them.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

T = GGUFValueType
FORMATS = {T.UINT8: "B", T.INT8: "b", T.UINT16: "H", T.INT16: "h", T.UINT32: "I", T.INT32: "i", T.FLOAT32: "f",
           T.BOOL: "B", T.UINT64: "Q", T.INT64: "q", T.FLOAT64: "d"}  # fmt: skip
INTEGERS = [0, 1, 2, 3, 5, 7, 31, 33, 63, 255, 256, 512, 513, 4096, 65535, 65536, 10**6, 2**24, 2**31 - 1, 2**31,
            2**32 - 2, 2**32 - 1, 2**63, -1, -2]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-6, 1e6, 3.4e38, -3.4e38, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", "x", "llama", "gpt2", "none", "no_vocab", "bert", "t5", "rwkv", "plamo2", "gemma4", "yarn", "longrope",
         "deepseek2", "qwen35", "mamba", "clip", "A" * 70, "A" * 100_000, "\x00\x01", "%s%n%d", "{% for %}",
         "\ud7ff é"]  # fmt: skip
MAX_FLOAT = 3.4028e38
KEPT_TOKENS = 300


@dataclass
class Key:
    name: str
    type: int
    value: Any
    element: int = 0  # arrays: the type of what they hold


@dataclass
class Tensor:
    name: str
    dims: list[int]
    type: int
    data: bytes
    offset: int | None = None  # None: where it belongs


@dataclass
class Model:
    keys: list[Key]
    tensors: list[Tensor]
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    n_keys: int | None = None  # what the header says; None: the truth
    n_tensors: int | None = None
    notes: list[str] = field(default_factory=list)

    def key(self, name: str) -> Key | None:
        return next((k for k in self.keys if k.name == name), None)


def read_model(path: Path, n_tokens: int = KEPT_TOKENS) -> Model:
    """The file in parts, its vocabulary cut to so many tokens: small files make many runs a second."""
    reader = GGUFReader(path)
    keys = []
    for name, found in reader.fields.items():
        if not name.startswith("GGUF."):
            is_array = found.types[0] == T.ARRAY
            keys.append(Key(name, found.types[0], found.contents(), found.types[1] if is_array else 0))
    tensors = [Tensor(str(t.name), [int(d) for d in t.shape], int(t.tensor_type), t.data.tobytes())
               for t in reader.tensors]  # fmt: skip
    model = Model(keys, tensors)
    cut_vocabulary(model, n_tokens)
    return model


def cut_vocabulary(model: Model, n_tokens: int) -> None:
    tokens = model.key("tokenizer.ggml.tokens")
    if tokens is None or len(tokens.value) <= n_tokens:
        return
    n_before = len(tokens.value)
    last = 16  # the special tokens stand at the end
    for name in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"):
        if key := model.key(name):
            key.value = key.value[: n_tokens - last] + key.value[-last:]
    kept = set(tokens.value)
    if merges := model.key("tokenizer.ggml.merges"):
        merges.value = [m for m in merges.value if m.replace(" ", "") in kept]
    for key in model.keys:
        if key.name.endswith("_token_id") and key.value >= n_tokens:
            key.value -= n_before - n_tokens
        if key.name.endswith(".vocab_size"):
            key.value = n_tokens
    for tensor in model.tensors:
        if tensor.dims[-1] == n_before:
            tensor.dims[-1] = n_tokens
            tensor.data = tensor.data[: len(tensor.data) // n_before * n_tokens]


def as_number(value: Any) -> float | int:
    """The value of a key whose type was changed: whatever it was, something that can be packed."""
    if isinstance(value, list):
        value = value[0] if value else 0
    return value if isinstance(value, int | float) else len(str(value))


def pack_scalar(kind: int, value: Any) -> bytes:
    if kind == T.STRING:
        raw = str(value).encode()
        return struct.pack("<Q", len(raw)) + raw
    number = as_number(value)
    code = FORMATS.get(T(kind)) if kind in T._value2member_map_ else None
    code = code or "I"  # a type that does not exist
    if code in "fd":
        number = math.copysign(math.inf, number) if abs(number) > MAX_FLOAT else number
        packed: bytes = struct.pack("<" + code, number)
        return packed
    size = struct.calcsize(code)
    whole = int(number) if isinstance(number, int) or abs(number) < 2**70 else 0  # NaN compares as not less
    return (whole & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def pack_key(key: Key) -> bytes:
    head = pack_scalar(T.STRING, key.name) + struct.pack("<I", key.type & 0xFFFFFFFF)
    if key.type != T.ARRAY:
        return head + pack_scalar(key.type, key.value)
    values = key.value if isinstance(key.value, list) else [key.value]
    body = b"".join(pack_scalar(key.element, v) for v in values)
    return head + struct.pack("<IQ", key.element & 0xFFFFFFFF, len(values)) + body


def serialise(model: Model) -> tuple[bytes, int]:
    """The file's bytes, and how many of them are header."""
    n_keys = len(model.keys) if model.n_keys is None else model.n_keys
    n_tensors = len(model.tensors) if model.n_tensors is None else model.n_tensors
    out = bytearray(model.magic + struct.pack("<I", model.version))
    out += struct.pack("<QQ", n_tensors & (2**64 - 1), n_keys & (2**64 - 1))
    for key in model.keys:
        out += pack_key(key)
    data = bytearray()
    for tensor in model.tensors:
        out += pack_scalar(T.STRING, tensor.name) + struct.pack("<I", len(tensor.dims))
        for dim in tensor.dims:
            out += struct.pack("<Q", dim & (2**64 - 1))
        offset = len(data) if tensor.offset is None else tensor.offset
        out += struct.pack("<IQ", tensor.type & 0xFFFFFFFF, offset & (2**64 - 1))
        data += tensor.data
        data += bytes(-len(data) % model.alignment)
    n_header = len(out)
    out += bytes(-len(out) % model.alignment)
    return bytes(out + data), n_header


def fitting_data(tensor: Tensor) -> None:
    """Makes data of the size that dims and type ask for, so that the reader goes on to what comes after it."""
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    kind = GGMLQuantizationType(tensor.type) if tensor.type in GGMLQuantizationType._value2member_map_ else None
    if kind is None or not 0 <= elements < 2**20:
        return
    block, n_bytes = GGML_QUANT_SIZES[kind]
    size = elements // block * n_bytes
    tensor.data = (tensor.data * (size // max(len(tensor.data), 1) + 1))[:size]


Mutation = Callable[[Model, random.Random], str]


def special_value(kind: int, rng: random.Random) -> Any:
    if kind == T.STRING:
        return rng.choice(TEXTS)
    if kind in (T.FLOAT32, T.FLOAT64):
        return rng.choice(FLOATS)
    return rng.choice(INTEGERS)


def scalar_key(model: Model, rng: random.Random) -> Key:
    """Mostly one of the architecture's: the other scalars are few and harmless."""
    scalars = [k for k in model.keys if k.type != T.ARRAY]
    own = [k for k in scalars if not k.name.startswith(("general.", "tokenizer.", "luce."))]
    return rng.choice(own if own and rng.random() < 0.75 else scalars)


def array_key(model: Model, rng: random.Random) -> Key:
    arrays = [k for k in model.keys if k.type == T.ARRAY]
    return rng.choice(arrays) if arrays else rng.choice(model.keys)


def change_value(model: Model, rng: random.Random) -> str:
    key = scalar_key(model, rng)
    key.value = special_value(key.type, rng)
    return f"{key.name} = {str(key.value)[:40]!r}"


def nudge_value(model: Model, rng: random.Random) -> str:
    numbers = [k for k in model.keys if isinstance(k.value, int | float) and not isinstance(k.value, bool)]
    key = rng.choice(numbers)
    key.value = rng.choice([key.value + 1, key.value - 1, key.value * 2, key.value // 2, key.value * 1000])
    return f"{key.name} nudged to {key.value}"


def change_type(model: Model, rng: random.Random) -> str:
    key = scalar_key(model, rng)
    if rng.random() < 0.25:
        n = rng.choice([0, 1, 3, 4, 5, 8, 600])
        element = rng.choice([T.UINT32, T.INT32, T.BOOL, T.FLOAT32, T.STRING])
        key.type, key.element, key.value = T.ARRAY, element, [special_value(element, rng) for _ in range(n)]
        return f"{key.name} as array of {n} {element.name}"
    key.type = rng.choice([int(t) for t in T] + [13, 99, 2**31])
    if key.type == T.ARRAY:
        key.element, key.value = rng.choice([int(T.ARRAY), 77]), [0]
    return f"{key.name} has type {key.type}"


def drop_key(model: Model, rng: random.Random) -> str:
    key = rng.choice(model.keys)
    model.keys.remove(key)
    return f"no {key.name}"


def rename_key(model: Model, rng: random.Random) -> str:
    key, before = rng.choice(model.keys), ""
    before, key.name = key.name, rng.choice(["", "x", rng.choice(model.keys).name, key.name + "_swa", "B" * 70_000])
    return f"{before} renamed {key.name[:40]!r}"


def add_key(model: Model, rng: random.Random) -> str:
    """A key that libllama reads but that this file did not have."""
    arch = next((k.value for k in model.keys if k.name == "general.architecture"), "x")
    name, kind = rng.choice(EXTRA_KEYS)
    key = Key(name.replace("%s", str(arch)), kind, special_value(kind, rng))
    if model.key(key.name) is None:
        model.keys.append(key)
    return f"added {key.name} = {str(key.value)[:40]!r}"


def change_array(model: Model, rng: random.Random) -> str:
    key = array_key(model, rng)
    values = list(key.value) if isinstance(key.value, list) else [key.value]
    action = rng.randrange(6)
    if action == 0:
        values = values[: rng.choice([0, 1, max(len(values) - 1, 0)])]
    elif action == 1:
        values = values + values[: rng.choice([1, 4, len(values)])]
    elif action == 2:
        values = (values * 600)[: rng.choice([512, 513, 5000])]
    elif action == 3 and values:
        for _ in range(rng.choice([1, 1, 3, len(values)])):
            values[rng.randrange(len(values))] = special_value(key.element, rng)
    elif action == 4:
        key.element = int(rng.choice(list(T)))
        key.element = int(T.UINT32) if key.element == T.ARRAY and rng.random() < 0.5 else key.element
    elif values:
        values[rng.randrange(len(values))] = values[0]
    key.value = values
    return f"{key.name}: array change {action}, {len(values)} values of type {key.element}"


def change_header(model: Model, rng: random.Random) -> str:
    which = rng.randrange(5)
    if which == 0:
        model.magic = rng.choice([b"GGUX", b"\0\0\0\0", b"FUGG", b"ggml"])
    elif which == 1:
        model.version = rng.choice([0, 1, 2, 4, 2**31, 0x03000000, 2**32 - 1])
    elif which == 2:
        model.n_keys = rng.choice([0, 1, len(model.keys) - 1, len(model.keys) + 1, 2**31, 2**40, 2**63, 2**64 - 1])
    elif which == 3:
        model.n_tensors = rng.choice([0, 1, len(model.tensors) - 1, len(model.tensors) + 1, 2**31, 2**40, 2**63])
    else:
        model.alignment = rng.choice([1, 2, 8, 16, 64, 4096])
        model.keys.append(Key("general.alignment", T.UINT32, rng.choice([model.alignment, 0, 3, 2**31])))
    return f"header change {which}"


def change_tensor_shape(model: Model, rng: random.Random) -> str:
    tensor = rng.choice(model.tensors)
    which = rng.randrange(max(len(tensor.dims), 1))
    action = rng.randrange(5) if tensor.dims else 2
    if action == 0:
        tensor.dims[which] = rng.choice([*INTEGERS, tensor.dims[which] + 1, tensor.dims[which] - 1])
    elif action == 1:
        tensor.dims[which] = max(tensor.dims[which] + rng.choice([-32, 32, tensor.dims[which]]), 0)
    elif action == 2:
        tensor.dims.append(rng.choice([1, 2, 0]))
    elif action == 3:
        tensor.dims = tensor.dims[:-1]
    else:
        tensor.dims = (tensor.dims + [1] * 6)[: rng.choice([4, 5, 6])]
    if rng.random() < 0.7:
        fitting_data(tensor)
    return f"tensor {tensor.name[:40]}: dims {tensor.dims}"


def change_tensor_type(model: Model, rng: random.Random) -> str:
    tensor = rng.choice(model.tensors)
    tensor.type = rng.choice([*(int(t) for t in GGMLQuantizationType), -1, 4, 5, 200, 2**31 - 1])
    if rng.random() < 0.8:
        fitting_data(tensor)
    return f"tensor {tensor.name}: type {tensor.type}"


def change_tensor_place(model: Model, rng: random.Random) -> str:
    tensor, action = rng.choice(model.tensors), rng.randrange(5)
    if action == 0:
        tensor.offset = rng.choice([0, 1, 32, 2**31, 2**63, 2**64 - 32])
    elif action == 1:
        tensor.name = rng.choice(["", "x", "A" * 63, "A" * 64, "A" * 5000, rng.choice(model.tensors).name])
    elif action == 2:
        model.tensors.remove(tensor)
    elif action == 3:
        other = copy.deepcopy(tensor)
        other.name = rng.choice(["output.weight", "rope_freqs.weight", "blk.0.attn_q.bias", "blk.9.attn_q.weight",
                                 "blk.0.attn_qkv.weight", "blk.0.attn_norm.bias", "spare.weight"])  # fmt: skip
        model.tensors.append(other)
    else:
        tensor.data = tensor.data[: len(tensor.data) // 2]
    return f"tensor {tensor.name[:40]}: place change {action}"


EXTRA_KEYS: list[tuple[str, int]] = [
    *((f"%s.{name}", int(T.UINT32)) for name in (
        "attention.sliding_window", "attention.sliding_window_pattern", "attention.shared_kv_layers",
        "attention.key_length_swa", "attention.value_length_swa", "attention.key_length_mla", "expert_count",
        "expert_used_count", "expert_group_count", "expert_group_used_count", "expert_gating_func",
        "expert_shared_count", "full_attention_interval", "nextn_predict_layers", "leading_dense_block_count",
        "pooling_type", "rope.dimension_count", "rope.dimension_count_swa", "ssm.conv_kernel", "ssm.inner_size",
        "embedding_length_out", "rope.scaling.original_context_length", "vocab_size", "decoder_block_count",
        "attention.kv_lora_rank", "n_deepstack_layers", "block_size", "selector_top_k", "hyper_connection.count")),
    *((f"%s.{name}", int(T.FLOAT32)) for name in (
        "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.freq_base", "logit_scale",
        "rope.freq_base_swa", "attention.scale", "expert_weights_scale", "final_logit_softcapping",
        "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_beta_fast")),
    ("%s.rope.scaling.type", int(T.STRING)), ("%s.classifier.activation", int(T.STRING)),
    ("%s.attention.causal", int(T.BOOL)), ("tokenizer.ggml.add_bos_token", int(T.BOOL)),
    ("tokenizer.ggml.token_type_count", int(T.UINT32)), ("tokenizer.ggml.pre", int(T.STRING)),
    ("split.count", int(T.UINT16)), ("split.no", int(T.UINT16)), ("split.no", int(T.UINT32)),
    ("general.alignment", int(T.UINT32)),
]  # fmt: skip

# How often each kind is drawn.
KEY_MUTATIONS: list[tuple[Mutation, int]] = [
    (change_value, 24), (nudge_value, 8), (change_type, 10), (drop_key, 6), (rename_key, 4), (add_key, 12),
    (change_array, 14), (change_header, 4),
]  # fmt: skip
TENSOR_MUTATIONS: list[tuple[Mutation, int]] = [
    (change_tensor_shape, 8), (change_tensor_type, 6), (change_tensor_place, 5),
]  # fmt: skip


def damage(data: bytes, n_header: int, rng: random.Random) -> tuple[bytes, str]:
    """What happens to bytes rather than to meanings: cut off, flipped, overwritten."""
    raw, action = bytearray(data), rng.randrange(4)
    if action == 0:
        n = rng.choice([0, 3, 4, 8, 24, rng.randrange(n_header), rng.randrange(len(raw)), len(raw) - 1])
        return bytes(raw[:n]), f"cut to {n} bytes"
    if action == 1:
        for _ in range(rng.choice([1, 1, 4, 32])):
            raw[rng.randrange(n_header)] ^= 1 << rng.randrange(8)
        return bytes(raw), "bits flipped in the header"
    at = rng.randrange(max(n_header - 8, 1))
    if action == 2:
        raw[at : at + 8] = rng.choice([b"\0" * 8, b"\xff" * 8, (2**31).to_bytes(8, "little"), rng.randbytes(8)])
        return bytes(raw), f"8 bytes overwritten at {at}"
    del raw[at : at + rng.choice([1, 4, 8, 100])]
    return bytes(raw), f"bytes missing at {at}"


def mutate(model: Model, seed: int) -> tuple[bytes, str]:
    """One mutant of the model: its bytes, and in words what was done."""
    rng = random.Random(seed)
    mutant = copy.deepcopy(model)
    notes = []
    if rng.random() < 0.85:
        for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
            drawn = KEY_MUTATIONS + (TENSOR_MUTATIONS if mutant.tensors else [])
            change = rng.choices([m for m, _ in drawn], [weight for _, weight in drawn])[0]
            notes.append(change(mutant, rng))
        return serialise(mutant)[0], "; ".join(notes)
    return damage(*serialise(mutant), rng)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write mutants of a GGUF file.")
    parser.add_argument("model", type=Path, help="a valid, small GGUF file")
    parser.add_argument("out_dir", type=Path, help="folder for SEED.gguf files")
    parser.add_argument("--count", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    options = parser.parse_args(arguments)
    options.out_dir.mkdir(parents=True, exist_ok=True)
    model = read_model(options.model)
    for seed in range(options.first, options.first + options.count):
        data, what = mutate(model, seed)
        (options.out_dir / f"{seed}.gguf").write_bytes(data)
        print(f"{seed}: {what}")


if __name__ == "__main__":
    main()
