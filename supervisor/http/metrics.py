"""Metrics: what the HTTP side counts and measures, and how the supervisor stands, in Prometheus' text format.

docs/metrics.md says what each name means. All of it is touched by the event loop's thread alone, so that counting costs
no lock; it must not know who counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from luce.protocol import ExpertReads, Speculation
from luce.supervisor.engine.watchdog import EngineState
from luce.supervisor.http.engine_families import engine_families
from luce.supervisor.http.router_families import router_families
from luce.supervisor.http.store_families import store_families

if TYPE_CHECKING:
    from luce.supervisor.http.engine_metrics import EngineMetrics
    from luce.supervisor.supervisor_status import SupervisorStatus

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_GAP_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576)
_STEP_TOKENS = (1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


class Distribution:
    """A histogram that takes many equal values at once."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, n_times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += n_times
        self._sum += value * n_times

    def family(self) -> HistogramMetricFamily:
        buckets = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return HistogramMetricFamily(self.name, self.text, buckets=buckets, sum_value=self._sum)


class Metrics:
    def __init__(self, *, version: str = "", model: str = "") -> None:
        self._info = {"version": version, "model": model}
        self._n_started: Counter[str] = Counter()
        self._n_ended: Counter[tuple[str, str]] = Counter()
        self._n_prompt_tokens = 0
        self._n_cached_tokens = 0
        self._n_generated_tokens = 0
        self._n_repaired_calls = 0
        self._n_mended = 0
        self._n_unaccounted = 0
        self._n_loops = 0
        self._n_key_requests: Counter[tuple[str, str]] = Counter()
        self._n_key_tokens: Counter[tuple[str, str]] = Counter()
        self._n_hits: Counter[str] = Counter()
        self._n_hit_tokens: Counter[str] = Counter()
        self._n_misses: Counter[str] = Counter()
        self._first_token = Distribution(
            "luce_http_time_to_first_token_seconds",
            "Time from accepting a request to its first token, queue time included",
            _SECONDS,
        )
        self._gaps = Distribution(
            "luce_http_inter_token_latency_seconds",
            "Time between tokens of one answer; tokens that arrive together share their time evenly",
            _GAP_SECONDS,
        )
        self._queue = Distribution("luce_http_queue_time_seconds", "Time that a request waited for a lane", _SECONDS)
        self._prompt = Distribution("luce_http_prompt_tokens", "Tokens of a prompt, cached ones included", _TOKENS)
        self._cached = Distribution(
            "luce_http_cached_share_ratio", "Share of a prompt that came from the cache", _SHARES
        )
        self._acceptance = Distribution(
            "luce_http_draft_acceptance_ratio",
            "Share of drafted tokens that were accepted, for answers with drafts",
            _SHARES,
        )
        self._tokens_per_step = Distribution(
            "luce_http_tokens_per_step", "Tokens per step of an answer: one, plus the accepted drafts", _STEP_TOKENS
        )
        self._expert_hits = Distribution(
            "luce_http_expert_hit_ratio",
            "Share of an answer's expert reads that the GPU served (mixtures in two memories)",
            _SHARES,
        )
        self._speculation: Speculation | None = None
        self._status: SupervisorStatus | None = None
        self._engine_metrics: Sequence[EngineMetrics] = ()
        self._registry = CollectorRegistry()
        self._registry.register(_Families(self))

    def request_started(self, api: str) -> None:
        self._n_started[api] += 1

    def request_ended(self, api: str, outcome: str) -> None:
        """`outcome`: ok, refused, overloaded, failed or gone. Each request that was started ends once."""
        self._n_ended[api, outcome] += 1

    def key_request(self, key: str, outcome: str) -> None:
        self._n_key_requests[key, outcome] += 1

    def key_tokens(self, key: str, n_read: int, n_generated: int) -> None:
        """As they count for the key: computed ones."""
        self._n_key_tokens[key, "read"] += n_read
        self._n_key_tokens[key, "generated"] += n_generated

    def first_token(self, seconds: float) -> None:
        self._first_token.add(seconds)

    def token_gaps(self, seconds_per_token: float, n_tokens: int) -> None:
        self._gaps.add(seconds_per_token, n_tokens)

    def queued(self, seconds: float) -> None:
        self._queue.add(seconds)

    def prompt(self, n_prompt: int, n_cached: int, *, tier: str = "none", miss: str = "none") -> None:
        """`tier` and `miss` as in luce.protocol's GenerateOk: where the cached part lay, and why it was not more."""
        self._n_hits[tier] += 1
        self._n_hit_tokens[tier] += n_cached
        self._n_misses[miss.partition(":")[0]] += 1
        self._prompt.add(n_prompt)
        self._n_prompt_tokens += n_prompt
        self._n_cached_tokens += n_cached
        if n_prompt > 0:
            self._cached.add(n_cached / n_prompt)

    def generated(self, n_tokens: int) -> None:
        self._n_generated_tokens += n_tokens

    def calls_repaired(self, n_calls: int) -> None:
        self._n_repaired_calls += n_calls

    def accounted(self, *, is_mended: bool, n_lost: int) -> None:
        """Of a choice: whether its content has text that its format has no place for; bytes that are in no field."""
        self._n_mended += is_mended
        self._n_unaccounted += n_lost

    def looped(self, n_choices: int) -> None:
        self._n_loops += n_choices

    def speculated(self, speculation: Speculation) -> None:
        if speculation.acceptance is not None:
            self._acceptance.add(speculation.acceptance)
        if speculation.tokens_per_step is not None:
            self._tokens_per_step.add(speculation.tokens_per_step)
        self._speculation = speculation if self._speculation is None else self._speculation + speculation

    def experts_read(self, experts: ExpertReads) -> None:
        if experts.hit_share is not None:
            self._expert_hits.add(experts.hit_share)

    def render(self, status: SupervisorStatus, engine_metrics: Sequence[EngineMetrics] = ()) -> bytes:
        """Prometheus' text format. `engine_metrics`: of the engines, in the order of `status.engines`, or nothing."""
        self._status, self._engine_metrics = status, engine_metrics
        try:
            return generate_latest(self._registry)
        finally:
            self._status, self._engine_metrics = None, ()

    def families(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._keys()
        for distribution in (
            self._first_token,
            self._gaps,
            self._queue,
            self._prompt,
            self._cached,
            self._acceptance,
            self._tokens_per_step,
            self._expert_hits,
        ):
            yield distribution.family()
        yield CounterMetricFamily(
            "luce_http_read_tokens", "Prompt tokens, cached ones included", value=self._n_prompt_tokens
        )
        yield CounterMetricFamily(
            "luce_http_cached_tokens", "Prompt tokens that came from the cache", value=self._n_cached_tokens
        )
        yield CounterMetricFamily(
            "luce_http_generated_tokens", "Tokens of all finished answers", value=self._n_generated_tokens
        )
        yield CounterMetricFamily(
            "luce_http_repaired_calls",
            "Tool calls that came as text and were read as calls (--repair-calls)",
            value=self._n_repaired_calls,
        )
        yield CounterMetricFamily(
            "luce_http_mended_answers",
            "Answers with text that their format has no place for; it became content",
            value=self._n_mended,
        )
        yield CounterMetricFamily(
            "luce_http_unaccounted_text_bytes",
            "Bytes of answers that are in no field; 0 except for faults",
            value=self._n_unaccounted,
        )
        yield CounterMetricFamily(
            "luce_http_loops", "Answers ended because they repeated themselves (--loop-guard)", value=self._n_loops
        )
        for name, text, label, counts in (
            (
                "luce_http_prefix_requests",
                "Finished answers by the tier of their cached prefix: resident (pool), host, disk or none",
                "tier",
                self._n_hits,
            ),
            ("luce_http_prefix_tokens", "Cached tokens by tier", "tier", self._n_hit_tokens),
            (
                "luce_http_prefix_misses",
                "Finished answers by why no more was cached: none, no_tail, evicted, differs_at, identity or off",
                "reason",
                self._n_misses,
            ),
        ):
            yield _counted(name, text, label, counts)
        yield from _speculation_families(self._speculation)
        yield InfoMetricFamily("luce_build", "What is running", value=self._info)
        if self._status is not None:
            yield from _supervisor_families(self._status)
            yield from engine_families(list(zip(self._status.engines, self._engine_metrics, strict=False)))
            yield from router_families(self._status, self._engine_metrics, self._info["model"])

    def _keys(self) -> Iterator[Metric]:
        """Without numbers where there are no keys."""
        for name, text, label, counts in (
            ("luce_http_key_requests", "Requests by API key and outcome", "outcome", self._n_key_requests),
            (
                "luce_http_key_tokens",
                "Tokens computed for an API key: read (uncached prompt tokens) and generated",
                "kind",
                self._n_key_tokens,
            ),
        ):
            family = CounterMetricFamily(name, text, labels=["key", label])
            for (key, value), count in sorted(counts.items()):
                family.add_metric([key, value], count)
            yield family

    def _requests(self) -> Iterator[Metric]:
        ended = CounterMetricFamily("luce_http_requests", "Finished requests", labels=["api", "outcome"])
        running = GaugeMetricFamily(
            "luce_http_requests_in_progress", "Requests in progress; a scrape sees itself as other", labels=["api"]
        )
        n_ended: Counter[str] = Counter()
        for (api, outcome), count in sorted(self._n_ended.items()):
            ended.add_metric([api, outcome], count)
            n_ended[api] += count
        for api, count in sorted(self._n_started.items()):
            running.add_metric([api], count - n_ended[api])
        yield ended
        yield running


def _counted(name: str, text: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


class _Families(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()


def _speculation_families(speculation: Speculation | None) -> Iterator[Metric]:
    """Names without numbers until an answer comes from an engine that speculates: nothing was measured."""
    measured = Speculation() if speculation is None else speculation
    for name, text, value in (
        ("luce_http_steps", "Model steps of all finished answers", measured.n_steps),
        ("luce_http_speculated_steps", "Steps that verified drafts", measured.n_speculated_steps),
        ("luce_http_drafted_tokens", "Drafted tokens that were verified", measured.n_drafted),
        ("luce_http_accepted_tokens", "Drafted tokens that were accepted", measured.n_accepted),
        ("luce_http_draft_seconds", "Time of drafting", measured.draft_s),
        (
            "luce_http_verify_seconds",
            "Time of steps that verified drafts; a step with several answers is divided among them",
            measured.verify_s,
        ),
    ):
        yield CounterMetricFamily(name, text, value=None if speculation is None else value)


def _supervisor_families(status: SupervisorStatus) -> Iterator[Metric]:
    engines = status.engines
    for name, text, value in (
        ("luce_supervisor_lanes", "Sequences that can run at once, over all engines", sum(e.lanes for e in engines)),
        ("luce_supervisor_running", "Running sequences", sum(e.n_running for e in engines)),
        ("luce_supervisor_waiting", "Requests that wait for a lane", status.n_waiting),
        ("luce_supervisor_slots", "Prefixes that can be pinned", sum(e.slots for e in engines)),
        ("luce_supervisor_slots_used", "Pinned prefixes", sum(e.n_slots_used for e in engines)),
        ("luce_supervisor_slot_bytes", "Memory of pinned prefixes", sum(e.slot_bytes_used for e in engines)),
        (
            "luce_supervisor_slowest_step_seconds",
            "Longest silence of an engine that then answered",
            max((e.slowest_step_s for e in engines), default=0.0),
        ),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    yield GaugeMetricFamily(
        "luce_supervisor_parked_engines",
        "Engines that have freed the device's memory (--sleep-idle)",
        value=sum(engine.is_parked for engine in engines),
    )
    states = GaugeMetricFamily(
        "luce_supervisor_engines",
        "Engines by state: starting, ready, backoff, away, stopping or failed",
        labels=["state"],
    )
    for state in EngineState:
        states.add_metric([state.value], sum(engine.state is state for engine in engines))
    yield states
    yield CounterMetricFamily(
        "luce_supervisor_engine_deaths", "Engines that died", value=sum(engine.n_deaths for engine in engines)
    )
    yield CounterMetricFamily(
        "luce_supervisor_resumes", "Requests resumed after their engine died", value=status.n_resumes
    )
    for name, text, value in (
        ("luce_supervisor_moves", "Cached texts moved from a busy engine to another", status.n_moves),
        ("luce_supervisor_failed_moves", "Failed moves; the text was read again", status.n_failed_moves),
        ("luce_supervisor_moved_tokens", "Tokens of moved texts", status.n_moved_tokens),
        ("luce_supervisor_moved_bytes", "Bytes of moved texts' caches", status.n_moved_bytes),
    ):
        yield CounterMetricFamily(name, text, value=value)
    answers = CounterMetricFamily(
        "luce_supervisor_requests",
        "Requests by outcome: finished, failed or cancelled. A request with n counts once for each choice",
        labels=["outcome"],
    )
    answers.add_metric(["finished"], status.n_finished)
    answers.add_metric(["failed"], status.n_failed)
    answers.add_metric(["cancelled"], status.n_cancelled)
    yield answers
    yield from _embedding_families(status)
    yield from store_families(status)
    yield CounterMetricFamily(
        "luce_supervisor_tokens", "Generated tokens, including unfinished answers", value=status.n_tokens
    )


def _embedding_families(status: SupervisorStatus) -> Iterator[Metric]:
    """Without numbers where there is no such model."""
    for kind, name, text, field in (
        (GaugeMetricFamily, "ready", "1 while the engine of this model is ready", "is_ready"),
        (GaugeMetricFamily, "waiting", "Requests of which nothing is computed yet", "n_waiting"),
        (CounterMetricFamily, "texts", "Texts whose vector or score was computed", "n_texts"),
        (CounterMetricFamily, "tokens", "Tokens of these texts", "n_tokens"),
        (CounterMetricFamily, "engine_deaths", "Engines of this model that died", "n_deaths"),
        (CounterMetricFamily, "retries", "Requests that were begun again because their engine died", "n_retries"),
    ):
        family = kind(f"luce_embedding_{name}", text, labels=["task"])
        for model in status.embeddings:
            family.add_metric([model.name], float(getattr(model, field)))
        yield family
