"""Whole runs with few replicas: nothing is lost or made up, whichever router and whatever fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.sim.figures import Figures
from scripts.sim.outages import OutageSetting
from scripts.sim.prices import load_prices
from scripts.sim.routers import ROUTERS
from scripts.sim.simulation import Plan, Simulation
from tests.sim.small_shape import SHAPE

PRICES = load_prices("27b-24g")
PLAN = Plan("ours", 5, load=0.7, duration_s=100, warm_up_s=20, tick_s=1.0)
RESTART = OutageSetting(restart_at_s=40.0, drain_s=20.0, wave=0.2)


def run(plan: Plan) -> Figures:
    figures = Simulation(plan, PRICES, SHAPE).run()
    assert figures.n_requests > 20
    assert figures.asked_tokens == figures.found_tokens + figures.fetched_tokens + figures.read_tokens
    assert figures.read_tokens >= figures.ideal_tokens > 0
    assert 0 < figures.utilisation <= 1.05
    assert figures.first_p50_s <= figures.first_p99_s
    return figures


def as_found(figures: Figures) -> Figures:
    """Without what depends on the machine, and on who is told what."""
    return replace(figures, took_s=0, knowledge_bytes=0)


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_gives_the_same_figures(router: str) -> None:
    plan = replace(PLAN, router=router, outages=OutageSetting(deaths_per_hour=20), store="behind")
    first = run(plan)
    assert as_found(run(plan)) == as_found(first)
    assert as_found(run(replace(plan, seed=2))) != as_found(first)


def test_with_one_replica_all_routers_are_the_same() -> None:
    found = {name: as_found(run(replace(PLAN, router=name, n_replicas=1, duration_s=200))) for name in ROUTERS}
    assert set(found.values()) == {found["random"]}


def test_routers_that_know_where_texts_lie_read_less() -> None:
    read = {name: run(replace(PLAN, router=name)).read_over_ideal for name in ROUTERS}
    assert max(read["sticky"], read["ours"]) < 0.5 * min(read["random"], read["two-choices"])


def test_answers_of_dead_replicas_go_on_elsewhere() -> None:
    plan = replace(PLAN, outages=OutageSetting(deaths_per_hour=60))
    simulation = Simulation(plan, PRICES, SHAPE)
    figures = simulation.run()
    assert figures.n_resumed > 0
    calm = run(PLAN)
    assert calm.n_resumed == 0
    assert figures.read_over_ideal > calm.read_over_ideal
    asked = (simulation.sessions.state == 1).sum()
    resent = sum(len(requests) for requests in simulation._resent)
    assert simulation.replicas.n_open.sum() + resent == asked


def test_a_rolling_restart_reaches_all_and_parking_saves_reading() -> None:
    simulation = Simulation(replace(PLAN, duration_s=300, outages=RESTART), PRICES, SHAPE)
    plain = simulation.run()
    assert simulation.outages.restarted_share == 1
    assert simulation.replicas.can_take.all()
    parked = run(replace(PLAN, duration_s=300, outages=replace(RESTART, parks=True), store="parked"))
    assert plain.fetched_tokens == 0 < parked.fetched_tokens
    assert parked.read_over_ideal < plain.read_over_ideal


def test_sticky_sessions_move_only_when_they_must() -> None:
    assert run(replace(PLAN, router="sticky")).moved_share == 0
    assert run(replace(PLAN, router="sticky", outages=OutageSetting(deaths_per_hour=60))).moved_share > 0
