"""build_app: an Ingress in front of EngineReplicas as a Serve application.

Puts the parts together; knows no policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from luce.ray.autoscaling import WAITING_TOKENS, WaitingTokensPolicy
from luce.ray.engine_replica import EngineReplica
from luce.ray.ingress import Ingress
from luce.ray.options import RayOptions, read_serving
from luce.ray.router import PrefixRouter
from luce.supervisor.config import ConfigError
from luce.supervisor.config.loading import unknown_option

ENGINES = "EngineReplica"
INGRESS = "Ingress"
_PARKING_S = 60.0  # for what a replica remembers to go to disk
_PROXIED = 10_000  # requests that come through Serve's proxy at once; how many are served, the queue says


def build_app(args: Mapping[str, Any]) -> Application:
    """`args` as docs/ray.md says. Raises ConfigError."""
    options = RayOptions.of({name: value for name, value in args.items() if name != "luce"})
    config, settings = read_serving(args.get("luce", {}))
    n_gpus = options.ray_actor_options.get("num_gpus") or 0
    if isinstance(n_gpus, float) and n_gpus > 1 and not n_gpus.is_integer():  # Ray says so to Serve's controller only
        raise ConfigError(f"ray_actor_options: num_gpus={n_gpus}: above 1 it must be a whole number")
    with _told_as("ray_actor_options"):
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
    with _told_as("ingress_actor_options"):
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
    """Raises ConfigError."""
    if options.autoscaling is None:
        return {"num_replicas": options.replicas}
    given = dict(options.autoscaling)
    known = AutoscalingConfig.model_fields.keys() - {"policy", "target_ongoing_requests"} | {"waiting_tokens"}
    for name in given.keys() - known:
        raise ConfigError(f"autoscaling: {unknown_option(name, known)}")
    waiting_tokens = given.pop("waiting_tokens", WAITING_TOKENS)
    if not isinstance(waiting_tokens, int) or isinstance(waiting_tokens, bool) or waiting_tokens < 1:
        raise ConfigError(f"autoscaling: waiting_tokens={waiting_tokens}: it must be a number from 1 on")
    if given.get("min_replicas", 1) == 0:
        text = "min_replicas=0: it must be 1 or more (sleep_idle of the server gives a device's memory back)"
        raise ConfigError(f"autoscaling: {text}")
    policy = AutoscalingPolicy(policy_function=WaitingTokensPolicy, policy_kwargs={"waiting_tokens": waiting_tokens})
    with _told_as("autoscaling"):
        return {"autoscaling_config": AutoscalingConfig(policy=policy, **given)}


@contextmanager
def _told_as(place: str) -> Iterator[None]:
    """What Ray does not take is wrong in these of our arguments."""
    try:
        yield
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in error.errors())
        raise ConfigError(f"{place}: {told}") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{place}: {error}") from None
