"""What luced's memory costs by itself: going back to a text that is known as a whole, from device, host and disk; many
snapshots of one text; decoding beside a pool full of other texts. Measured inside luced where that is what counts.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.table import Table

from luce.protocol import GenerateOk, InlineSnapshotFailed, SnapshotTaken, StatusLine
from scripts.bench.memory.agent_session import HIGHEST_ID, LOWEST_ID
from tests.daemon_driver import DaemonDriver, gen_line

N_SNAPSHOTS = 200
N_DECODED = 96
SETTLE_DEADLINE_S = 60.0
EXTRA = "ignore_eos=1"


@dataclass(frozen=True)
class LucedSettings:
    binary: Path
    model: Path
    n_ctx: int
    n_ubatch: int
    n_threads: int
    cache_type: str
    n_gpu_layers: int

    def arguments(self, n_pool: int, *more: str) -> list[str]:
        return [
            "--ctx", str(self.n_ctx), "--pool", str(max(n_pool, self.n_ctx)), "--lanes", "4",
            "--ubatch", str(self.n_ubatch), "--threads", str(self.n_threads),
            "--gpu-layers", str(self.n_gpu_layers),
            "--cache-type-k", self.cache_type, "--cache-type-v", self.cache_type, "--flash-attn", "on",
            "--host-cache", "4G", *more,
        ]  # fmt: skip

    def start(self, n_pool: int, *more: str) -> DaemonDriver:
        return DaemonDriver(self.binary, self.model, *self.arguments(n_pool, *more))


@dataclass(frozen=True)
class Restore:
    """A whole prompt was known, its logits too: seconds to the first token."""

    seconds: list[float]
    """From writing the line to having the token: reading the ids, too."""
    inside_s: list[float]
    """Of that, from giving the request a lane to the token."""


@dataclass
class Costs:
    n_tokens: int
    page_bytes: int
    tail_bytes: int
    restores: dict[str, Restore] = field(default_factory=dict)
    snapshot_bytes: int = 0
    """200 snapshots' pinned bytes by luced's own count …"""
    snapshot_rss_bytes: int = 0
    """… what the process grew by, …"""
    unique_bytes: int = 0
    """… and the text's pages and as many tails."""
    decode_empty: list[float] = field(default_factory=list)
    """Tokens a second with nothing else in the pool, …"""
    decode_full: list[float] = field(default_factory=list)
    """… and with the pool full of others' pages."""


def text(n: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(n)]


def ask(daemon: DaemonDriver, prompt: Sequence[int], n: int, extra: str = "") -> tuple[float, GenerateOk]:
    """Seconds to the first token and the reply; lines about snapshots are passed over."""
    line = gen_line(1, n, prompt, f"{EXTRA} {extra}")
    started_s = monotonic()
    daemon.send(line)
    daemon.next_token()
    first_token_s = monotonic() - started_s
    daemon.tokens_until_end()
    while not isinstance(reply := daemon.next_reply(), GenerateOk):
        assert not isinstance(reply, InlineSnapshotFailed), reply
    return first_token_s, reply


def status(daemon: DaemonDriver) -> dict[str, str]:
    daemon.send("status")
    reply = daemon.next_reply()
    assert isinstance(reply, StatusLine), reply
    return dict(reply.fields)


def settle(daemon: DaemonDriver) -> dict[str, str]:
    """Wait until what is written behind has been written."""
    until_s = monotonic() + SETTLE_DEADLINE_S
    last = status(daemon)
    while True:
        time.sleep(0.3)
        now = status(daemon)
        if all(now[key] == last[key] for key in ("pages_host", "tails_host", "disk_written")):
            return now
        if monotonic() > until_s:
            raise TimeoutError("luced still writes behind")
        last = now


def restore_again(daemon: DaemonDriver, prompt: Sequence[int], tier: str, extra: str = "") -> tuple[float, float]:
    seconds, reply = ask(daemon, prompt, 1, extra)
    if reply.n_reused != len(prompt) or reply.tier != tier:
        raise RuntimeError(f"expected {len(prompt)} tokens from {tier}: {reply}")
    return seconds, reply.prefill_s


def to_restore(samples: Sequence[tuple[float, float]]) -> Restore:
    return Restore([sample[0] for sample in samples], [sample[1] for sample in samples])


