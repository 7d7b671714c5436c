"""Metrics under the names of vLLM, for the routers that know those alone: the endpoint picker of the Gateway API
Inference Extension, llm-d, Dynamo. docs/deployment.md says what each is read for.

They say what other metrics of ours say, once more. It must not know who asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from luce.supervisor.http.engine_metrics import EngineMetrics
    from luce.supervisor.supervisor_status import SupervisorStatus


def router_families(status: SupervisorStatus, engine_metrics: Sequence[EngineMetrics], model: str) -> Iterator[Metric]:
    n_running = sum(engine.n_running for engine in status.engines)
    share = _used_share(engine_metrics)
    for name, text, value in (
        ("vllm:num_requests_running", "As luce_supervisor_running, for routers", n_running),
        ("vllm:num_requests_waiting", "As luce_supervisor_waiting", status.n_waiting),
        ("vllm:kv_cache_usage_perc", "Share of the engines' pools used by running texts, 0 to 1", share),
        ("vllm:gpu_cache_usage_perc", "As vllm:kv_cache_usage_perc, under its older name", share),
    ):
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        if value is not None:
            family.add_metric([model], value)
        yield family
    cache = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Tokens per page, pages of the engines' pools; the value is 1",
        labels=["block_size", "num_gpu_blocks"],
    )
    infos = [engine.info for engine in status.engines if engine.info is not None]
    if infos:
        page_tokens = infos[0].page_tokens
        cache.add_metric([str(page_tokens), str(sum(info.pool for info in infos) // page_tokens)], 1)
    yield cache
    labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
    adapters = GaugeMetricFamily("vllm:lora_requests_info", "Always without adapters", labels=labels)
    adapters.add_metric(["0", "", ""], 0)
    yield adapters


def _used_share(engine_metrics: Sequence[EngineMetrics]) -> float | None:
    """None: no engine has said."""
    pools = [(engine.get("cells_used"), engine.get("pool")) for engine in engine_metrics]
    known = [(used, pool) for used, pool in pools if isinstance(used, int) and isinstance(pool, int)]
    n_cells = sum(pool for _, pool in known)
    return sum(used for used, _ in known) / n_cells if n_cells > 0 else None
