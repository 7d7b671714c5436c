"""Which simulations are run: every combination of what is asked for, and one parameter varied. Knows names and
defaults; must not know how results look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from scripts.sim.outages import OutageSetting, Scenario
from scripts.sim.prices import Prices
from scripts.sim.simulation import Plan

RESTART_AFTER_S = 60.0  # behind the warm-up


@dataclass(frozen=True)
class Run:
    scenario: Scenario
    plan: Plan
    prices: Prices
    varied: Any = None
    """The value of the parameter that is varied."""


def _of_digest(name: str) -> Callable[[Plan, Any], Plan]:
    return lambda plan, value: replace(plan, digest=replace(plan.digest, **{name: value}))


def _of_weights(name: str) -> Callable[[Plan, Any], Plan]:
    return lambda plan, value: replace(plan, weights=replace(plan.weights, **{name: value}))


def _of_outages(name: str) -> Callable[[Plan, Any], Plan]:
    return lambda plan, value: replace(plan, outages=replace(plan.outages, **{name: value}))


PARAMETERS: Mapping[str, Callable[[Plan, Any], Plan]] = {
    "load": lambda plan, value: replace(plan, load=value),
    "tick": lambda plan, value: replace(plan, tick_s=value),
    "seed": lambda plan, value: replace(plan, seed=int(value)),
    "store": lambda plan, value: replace(plan, store=value),
    "digest": _of_digest("kind"),
    "digest-bytes": _of_digest("n_bytes"),
    "stride": _of_digest("stride"),
    "period": _of_digest("period_s"),
    "wait": _of_weights("wait"),
    "others": _of_weights("others"),
    "lane": _of_weights("lane_s"),
    "stick": _of_weights("stick_s"),
    "own": _of_weights("own"),
    "overlap": _of_weights("overlap"),
    "deaths": _of_outages("deaths_per_hour"),
    "drain": _of_outages("drain_s"),
}


def _with_price(prices: Prices, name: str, value: Any) -> Prices:
    changed: dict[str, Any] = {name: value}
    return replace(prices, **changed)


class UnknownParameterError(ValueError):
    """Nothing can be varied by this name."""


def in_scenario(plan: Plan, scenario: Scenario, deaths_per_hour: float) -> Plan:
    if scenario == "failures":
        return replace(plan, outages=replace(plan.outages, deaths_per_hour=deaths_per_hour))
    if scenario == "calm":
        return replace(plan, outages=OutageSetting())
    parks = scenario == "restart-parked"
    outages = replace(plan.outages, restart_at_s=plan.warm_up_s + RESTART_AFTER_S, parks=parks)
    return replace(plan, outages=outages, store="parked" if parks and plan.store == "none" else plan.store)


def combinations(
    base: Plan, prices: Prices, *, replicas: Sequence[int], routers: Sequence[str], scenarios: Sequence[Scenario],
    deaths_per_hour: float, varied: tuple[str, Sequence[Any]] | None,
) -> Iterator[Run]:  # fmt: skip
    name, values = varied or ("", (None,))
    for scenario in scenarios:
        for n in replicas:
            for value in values:
                for router in routers:
                    plan = in_scenario(replace(base, router=router, n_replicas=n), scenario, deaths_per_hour)
                    if varied is None:
                        yield Run(scenario, plan, prices)
                    elif name in PARAMETERS:
                        yield Run(scenario, PARAMETERS[name](plan, value), prices, value)
                    elif name in {field.name for field in fields(Prices)}:
                        yield Run(scenario, plan, _with_price(prices, name, value), value)
                    else:
                        known = ", ".join(PARAMETERS)
                        raise UnknownParameterError(f"{name!r} cannot be varied: take a price, or one of {known}")
