"""DaemonConfig: every option of `luced` as one frozen value, and its one way to become arguments.

The only place with names and defaults of options. None means "the daemon decides", because only it has seen the model
and the machine. It must not know where files are found, nor start anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
LogLevel = Literal["error", "warn", "info", "debug"]
OnOff = Literal["on", "off"]

CACHE_TYPES: tuple[CacheType, ...] = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTENTION: tuple[FlashAttention, ...] = ("auto", "on", "off")
LOG_LEVELS: tuple[LogLevel, ...] = ("error", "warn", "info", "debug")


OPENMP_SPIN_COUNT = 1000
"""How long an idle OpenMP thread of luced spins before it sleeps. As fast as libgomp's own choice on an idle host; on
a busy one, threads that spin for their turn take it from those that compute (measured: up to 50 times slower)."""


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that luced is started with: the caller's, with our OpenMP default where it says nothing itself.
    libgomp reads it before main(), so it cannot be an option of luced."""
    chosen = dict(environment)
    if "GOMP_SPINCOUNT" not in chosen and "OMP_WAIT_POLICY" not in chosen:
        chosen["GOMP_SPINCOUNT"] = str(OPENMP_SPIN_COUNT)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """What one `luced` is started with."""

    model: Path
    ctx: int | None = None  # tokens that the longest text of one lane may have
    pool: int | None = None  # cells of the attention cache that all lanes share
    lanes: int | None = None  # generations that decode together
    queue: int | None = None  # generations that may wait for a lane
    batch: int | None = None  # tokens a step may decode in all
    ubatch: int | None = None  # tokens a prefill slice has at most
    threads: int | None = None
    gpu_layers: int | None = None
    cache_type_k: CacheType | None = None
    cache_type_v: CacheType | None = None
    flash_attn: FlashAttention | None = None
    slots: int | None = None  # snapshots that can be kept
    host_cache: int | None = None  # bytes of host memory for pages and tails
    disk_cache: Path | None = None  # folder where pages and tails outlive the daemon
    disk_budget: int | None = None  # bytes in that folder
    prefix_cache: OnOff | None = None  # whether beginnings that are known are not computed again
    seed: int | None = None  # of requests that bring none
    log_level: LogLevel | None = None
    load_timeout: int | None = None  # seconds without progress after which loading is given up
    stream_fd: int | None = None
    mux: bool = False
    die_with_parent: bool = False

    def to_argv(self) -> list[str]:
        """The arguments behind the program's name."""
        valued: list[tuple[str, Path | int | str | None]] = [
            ("--model", self.model),
            ("--ctx", self.ctx),
            ("--pool", self.pool),
            ("--lanes", self.lanes),
            ("--queue", self.queue),
            ("--batch", self.batch),
            ("--ubatch", self.ubatch),
            ("--threads", self.threads),
            ("--gpu-layers", self.gpu_layers),
            ("--cache-type-k", self.cache_type_k),
            ("--cache-type-v", self.cache_type_v),
            ("--flash-attn", self.flash_attn),
            ("--slots", self.slots),
            ("--host-cache", self.host_cache),
            ("--disk-cache", self.disk_cache),
            ("--disk-budget", self.disk_budget),
            ("--prefix-cache", self.prefix_cache),
            ("--seed", self.seed),
            ("--log-level", self.log_level),
            ("--load-timeout", self.load_timeout),
            ("--stream-fd", self.stream_fd),
        ]
        argv: list[str] = []
        for flag, value in valued:
            if value is not None:
                argv += [flag, str(value)]
        if self.mux:
            argv.append("--mux")
        if self.die_with_parent:
            argv.append("--die-with-parent")
        return argv
