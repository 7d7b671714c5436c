"""RayOptions: what build_app makes an application of, from the `args` of Serve's YAML.

`luce` has the options of `luce serve`, by the names that they have in its own file; the others are Ray's side. It must
not know Ray.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from luce.ray.prefix_names import PAGE_TOKENS
from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.config.loading import from_table, read_configuration
from luce.supervisor.http.settings import ServeSettings

_ARGUMENTS = Path("args.luce")
_NOT_HERE = ("mmproj", "embedding_model", "rerank_model", "slot_save_path", "kv_events", "models", "models_from")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    replicas: int = 1
    autoscaling: Mapping[str, Any] | None = None
    """In place of `replicas`: Ray's autoscaling_config, and `waiting_tokens`, that a replica may have before it."""
    ray_actor_options: Mapping[str, Any] = field(default_factory=dict)
    """Of a replica: num_cpus, num_gpus, resources, …"""
    ingresses: int = 1
    ingress_actor_options: Mapping[str, Any] = field(default_factory=lambda: {"num_cpus": 0})
    router: str = "price"  # or two_choices, to compare
    router_seed: int | None = None
    stride: int = 256
    """Tokens from one name of a text's beginning to the next."""
    stats_period_s: float = 10.0
    """Between two digests of what a replica remembers."""
    drain_s: float = 30.0
    """For answers to end at a replica that drains; then others go on with them."""
    health_period_s: float = 2.0

    def __post_init__(self) -> None:
        if self.stride <= 0 or self.stride % PAGE_TOKENS:
            raise ConfigError(f"stride={self.stride}: it must be a multiple of {PAGE_TOKENS}, the tokens of a page")
        if self.router not in {"price", "two_choices"}:
            raise ConfigError(f"router={self.router}: it must be price or two_choices")
        for name in ("replicas", "ingresses"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be a number from 1 on")
        if self.drain_s < 0:
            raise ConfigError(f"drain_s={self.drain_s}: it must be 0 or more")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Without `luce`. What `serve run` takes from the command line is text. Raises ConfigError."""
        known = {entry.name: entry for entry in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name not in known:
                near = difflib.get_close_matches(name, [*known, "luce"], n=1)
                raise ConfigError(f"there is no option {name}" + (f"; did you mean {near[0]}?" if near else ""))
            values[name] = _as_number(name, value, known[name].type)
        return cls(**values)


def _as_number(name: str, value: Any, kind: object) -> Any:
    if not isinstance(value, str) or kind not in {"int", "float", "int | None"}:
        return value
    try:
        return float(value) if kind == "float" else int(value)
    except ValueError:
        raise ConfigError(f"{name}={value}: it must be a number") from None


def read_serving(table: Mapping[str, Any]) -> tuple[SupervisorConfig, ServeSettings]:
    """From the `luce` of the arguments, before it the environment and what LUCE_CONFIG names. Raises ConfigError."""
    from luce.supervisor.cli.entry import Failure
    from luce.supervisor.cli.model_files import read_model
    from luce.supervisor.cli.serve import draft_answers, draft_of, expert_profiles, known_flags

    flags = known_flags()
    configuration = read_configuration(flags, {}, os.environ, None)
    configuration = configuration.overlaid(from_table(flags, table, _ARGUMENTS))
    for name in _NOT_HERE:
        if configuration[name]:
            raise ConfigError(f"{name} is not served by replicas: use `luce serve` for it")
    settings = configuration.serve_settings()
    try:
        config = configuration.supervisor_config(
            model=read_model(configuration["model"]).absolute(),
            draft=draft_of(configuration),
            draft_answers=draft_answers(configuration, settings),
            expert_profiles=expert_profiles(configuration, os.environ),
        )
    except Failure as failure:
        raise ConfigError(str(failure)) from failure
    return config, settings
