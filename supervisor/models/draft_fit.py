"""Whether a draft, a GGUF file, can draft for a target, by both headers.

What does not fit is refused here, with the reason, because libllama asserts where a draft reads a target's layers or
states. Knows headers, and nothing of where a draft comes from.
"""

from __future__ import annotations

from pathlib import Path

from luce.supervisor.models.gguf_header import GgufEntry, GgufError, GgufHeader, read_gguf_entries, read_gguf_header

# llama.cpp's own rules for a plain draft (common_speculative_are_compatible).
_MAX_SIZE_DIFFERENCE = 128
_FIRST_COMPARED = 5

_NORMAL_TOKEN = 1
_ASSISTANT = "-assistant"

# As luced itself says it, which would say so only after all is converted and loaded.
NO_SELECTORS = "drafters with a selector (DFlash2) are not known to this version"
WITHOUT_SELECTOR = "name a DFlash drafter without one"
NO_LAST_LAYER = "it reads the output of the last layer, which this version does not hand to DFlash drafters"
NOT_HERE = "this draft cannot be used here"


class DraftError(Exception):
    """The draft cannot be used with this model; the text says why, and what to do."""


def check_fits(draft: Path, target: Path) -> None:
    """Whether the draft, a GGUF file, can draft for the target, by both headers. Raises DraftError."""
    try:
        ours, theirs = _Model(draft), _Model(target)
        if ours.architecture == "dflash":
            _check_dflash(ours, theirs)
        elif ours.architecture == "eagle3":
            _check_eagle3(ours, theirs)
        elif ours.architecture.endswith(_ASSISTANT) or ours.is_head_alone:
            _check_head(ours, theirs)
        _check_vocabulary(ours, theirs)
    except GgufError as error:
        raise DraftError(str(error)) from error


class _Model:
    """A model file's header, and its fields by the names that they have without their architecture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: GgufHeader = read_gguf_header(path)
        architecture = self.header.metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture == "":
            raise DraftError(f"{path} names no architecture (general.architecture): it is no language model")
        self.architecture = architecture

    def refusal(self, key: str, problem: str) -> DraftError:
        return DraftError(f"{self.path}: {self.architecture}.{key}: {problem}")

    def count(self, key: str) -> int | None:
        value = self.header.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refusal(key, "a count was expected; convert or download the file again")
        return value

    def needed(self, key: str) -> int:
        value = self.count(key)
        if value is None:
            raise self.refusal(key, "it is missing; convert or download the file again")
        return value

    @property
    def n_layers(self) -> int:
        """Without those that only draft (multi-token prediction)."""
        return max(self.needed("block_count") - (self.count("nextn_predict_layers") or 0), 0)

    @property
    def n_vocab(self) -> int:
        n_tokens = self.header.array_lengths.get("tokenizer.ggml.tokens")
        return self.needed("vocab_size") if n_tokens is None else n_tokens

    @property
    def is_head_alone(self) -> bool:
        """Layers that only draft (multi-token prediction), without the model whose last states they read."""
        has_first_layer = any(tensor.name.startswith("blk.0.") for tensor in self.header.tensors)
        return (self.count("nextn_predict_layers") or 0) > 0 and not has_first_layer

    def tensor_shape(self, name: str) -> tuple[int, ...] | None:
        """As GGUF has it, rows last."""
        return next((tensor.shape for tensor in self.header.tensors if tensor.name == name), None)

    def target_layers(self) -> tuple[int, ...]:
        value = self.header.metadata.get(f"{self.architecture}.target_layers")
        layers = value if isinstance(value, tuple) else ()
        known = tuple(layer for layer in layers if isinstance(layer, int) and not isinstance(layer, bool))
        if not known or len(known) != len(layers):
            raise self.refusal("target_layers", "a list of layers was expected; convert or download the file again")
        return known


_MADE_FOR_ANOTHER = "this draft was made for another model: name the one for yours"


def _check_dflash(ours: _Model, theirs: _Model) -> None:
    if ours.count("selector_top_k"):
        raise ours.refusal("selector_top_k", f"{NO_SELECTORS}: {WITHOUT_SELECTOR}")
    mark = _mark_of_dspark(ours)
    if mark is not None:
        raise DraftError(
            f"{ours.path}: it is a DSpark drafter (it has {mark}), which this version does not run: name a DFlash"
            " drafter that is none"
        )
    layers = ours.target_layers()
    _check_layers(ours, theirs, layers, last_too=False)
    width = ours.needed("embedding_length")
    if width != theirs.needed("embedding_length"):
        raise _other_width(ours, "embedding_length", width, theirs)
    if ours.tensor_shape("fc.weight") != (len(layers) * width, width):
        raise ours.refusal(
            "target_layers",
            f"the tensor fc.weight does not join {len(layers)} layers of {width}; convert or download the file again",
        )
    block_size = ours.count("block_size")
    if block_size is not None and block_size < 2:
        raise ours.refusal("block_size", f"it is {block_size}: a block has a token and at least one to draft")
    mask = ours.header.metadata.get("tokenizer.ggml.mask_token_id")
    if isinstance(mask, bool) or not isinstance(mask, int) or not 0 <= mask < ours.n_vocab:
        what = "missing" if mask is None else f"{mask}, and there are {ours.n_vocab} tokens"
        raise DraftError(
            f"{ours.path}: tokenizer.ggml.mask_token_id is {what}: convert the checkpoint again with `luce convert`"
        )


def _mark_of_dspark(ours: _Model) -> str | None:
    """By what llama.cpp tells DSpark from DFlash: the files name the same architecture."""
    if ours.tensor_shape("markov_w1.weight") is not None:
        return "markov_w1.weight"
    return f"{ours.architecture}.hyper_connection.count" if ours.count("hyper_connection.count") else None


def _check_eagle3(ours: _Model, theirs: _Model) -> None:
    layers = ours.target_layers()
    if len(layers) != 3:
        raise ours.refusal("target_layers", f"there are {len(layers)}, and EAGLE-3 reads three")
    _check_layers(ours, theirs, layers, last_too=True)
    theirs_width, width = theirs.needed("embedding_length"), ours.needed("embedding_length")
    if ours.needed("target_hidden_size") != theirs_width:
        raise _other_width(ours, "target_hidden_size", ours.needed("target_hidden_size"), theirs)
    if ours.tensor_shape("fc.weight") != (len(layers) * theirs_width, width):
        raise ours.refusal("target_hidden_size", "the tensor fc.weight has another shape; download the file again")
    if ours.tensor_shape("token_embd.weight") is None and width != theirs_width:
        raise _other_width(ours, "embedding_length", width, theirs)


def _check_head(ours: _Model, theirs: _Model) -> None:
    """Heads and assistants read the target's last states, an assistant also what its layers remember."""
    family = ours.architecture.removesuffix(_ASSISTANT)
    if theirs.architecture != family:
        raise DraftError(
            f"{ours.path} drafts for models of the architecture {family}, {theirs.path} is {theirs.architecture}:"
            f" {_MADE_FOR_ANOTHER}"
        )
    key = "embedding_length" if ours.architecture == family else "embedding_length_out"
    if ours.needed(key) != theirs.needed("embedding_length"):
        raise _other_width(ours, key, ours.needed(key), theirs)


