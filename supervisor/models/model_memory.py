"""ModelMemory: what a model costs in memory, worked out from its header alone.

Which layers remember every token (attention), a window of them (sliding window) or a fixed state (recurrent), and so
what a token and a lane cost. Pure arithmetic over GgufHeader; the layer patterns that llama.cpp knows by heart, because
files do not state them, stand in one table here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from luce.supervisor.models.gguf_header import GgufError, GgufHeader, MetadataValue

# Bytes of one block, and how many numbers a block holds (ggml's block formats).
_CACHE_BLOCKS: dict[str, tuple[int, int]] = {"f16": (2, 1), "bf16": (2, 1), "q8_0": (34, 32), "q4_0": (18, 32)}
CACHE_TYPES: tuple[str, ...] = tuple(_CACHE_BLOCKS)

_SLICE_TOKENS = 512  # a prompt is read in slices of this size: a window holds one more slice than its width
_CELL_PADDING = 256  # llama.cpp rounds the number of cells up to this
_MAX_LAYERS = 4096
_ROLLBACK_STATES = 15  # a recurrent lane keeps a state for each token that may be drafted at once …
_ROLLBACK_BYTES = 256 << 20  # … as long as they fit into luced's default for --draft-state-memory

# Architectures whose files give a window but not its pattern: (every how many layers one is full, is it the first?).
_WINDOW_PATTERNS: dict[str, tuple[int, bool]] = {
    "cohere2": (4, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
}


class LayerKind(Enum):
    """What a layer remembers of the text."""

    ATTENTION = "attention"
    WINDOW = "sliding window"
    RECURRENT = "recurrent"
    NONE = "no memory of its own"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, and how many numbers a token adds to its keys and to its values."""

    kind: LayerKind
    n_key: int = 0
    n_value: int = 0

    def token_bytes(self, cache_type: str) -> int:
        block_bytes, block = _CACHE_BLOCKS[cache_type]
        return sum(-(-n // block) * block_bytes for n in (self.n_key, self.n_value))


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """The memory account of one model."""

    architecture: str
    name: str
    layers: tuple[Layer, ...]
    n_context_trained: int
    n_window: int
    n_vocabulary: int
    n_parameters: int
    weight_bytes: int
    recurrent_bytes: int  # a state of one lane, all layers
    notes: tuple[str, ...]

    def count(self, kind: LayerKind) -> int:
        return Counter(layer.kind for layer in self.layers)[kind]

    def bytes_per_token(self, cache_type: str) -> int:
        """What each further token of a text costs."""
        return sum(layer.token_bytes(cache_type) for layer in self.layers if layer.kind is LayerKind.ATTENTION)

    @property
    def n_rollback(self) -> int:
        """Recurrent states that a lane which runs alone keeps to go back to after a wrong draft, as luced has it where
        nothing else is said."""
        return min(_ROLLBACK_STATES, _ROLLBACK_BYTES // self.recurrent_bytes) if self.recurrent_bytes > 0 else 0

    def bytes_per_lane(self, cache_type: str) -> int:
        """What a lane costs whatever the length of its text: recurrent states and sliding windows."""
        n_cells = -(-(self.n_window + _SLICE_TOKENS) // _CELL_PADDING) * _CELL_PADDING
        window = sum(layer.token_bytes(cache_type) for layer in self.layers if layer.kind is LayerKind.WINDOW)
        return self.recurrent_bytes * (1 + self.n_rollback) + window * n_cells

    @property
    def working_bytes(self) -> int:
        """An estimate of the buffers of one step: dominated by the logits of a slice."""
        return _SLICE_TOKENS * self.n_vocabulary * 4

    def context_in(self, memory_bytes: int, cache_type: str) -> int | None:
        """The longest text of one lane that fits; None means that its length costs nothing. 0: not even the weights."""
        left = memory_bytes - self.weight_bytes - self.working_bytes - self.bytes_per_lane(cache_type)
        if left < 0:
            return 0
        per_token = self.bytes_per_token(cache_type)
        return None if per_token == 0 else left // per_token


class _Fields:
    """Metadata of one architecture, checked as it is read: a hostile file gets a GgufError."""

    def __init__(self, header: GgufHeader) -> None:
        self._metadata = header.metadata
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture == "":
            raise GgufError("the file names no architecture (general.architecture): it is no language model")
        self.architecture = architecture

    def raw(self, key: str) -> MetadataValue | None:
        return self._metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int) -> int:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value > 2**40:
            raise GgufError(f"{self.architecture}.{key} is {str(value)[:40]}: a count was expected")
        return value

    def per_layer(self, key: str, n_layers: int, default: int) -> list[int]:
        value = self.raw(key)
        if not isinstance(value, tuple):
            return [self.number(key, default)] * n_layers
        counts = [int(entry) for entry in value if isinstance(entry, bool | int) and 0 <= entry <= 2**40]
        if len(counts) != len(value) or len(counts) < n_layers:
            raise GgufError(f"{self.architecture}.{key} does not give a count for each of {n_layers} layers")
        return counts[:n_layers]


def model_memory(header: GgufHeader) -> ModelMemory:
    """Raises GgufError where the file contradicts itself."""
    fields = _Fields(header)
    n_layers = fields.number("block_count", 0)
    if not 0 < n_layers <= _MAX_LAYERS:
        raise GgufError(f"{fields.architecture}.block_count is {n_layers}: no layers to speak of")
    notes: list[str] = []
    kinds = _layer_kinds(header, fields, n_layers, notes)
    layers = tuple(_with_sizes(fields, kinds))
    n_recurrent = sum(layer.kind is LayerKind.RECURRENT for layer in layers)
    state_bytes = _recurrent_state_bytes(fields)
    if n_recurrent > 0 and state_bytes == 0:
        notes.append("the size of its recurrent states is not known: they are not counted")
    name = header.metadata.get("general.name", "")
    return ModelMemory(
        architecture=fields.architecture,
        name=name if isinstance(name, str) else "",
        layers=layers,
        n_context_trained=fields.number("context_length", 0),
        n_window=fields.number("attention.sliding_window", 0),
        n_vocabulary=header.array_lengths.get("tokenizer.ggml.tokens", fields.number("vocab_size", 0)),
        n_parameters=sum(tensor.n_elements for tensor in header.tensors),
        weight_bytes=sum(tensor.n_bytes for tensor in header.tensors),
        recurrent_bytes=n_recurrent * state_bytes,
        notes=tuple(notes),
    )


def _layer_kinds(header: GgufHeader, fields: _Fields, n_layers: int, notes: list[str]) -> list[LayerKind]:
    roles: dict[int, set[str]] = {}
    for tensor in header.tensors:
        prefix, _, rest = tensor.name.partition(".")
        number, _, role = rest.partition(".")
        if prefix == "blk" and number.isascii() and number.isdigit() and len(number) <= 5:
            roles.setdefault(int(number), set()).add(role)
    windowed = _windowed_layers(fields, n_layers, notes)
    n_shared = min(fields.number("attention.shared_kv_layers", 0), n_layers)
    kinds = []
    for index in range(n_layers):
        of_layer = roles.get(index, set())
        if any(role.startswith(("ssm_", "time_mix_", "shortconv")) for role in of_layer):
            kinds.append(LayerKind.RECURRENT)
        elif index >= n_layers - n_shared or not any(role.startswith("attn_") for role in of_layer):
            kinds.append(LayerKind.NONE)
        else:
            kinds.append(LayerKind.WINDOW if windowed[index] else LayerKind.ATTENTION)
    return kinds


def _windowed_layers(fields: _Fields, n_layers: int, notes: list[str]) -> list[bool]:
    if fields.number("attention.sliding_window", 0) == 0:
        return [False] * n_layers
    pattern = fields.raw("attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and len(pattern) >= n_layers:
        return [bool(entry) for entry in pattern[:n_layers]]
    period, full_first = _WINDOW_PATTERNS.get(fields.architecture, (0, False))
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        period = pattern
    if period == 0:
        notes.append("it has a sliding window in layers that the file does not name: all are counted as full attention")
        return [False] * n_layers
    return [index % period != (0 if full_first else period - 1) for index in range(n_layers)]


def _with_sizes(fields: _Fields, kinds: Sequence[LayerKind]) -> list[Layer]:
    n_layers = len(kinds)
    heads = fields.per_layer("attention.head_count", n_layers, 0)
    kv_heads = fields.per_layer("attention.head_count_kv", n_layers, max(heads, default=0))
    n_embedding = fields.number("embedding_length", 0)
    n_latent = fields.number("attention.kv_lora_rank", 0)
    layers = []
    for kind, n_heads, n_kv_heads in zip(kinds, heads, kv_heads, strict=True):
        if kind not in (LayerKind.ATTENTION, LayerKind.WINDOW):
            layers.append(Layer(kind))
            continue
        if n_latent > 0:  # multi-head latent attention: one latent and the rotated part, no values
            layers.append(Layer(kind, n_latent + fields.number("rope.dimension_count", 0), 0))
            continue
        default = n_embedding // n_heads if n_heads > 0 else 0
        n_key = fields.number("attention.key_length", default)
        n_value = fields.number("attention.value_length", default)
        if kind is LayerKind.WINDOW:
            n_key = fields.number("attention.key_length_swa", n_key)
            n_value = fields.number("attention.value_length_swa", n_value)
        layers.append(Layer(kind, n_kv_heads * n_key, n_kv_heads * n_value))
    return layers


def _recurrent_state_bytes(fields: _Fields) -> int:
    """Of one layer and one lane, in float32: the convolution's history (n_embd_r) and the state (n_embd_s)."""
    n_inner = fields.number("ssm.inner_size", 0)
    n_state = fields.number("ssm.state_size", 0)
    n_kernel = fields.number("ssm.conv_kernel", 0)
    n_groups = fields.number("ssm.group_count", 0)
    n_history = max(n_kernel - 1, 0) * (n_inner + 2 * n_groups * n_state)
    return 4 * (n_history + n_inner * n_state)
