"""The features that can be taken apart: what turns each on and off. Knows the configuration, no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from luce.supervisor import SupervisorConfig
from scripts.bench.replay.run import cold_config


@dataclass(frozen=True)
class Parts:
    """What features need that are on."""

    draft: Path | None
    n_bounded: int
    scorer: Path | None
    n_lanes: int


@dataclass(frozen=True)
class Feature:
    what: str
    on: Callable[[SupervisorConfig, Parts], SupervisorConfig]
    off: Callable[[SupervisorConfig], SupervisorConfig]


FEATURES: Mapping[str, Feature] = {
    "prefix-cache": Feature("what was read before is not read again", lambda config, _: config, cold_config),
    "speculation": Feature(
        "drafts, of the drafter and of n-grams",
        lambda config, parts: replace(config, draft=parts.draft, draft_max=None),
        lambda config: replace(config, draft=None, draft_max=0),
    ),
    "bounded-kv": Feature(
        "so many tokens of a text on the device (--kv-offload)",
        lambda config, parts: replace(config, pool=None, kvflash=parts.n_bounded),
        lambda config: replace(config, kvflash=None),
    ),
    "sparse-prefill": Feature(
        "only parts of long prompts are read before the answer (--prefill-scorer)",
        lambda config, parts: replace(config, prefill="sparse", prefill_scorer=parts.scorer),
        lambda config: replace(config, prefill=None, prefill_scorer=None),
    ),
    "lanes": Feature(
        "all agents decode together",
        lambda config, parts: replace(config, lanes=parts.n_lanes),
        lambda config: replace(config, lanes=1),
    ),
}


def arm(config: SupervisorConfig, chosen: Mapping[str, bool], parts: Parts) -> SupervisorConfig:
    """The configuration with some features on and some off. What takes away comes first, so that it takes nothing that
    another feature brings."""
    for name, is_on in chosen.items():
        if not is_on:
            config = FEATURES[name].off(config)
    for name, is_on in chosen.items():
        if is_on:
            config = FEATURES[name].on(config, parts)
    return config
