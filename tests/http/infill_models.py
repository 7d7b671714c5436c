"""The packaged model with fill-in-the-middle tokens: tokens that it has anyway, named as such."""

from __future__ import annotations

from pathlib import Path

import gguf
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

PRE, SUF, MID, REP, SEP = 8000, 8001, 8002, 8003, 8004

_KEYS = {
    gguf.Keys.Tokenizer.FIM_PRE_ID: PRE,
    gguf.Keys.Tokenizer.FIM_SUF_ID: SUF,
    gguf.Keys.Tokenizer.FIM_MID_ID: MID,
    gguf.Keys.Tokenizer.FIM_REP_ID: REP,
    gguf.Keys.Tokenizer.FIM_SEP_ID: SEP,
}


def write_infill_model(model: Path, path: Path, *, with_files: bool = True) -> Path:
    """`with_files`: it has tokens for projects and files too."""
    reader = gguf.GGUFReader(model)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    writer = gguf.GGUFWriter(path, str(architecture.contents()))
    new = {
        key: MetadataDetails(gguf.GGUFValueType.UINT32, token)
        for key, token in _KEYS.items()
        if with_files or token not in {REP, SEP}
    }
    copy_with_new_metadata(reader, writer, new, [])
    return path
