"""Two models of the packaged kind that have one place between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from luce.supervisor import SupervisorConfig
from luce.supervisor.fleet.fleet import FleetConfig, Member
from luce.supervisor.fleet.turns import TurnRules

FleetMaker = Callable[..., FleetConfig]


@pytest.fixture
def own_temporary_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def two_models(tiny_model: Path, tmp_path: Path) -> FleetMaker:
    """two_models(rules=…, disk=True, of_member={...})"""

    def make(
        *, rules: TurnRules | None = None, disk: bool = False, drain_s: float | None = 60.0, **of_member: object
    ) -> FleetConfig:
        def member(name: str) -> Member:
            folder = tmp_path / f"cache {name}"
            config = SupervisorConfig(
                model=tiny_model,
                ctx=8192,
                lanes=4,
                threads=1,
                no_warmup=True,
                log_level="warn",
                restart_delay_s=0.01,
                ping_interval_s=0.05,
                stopped_timeout_s=0.5,
                disk_cache=folder if disk else None,
            )
            return Member(name=name, config=config, **of_member)  # type: ignore[arg-type]

        return FleetConfig(
            members=[member("left"), member("right")],
            rules=TurnRules(turn_s=0.3, linger_s=0.05) if rules is None else rules,
            drain_s=drain_s,
        )

    return make