def _other_width(ours: _Model, key: str, width: int, theirs: _Model) -> DraftError:
    return ours.refusal(
        key, f"it is {width}, the hidden size of {theirs.path} {theirs.needed('embedding_length')}: {_MADE_FOR_ANOTHER}"
    )


def _check_layers(ours: _Model, theirs: _Model, layers: tuple[int, ...], *, last_too: bool) -> None:
    n_layers = theirs.n_layers
    for layer in layers:
        if layer == n_layers and not last_too:
            raise ours.refusal("target_layers", f"{NO_LAST_LAYER}: {NOT_HERE}")
        if not 0 <= layer <= n_layers:
            raise ours.refusal(
                "target_layers",
                f"it reads the input of layer {layer} of {theirs.path}, which has {n_layers}: {_MADE_FOR_ANOTHER}",
            )


def _check_vocabulary(ours: _Model, theirs: _Model) -> None:
    reads_features = ours.architecture in ("dflash", "eagle3")
    n_ours, n_theirs = ours.n_vocab, theirs.n_vocab
    if abs(n_ours - n_theirs) > (0 if reads_features else _MAX_SIZE_DIFFERENCE):
        raise DraftError(f"{ours.path} knows {n_ours} tokens, {theirs.path} {n_theirs}: {_MADE_FOR_ANOTHER}")
    our_entries = read_gguf_entries(ours.path, "tokenizer.ggml.")
    their_entries = read_gguf_entries(theirs.path, "tokenizer.ggml.")
    our_tokens, their_tokens = _values(our_entries, "tokens"), _values(their_entries, "tokens")
    if not our_tokens or not their_tokens or our_tokens == their_tokens:
        return
    # A draft that reads features passes ids on; what fills the places that nobody writes may differ.
    our_types, their_types = _values(our_entries, "token_type"), _values(their_entries, "token_type")
    for token in range(0 if reads_features else _FIRST_COMPARED, min(n_ours, n_theirs)):
        if our_tokens[token] == their_tokens[token]:
            continue
        if not reads_features or (_is_normal(our_types, token) and _is_normal(their_types, token)):
            raise DraftError(
                f"token {token} is {_shown(our_tokens[token])} in {ours.path} and {_shown(their_tokens[token])} in"
                f" {theirs.path}: {_MADE_FOR_ANOTHER}"
            )


def _values(entries: dict[str, GgufEntry], key: str) -> tuple[bool | int | float | bytes, ...]:
    entry = entries.get(f"tokenizer.ggml.{key}")
    return entry.value if entry is not None and isinstance(entry.value, tuple) else ()


def _is_normal(types: tuple[bool | int | float | bytes, ...], token: int) -> bool:
    return token >= len(types) or types[token] == _NORMAL_TOKEN


def _shown(text: object) -> str:
    return ascii(text.decode("utf-8", errors="replace"))[:40] if isinstance(text, bytes) else "no text"
