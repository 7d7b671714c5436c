"""build_app: an Ingress in front of EngineReplicas as a Serve application.

Puts the parts together; knows no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from luce.ray.autoscaling import WaitingTokensPolicy
from luce.ray.engine_replica import EngineReplica
from luce.ray.ingress import Ingress
from luce.ray.options import RayOptions, read_serving
from luce.ray.router import PrefixRouter

ENGINES = "EngineReplica"
INGRESS = "Ingress"
_PARKING_S = 60.0  # for what a replica remembers to go to disk
_PROXIED = 10_000  # requests that come through Serve's proxy at once; how many are served, the queue says


def build_app(args: Mapping[str, Any]) -> Application:
    """`args` as docs/ray.md says. Raises ConfigError."""
    options = RayOptions.of({name: value for name, value in args.items() if name != "luce"})
    config, settings = read_serving(args.get("luce", {}))
    engines = serve.deployment(EngineReplica).options(
        name=ENGINES,
        ray_actor_options=dict(options.ray_actor_options),
        max_ongoing_requests=_PROXIED,
        health_check_period_s=options.health_period_s,
        graceful_shutdown_timeout_s=options.drain_s + _PARKING_S,
        graceful_shutdown_wait_loop_s=0.1,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"choice": options.router, "seed": options.router_seed},
            request_routing_stats_period_s=options.stats_period_s,
        ),
        **_scale(options),
    )
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name=INGRESS,
        num_replicas=options.ingresses,
        ray_actor_options=dict(options.ingress_actor_options),
        max_ongoing_requests=_PROXIED,
        health_check_period_s=options.health_period_s,
        graceful_shutdown_timeout_s=settings.shutdown_delay_s + settings.shutdown_grace_s + 10,
    )
    bound = engines.bind(config, stride=options.stride, drain_s=options.drain_s)
    return ingress.bind(bound, config, settings, stride=options.stride)


def _scale(options: RayOptions) -> dict[str, Any]:
    if options.autoscaling is None:
        return {"num_replicas": options.replicas}
    given = dict(options.autoscaling)
    kwargs = {"waiting_tokens": given.pop("waiting_tokens")} if "waiting_tokens" in given else {}
    policy = AutoscalingPolicy(policy_function=WaitingTokensPolicy, policy_kwargs=kwargs)
    return {"autoscaling_config": AutoscalingConfig(policy=policy, **given)}
