"""A BERT-like encoder computed apart from llama.cpp, in double precision: what an embedding has to be.

Reads the tensors of a GGUF file by their names. Knows nothing of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

Array = np.ndarray[Any, np.dtype[np.float64]]


class Bert:
    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._tensors = {tensor.name: np.asarray(tensor.data, np.float64) for tensor in reader.tensors}
        fields = {name: field.contents() for name, field in reader.fields.items()}
        self._n_layer = fields["bert.block_count"]
        self._n_head = fields["bert.attention.head_count"]
        self._epsilon = fields["bert.attention.layer_norm_epsilon"]

    def tokens(self, ids: Sequence[int]) -> Array:
        """A row for each token."""
        t = self._tensors
        x = t["token_embd.weight"][list(ids)] + t["position_embd.weight"][: len(ids)] + t["token_types.weight"][0]
        x = self._norm(x, "token_embd_norm")
        for i in range(self._n_layer):
            b = f"blk.{i}."
            q, k, v = (self._split(self._dense(x, b + name)) for name in ("attn_q", "attn_k", "attn_v"))
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (scores / scores.sum(-1, keepdims=True)) @ v
            joined = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
            x = self._norm(self._dense(joined, b + "attn_output") + x, b + "attn_output_norm")
            wide = self._dense(x, b + "ffn_up")
            gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
            x = self._norm(self._dense(gelu, b + "ffn_down") + x, b + "layer_output_norm")
        return x

    def mean(self, ids: Sequence[int]) -> Array:
        return _unit(self.tokens(ids).mean(0))

    def cls(self, ids: Sequence[int]) -> Array:
        return _unit(self.tokens(ids)[0])

    def score(self, ids: Sequence[int]) -> float:
        """Of the classification head."""
        hidden = np.tanh(self._dense(self.tokens(ids)[0], "cls"))
        return float(self._dense(hidden, "cls.output")[0])

    def _dense(self, x: Array, name: str) -> Array:
        made: Array = x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]
        return made

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(centred.var(-1, keepdims=True) + self._epsilon)
        made: Array = scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]
        return made

    def _split(self, x: Array) -> Array:
        """Heads first."""
        return x.reshape(len(x), self._n_head, -1).transpose(1, 0, 2)


def _unit(x: Array) -> Array:
    made: Array = x / np.linalg.norm(x)
    return made
