"""The daemons that the residency benchmark compares: luced with the whole text in its cells, and with --kv-offload.
It must not know what they are asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import Err, Reply
from tests.daemon_driver import DaemonDriver

PAGE = 64
FULL = "full"  # the whole text in its cells
QUERY, DRAFT, LRU = "query", "draft", "lru"  # --kv-offload-policy
DEADLINE_S = 3600.0  # of one answer: long texts on few cores take their time


class RefusedError(RuntimeError):
    """luced does not want what it was asked; the text is its own."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"luced: {reply.code} {reply.text}" if isinstance(reply, Err) else f"luced: {reply}")


@dataclass(frozen=True)
class EngineSettings:
    """What all of them have in common."""

    luced: Path
    model: Path
    n_ubatch: int = 64
    n_threads: int = 1
    n_gpu_layers: int = 0
    cache_type: str = "q8_0"
    tau: int = 64
    scorer: Path | None = None  # of --kv-offload-policy draft; none: that side is left out
    more: tuple[str, ...] = ()
    without_lru: bool = False

    def whole(self, n_ctx: int) -> DaemonDriver:
        """Room for n_ctx tokens."""
        return self._start(n_ctx, "--pool", str(n_ctx))

    def bounded(self, n_ctx: int, n_pool: int, policy: str = QUERY) -> DaemonDriver:
        """Texts of n_ctx tokens in n_pool cells."""
        scorer = ("--kv-offload-scorer", str(self.scorer)) if policy == DRAFT else ()
        return self._start(
            n_ctx, "--kv-offload", str(n_pool), "--kv-offload-policy", policy,
            "--kv-offload-interval", str(self.tau), *scorer,
        )  # fmt: skip

    @property
    def policies(self) -> tuple[str, ...]:
        wanted = {QUERY: True, DRAFT: self.scorer is not None, LRU: not self.without_lru}
        return tuple(policy for policy, is_wanted in wanted.items() if is_wanted)

    @contextmanager
    def sides(self, n_ctx: int, n_pool: int) -> Iterator[dict[str, DaemonDriver]]:
        """One daemon with room for all, one for each policy with n_pool cells."""
        with ExitStack() as running:
            daemons = {FULL: running.enter_context(self.whole(n_ctx))}
            for policy in self.policies:
                daemons[policy] = running.enter_context(self.bounded(n_ctx, n_pool, policy))
            yield daemons

    def _start(self, n_ctx: int, *pool: str) -> DaemonDriver:
        # No drafts: they would write several tokens a step, and are no part of what is compared.
        return DaemonDriver(
            self.luced, self.model, "--lanes", "1", "--ctx", str(n_ctx), *pool, "--ubatch", str(self.n_ubatch),
            "--threads", str(self.n_threads), "--gpu-layers", str(self.n_gpu_layers),
            "--cache-type-k", self.cache_type, "--cache-type-v", self.cache_type, "--draft-max", "0", *self.more,
        )  # fmt: skip


def whole_pages(n_cells: float) -> int:
    """Rounded up."""
    return -int(-n_cells // PAGE) * PAGE
