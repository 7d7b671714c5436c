"""What the pool of an engine is to be that has died for want of memory. Pure.

A device that has no memory left for a computation ends the engine (ggml's CUDA pool does), which could only start again
and come to the same. Where texts may be longer than the pool, a smaller one leaves more for computing.
"""

from __future__ import annotations

from luce.supervisor.engine.info import EngineInfo


def smaller_pool(info: EngineInfo) -> int | None:
    """A quarter less, in whole pages, but what the engine needs at the least; none: it cannot be smaller, or texts have
    to fit it."""
    if info.kvflash is None or info.kvflash_least is None or info.kvflash <= info.kvflash_least:
        return None
    n_less = (info.kvflash - info.kvflash // 4) // info.page_tokens * info.page_tokens
    return max(n_less, info.kvflash_least)
