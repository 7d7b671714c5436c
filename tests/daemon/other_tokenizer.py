"""A model with another tokenizer than its own that says the same: ids have changed places, and long words fall into
pieces that were one token. It must not know what for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

KEPT_MERGES = 0.5
BY_ID = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
ROWS_BY_ID = ("token_embd.weight", "output.weight")


def write_with_other_tokenizer(model: Path, path: Path) -> None:
    """Ordinary tokens, which come first, are numbered from the other end."""
    reader = GGUFReader(model)
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    n_ordinary = next(i for i, text in enumerate(tokens) if text.startswith("<|"))
    order = np.concatenate([np.arange(n_ordinary)[::-1], np.arange(n_ordinary, len(tokens))])
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = field.contents()
        if key in BY_ID:
            value = [value[i] for i in order]
        elif key == "tokenizer.ggml.merges":
            value = merges[: int(len(merges) * KEPT_MERGES)]
        element = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], element)
    for tensor in reader.tensors:
        data = tensor.data[order] if tensor.name in ROWS_BY_ID else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
