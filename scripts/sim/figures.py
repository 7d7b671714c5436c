"""What a simulation found: sums and samples as they come, and what is made of them. Knows no table and no plot."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.sim.replicas import Admitted, Requests

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Figures:
    """Of the time behind the warm-up."""

    n_requests: int
    mean_prompt: float
    asked_tokens: int
    found_tokens: int
    fetched_tokens: int
    read_tokens: int
    ideal_tokens: int
    """What one server without end would have read."""
    first_p50_s: float
    first_p99_s: float
    whole_p50_s: float
    stall_p99_s: float
    """Of answers whose replica was lost: until they went on elsewhere."""
    n_resumed: int
    waited_p50_s: float
    waited_p99_s: float
    utilisation: float
    imbalance: float
    """The busiest replica's work over the mean."""
    moved_share: float
    """Turns at another replica than the conversation's last."""
    restored_bytes: float
    fetched_bytes: float
    stored_bytes: float
    knowledge_bytes: float
    n_crowded_out: int
    simulated_s: float
    took_s: float
    """Of a processor."""

    @property
    def hit_share(self) -> float:
        return 1 - self.read_tokens / max(self.asked_tokens, 1)

    @property
    def ideal_share(self) -> float:
        return 1 - self.ideal_tokens / max(self.asked_tokens, 1)

    @property
    def read_over_ideal(self) -> float:
        return self.read_tokens / max(self.ideal_tokens, 1)

    @property
    def summary(self) -> str:
        return (f"{self.read_over_ideal:.2f} of the ideal's tokens read, first token {self.first_p50_s:.2f} s, "
                f"99 % within {self.first_p99_s:.1f} s; took {self.took_s:.1f} s")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        derived = {name: getattr(self, name) for name in ("hit_share", "ideal_share", "read_over_ideal")}
        return {**asdict(self), **derived}


@dataclass
class Tally:
    """Filled by the simulation, from the end of the warm-up on."""

    asked: int = 0
    found: int = 0
    fetched: int = 0
    read: int = 0
    ideal: int = 0
    n_moved: int = 0
    n_known_before: int = 0
    restored_bytes: float = 0.0
    fetched_bytes: float = 0.0
    stored_bytes: float = 0.0
    n_requests: int = 0
    waited_s: list[Array] = field(default_factory=list)
    first_s: list[Array] = field(default_factory=list)
    whole_s: list[Array] = field(default_factory=list)
    stall_s: list[Array] = field(default_factory=list)

    def admitted(self, admitted: Admitted, kv_bytes: float, state_bytes: float) -> None:
        self.n_requests += len(admitted.requests)
        self.asked += int(admitted.requests.prompt.sum())
        self.found += int(admitted.found.sum())
        self.fetched += int(admitted.fetched.sum())
        self.read += int(admitted.read.sum())
        self.ideal += int(admitted.read_by_ideal.sum())
        self.restored_bytes += float(admitted.restored_bytes.sum())
        self.fetched_bytes += float(admitted.fetched.sum() * kv_bytes + (admitted.fetched > 0).sum() * state_bytes)
        self.waited_s.append(admitted.waited_s)

    def started(self, requests: Requests) -> None:
        since_s = requests.first_s - requests.asked_s
        self.first_s.append(since_s[~requests.is_resumed])
        self.stall_s.append(since_s[requests.is_resumed])

    def ended(self, requests: Requests, ended_s: Array) -> None:
        self.whole_s.append((ended_s - requests.asked_s)[~requests.is_resumed])

    def sent(self, last_places: Array, replicas: Array) -> None:
        self.n_known_before += int((last_places >= 0).sum())
        self.n_moved += int(((last_places >= 0) & (last_places != replicas)).sum())

    def figures(
        self, work_s: Array, simulated_s: float, knowledge_bytes: float, n_crowded_out: int, took_s: float
    ) -> Figures:
        stalls = _joined(self.stall_s)
        return Figures(
            n_requests=self.n_requests,
            mean_prompt=self.asked / max(self.n_requests, 1),
            asked_tokens=self.asked,
            found_tokens=self.found,
            fetched_tokens=self.fetched,
            read_tokens=self.read,
            ideal_tokens=self.ideal,
            first_p50_s=_quantile(_joined(self.first_s), 0.5),
            first_p99_s=_quantile(_joined(self.first_s), 0.99),
            whole_p50_s=_quantile(_joined(self.whole_s), 0.5),
            stall_p99_s=_quantile(stalls, 0.99),
            n_resumed=len(stalls),
            waited_p50_s=_quantile(_joined(self.waited_s), 0.5),
            waited_p99_s=_quantile(_joined(self.waited_s), 0.99),
            utilisation=float(work_s.mean() / simulated_s),
            imbalance=float(work_s.max() / max(work_s.mean(), 1e-9)),
            moved_share=self.n_moved / max(self.n_known_before, 1),
            restored_bytes=self.restored_bytes,
            fetched_bytes=self.fetched_bytes,
            stored_bytes=self.stored_bytes,
            knowledge_bytes=knowledge_bytes,
            n_crowded_out=n_crowded_out,
            simulated_s=simulated_s,
            took_s=took_s,
        )


def _joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.zeros(0)


def _quantile(values: Array, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else 0.0
