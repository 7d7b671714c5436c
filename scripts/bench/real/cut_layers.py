#!/usr/bin/env python3
"""Cuts a model to its first layers: a drafter with the model's own vocabulary, made in a second, trained for nothing.

    scripts/bench/real/cut_layers.py MODEL.gguf 8 DRAFT.gguf

It must not know an architecture: layers are tensors named blk.N.*, and the number of them is the key ARCH.block_count.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

LAYER = re.compile(r"blk\.(\d+)\.")


def layers_of(reader: GGUFReader) -> tuple[str, int]:
    """The key that says how many they are, and how many."""
    key = f"{reader.fields['general.architecture'].contents()}.block_count"
    return key, int(reader.fields[key].contents())


def cut(source: Path, n_layers: int, target: Path) -> None:
    """Values that a list has for each layer are cut with it. Raises ValueError where the model has no more layers."""
    reader = GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    count, n_all = layers_of(reader)
    if not 1 <= n_layers < n_all:
        raise ValueError(f"{source.name} has {n_all} layers: keep 1 to {n_all - 1} of them")
    writer = GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        value = field.contents()
        if kind == GGUFValueType.ARRAY and len(value) == n_all:
            value = value[:n_layers]
        writer.add_key_value(
            field.name, n_layers if field.name == count else value, kind, sub_type=field.types[-1] if value else None
        )
    kept = [tensor for tensor in reader.tensors if not (m := LAYER.match(tensor.name)) or int(m[1]) < n_layers]
    for tensor in kept:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("layers", type=int)
    parser.add_argument("draft", type=Path)
    args = parser.parse_args()
    try:
        cut(args.model, args.layers, args.draft)
    except ValueError as error:
        sys.exit(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
