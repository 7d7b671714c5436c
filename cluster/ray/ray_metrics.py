"""What replicas and ingresses tell Ray's own metrics. The rest is at the ingress' /metrics, by our own names.

Ray adds application, deployment and replica. It must not know how figures come about.
"""

from __future__ import annotations

from collections.abc import Mapping

from ray.serve import metrics

REPLICA_GAUGES = {
    "luce_replica_waiting_tokens": "Tokens of open requests that are still to be read",
    "luce_replica_open_requests": "Requests that wait or run",
    "luce_replica_held_names": "Beginnings of texts that the replica remembers",
    "luce_replica_read_token_seconds": "What reading a token has taken of late",
    "luce_replica_tokens": "Tokens that its engines have generated since its start",
    "luce_replica_resumes": "Answers that another of its engines has gone on with",
}
INGRESS_GAUGES = {
    "luce_ingress_replicas": "Replicas that it is connected to",
    "luce_ingress_open_requests": "Requests that it carries",
    "luce_ingress_failovers": "Answers that another replica has gone on with since its start",
}


class Gauges:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._gauges = {name: metrics.Gauge(name, description=text) for name, text in texts.items()}

    def set(self, **values: float) -> None:
        """By their names without `luce_` and the kind behind it."""
        for name, gauge in self._gauges.items():
            short = name.split("_", 2)[2]
            if short in values:
                gauge.set(values[short])
