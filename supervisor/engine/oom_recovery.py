"""What the pool of an engine is to be that has died for want of memory. Pure.

A device that has no memory left for a computation ends the engine (ggml's CUDA pool does), which could only start again
and come to the same. Where texts may be longer than the pool, a smaller one leaves more for computing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from luce.supervisor.engine.info import EngineInfo

_LAST_LINES = 12
"""Of the log: what stands further up, a refusal at the start for one, did not end it."""

_NO_MEMORY = re.compile(
    r"out[ _]of[ _](?:\w+[ _])?memory|insufficient memory|failed to allocate|std::bad_alloc|OutOf(?:Device|Host)?Memory"
    # cuBLAS takes its memory where it is first needed, and says either when there is none.
    r"|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|the resource allocation failed|the library was not initialized",
    re.IGNORECASE,
)


def line_about_memory(log: Sequence[str]) -> str | None:
    """The line that says of a dead engine that memory ran out; none: it died of something else."""
    return next((line for line in reversed(log[-_LAST_LINES:]) if _NO_MEMORY.search(line)), None)


def smaller_pool(info: EngineInfo) -> int | None:
    """A quarter less, in whole pages, but what the engine needs at the least; none: it cannot be smaller, or texts have
    to fit it."""
    if info.kvflash is None or info.kvflash_least is None or info.kvflash <= info.kvflash_least:
        return None
    n_less = (info.kvflash - info.kvflash // 4) // info.page_tokens * info.page_tokens
    return max(n_less, info.kvflash_least)
