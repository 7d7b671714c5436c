"""What model was measured: by its file's last name, its header's hash and what that header says. Knows GGUF files as
gguf_header has them; says nothing of where they lie.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

from luce.supervisor.cli.entry import EXIT_START_FAILED, Failure
from luce.supervisor.cli.fieldtest.report import Model
from luce.supervisor.models.gguf_header import GgufError, GgufHeader, read_gguf_header
from luce.supervisor.models.model_memory import model_memory


def look_at_model(path: Path) -> Model:
    """Raises Failure."""
    try:
        header = read_gguf_header(path)
        account = model_memory(header)
    except GgufError as error:
        raise Failure(f"--model {error}", EXIT_START_FAILED) from None
    with path.open("rb") as file:
        head = file.read(header.n_header_bytes)
    return Model(
        file=path.name,
        header_sha256=hashlib.sha256(head).hexdigest(),
        file_bytes=header.n_file_bytes,
        architecture=account.architecture,
        n_parameters=account.n_parameters,
        n_context_trained=account.n_context_trained,
        weights=_formats(header),
    )


def _formats(header: GgufHeader) -> dict[str, float]:
    """Most of it first."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        sizes[tensor.quantization] += tensor.n_bytes
    whole = max(sizes.total(), 1)
    return {name: round(n / whole, 4) for name, n in sizes.most_common()}
