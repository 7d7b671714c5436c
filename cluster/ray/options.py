"""RayOptions: what build_app makes an application of, from the `args` of Serve's YAML.

`luce` has the options of `luce serve`, by the names that they have in its own file; the others are Ray's side. It must
not know Ray.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_type_hints

from luce.ray.replica_book import Choice
from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.config.loading import from_table, read_configuration, unknown_option
from luce.supervisor.config.values import read_item, read_text
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS

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
    router: Choice = "price"  # or two_choices, to compare
    router_seed: int | None = None
    stride: int = 256
    """Tokens from one name of a text's beginning to the next."""
    stats_period_s: float = 10.0
    """Between two digests of what a replica remembers."""
    drain_s: float = 30.0
    """For answers to end at a replica that drains; then others go on with them."""
    health_period_s: float = 2.0

    def __post_init__(self) -> None:
        if self.stride == 0 or self.stride % PAGE_TOKENS:
            raise ConfigError(f"stride={self.stride}: it must be a multiple of {PAGE_TOKENS}, the tokens of a page")
        for name in ("replicas", "ingresses"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}=0: it must be 1 or more")
        for name in ("stats_period_s", "health_period_s"):
            if getattr(self, name) == 0:
                raise ConfigError(f"{name}=0: it must be above 0")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Self:
        """Without `luce`. What `serve run` takes from the command line is text. Raises ConfigError."""
        kinds = get_type_hints(cls)
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name not in kinds:
                raise ConfigError(unknown_option(name, [*kinds, "luce"]))
            values[name] = _value(name, kinds[name], value)
        if "replicas" in values and values.get("autoscaling") is not None:
            raise ConfigError("replicas and autoscaling: name one of them (autoscaling has min_replicas)")
        return cls(**values)


def _value(name: str, kind: Any, value: object) -> Any:
    try:
        return read_text(kind, value) if isinstance(value, str) else read_item(kind, value, Path())
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def read_serving(given: object) -> tuple[SupervisorConfig, ServeSettings]:
    """From the `luce` of the arguments, before it the environment and what LUCE_CONFIG names. Raises ConfigError."""
    from luce.supervisor.cli.entry import Failure
    from luce.supervisor.cli.model_files import read_model
    from luce.supervisor.cli.serve import draft_answers, draft_of, expert_profiles, known_flags

    table = _value("luce", Mapping[str, Any], given)
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
        _check(config, settings)
    except Failure as failure:
        raise ConfigError(str(failure)) from failure
    return config, settings


def _check(config: SupervisorConfig, settings: ServeSettings) -> None:
    """What no ingress would start with: Serve would end the one before for it. Raises ConfigError, Failure."""
    from luce.supervisor.cli.input import read_file, utf8
    from luce.supervisor.http.keys.key_ring import keys_of
    from luce.supervisor.http.sockets import tls_context
    from luce.supervisor.text import TextError, TextModel

    file = settings.chat_template
    template = None if file is None else utf8(read_file(file), f"chat_template {file}")
    try:
        TextModel(config.model, chat_template=template).close()
    except TextError as error:
        raise ConfigError(str(error)) from error
    tls_context(settings)
    keys_of(settings)