def measure_restores(settings: LucedSettings, n_tokens: int, n_rounds: int, costs: Costs) -> None:
    one, other = text(n_tokens, 1), text(n_tokens, 2)
    with settings.start(n_tokens + 512) as daemon:
        ask(daemon, one, 1)
        daemon.send("snapshot id=9 slot=0 of=1")
        assert isinstance(daemon.next_reply(), SnapshotTaken)
        costs.restores["resident"] = to_restore([restore_again(daemon, one, "resident") for _ in range(2 * n_rounds)])
        costs.restores["resident, by slot"] = to_restore(
            [restore_again(daemon, one, "resident", "restore=0") for _ in range(2 * n_rounds)]
        )
        # The pool holds one of them: each drives the other out, into the host.
        ask(daemon, other, 1)
        costs.restores["host"] = to_restore(
            [restore_again(daemon, prompt, "host") for _ in range(n_rounds) for prompt in (one, other)]
        )
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        disk = ("--disk-cache", folder, "--disk-budget", "4G")
        with settings.start(n_tokens + 512, *disk) as daemon:
            ask(daemon, one, 1)
            settle(daemon)
        for _ in range(n_rounds):
            with settings.start(n_tokens + 512, *disk) as daemon:
                samples.append(restore_again(daemon, one, "disk"))
    costs.restores["disk, after a restart"] = to_restore(samples)


def measure_snapshots(settings: LucedSettings, n_tokens: int, costs: Costs) -> None:
    """One text, a snapshot every few tokens. Another text has been through the same cells before."""
    prompt = text(n_tokens, 3)
    n_apart = max(1, n_tokens // N_SNAPSHOTS)
    points = [n_apart * (i + 1) for i in range(min(N_SNAPSHOTS, n_tokens // n_apart))]
    with settings.start(n_tokens + 512, "--slots", "256") as daemon:
        ask(daemon, text(n_tokens, 4), 1)
        daemon.send("clear id=2")
        daemon.next_reply()
        before_kb = daemon.resident_kb()
        ask(daemon, prompt, 1, "snap=" + ",".join(f"{at}:{i}" for i, at in enumerate(points)))
        after = settle(daemon)
        costs.snapshot_rss_bytes = (daemon.resident_kb() - before_kb) * 1024
        costs.snapshot_bytes = int(after["pinned_bytes"])
    n_pages = points[-1] // 64
    row_bytes = costs.page_bytes // 64
    costs.unique_bytes = n_pages * costs.page_bytes + sum(costs.tail_bytes + at % 64 * row_bytes for at in points)


def measure_decoding(settings: LucedSettings, n_tokens: int, n_rounds: int, costs: Costs) -> None:
    """The same short request in two daemons of the same pool, one of them full of texts that nobody runs."""
    n_pool = 2 * n_tokens
    with settings.start(n_pool) as empty, settings.start(n_pool) as full:
        for seed in range(5, 7):
            ask(full, text(n_tokens - 64, seed), 1)
        settle(full)
        for i in range(2 * n_rounds):
            prompt = text(64, 100 + i)
            for daemon, speeds in ((empty, costs.decode_empty), (full, costs.decode_full)):
                daemon.send("clear id=2") if daemon is empty else None
                if daemon is empty:
                    daemon.next_reply()
                speeds.append(ask(daemon, prompt, N_DECODED)[1].decode_tokens_per_s)


def measure_costs(settings: LucedSettings, n_tokens: int, n_rounds: int) -> Costs:
    with settings.start(n_tokens) as daemon:
        ready = dict(daemon.ready.fields)
    costs = Costs(n_tokens, int(ready["page_bytes"]), int(ready["tail_bytes"]))
    measure_restores(settings, n_tokens, n_rounds, costs)
    measure_snapshots(settings, n_tokens, costs)
    measure_decoding(settings, n_tokens, n_rounds, costs)
    return costs


def show_costs(console: Console, model: str, costs: Costs) -> None:
    table = Table(title=f"{model}: {costs.n_tokens} known tokens put back, ms")
    for name in ("from", "line to token, median", "least", "inside luced, median", "least"):
        table.add_column(name, justify="left" if name == "from" else "right")
    for tier, restore in costs.restores.items():
        figures = [
            f"{pick(values) * 1e3:.2f}"
            for values in (restore.seconds, restore.inside_s)
            for pick in (statistics.median, min)
        ]
        table.add_row(tier, *figures)
    console.print(table)
    mb = 1e6
    ratios = [full / empty for full, empty in zip(costs.decode_full, costs.decode_empty, strict=True)]
    console.print(
        f"{N_SNAPSHOTS} snapshots: {costs.snapshot_bytes / mb:.1f} MB pinned, process grew by "
        f"{costs.snapshot_rss_bytes / mb:.1f} MB; unique pages and tails {costs.unique_bytes / mb:.1f} MB: "
        f"{costs.snapshot_bytes / costs.unique_bytes:.2f} and {costs.snapshot_rss_bytes / costs.unique_bytes:.2f}\n"
        f"decoding beside a pool of idle pages / beside an empty one: {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} .. {max(ratios):.3f})",
        soft_wrap=True,
    )
