"""Whose turn it is: which models are to leave the device and which are to come, so that all are served and none of them
only swapped. Pure: no clock, no process.

Models of a group share room for so many of them. One that is here keeps its place for a turn, however many wait, unless
it has nothing to do; then the one with the longest wait gets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from luce.supervisor.scheduling.presence import PresenceState

_LEAVES_ROOM = {PresenceState.AWAY}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    turn_s: float = 10.0  # for which a model that has come is not sent away while it has something to do
    linger_s: float = 2.0  # without a request until it has nothing to do: an agent's tool takes as long
    most: Mapping[str, int] = field(default_factory=dict)  # models of a group that are here at once; else one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """How a model stands. Times are of one clock, in seconds."""

    name: str
    group: str | None  # None: it is in nobody's way
    state: PresenceState
    stays: bool = False  # it is not sent away for others
    since_s: float  # when its state became this
    idle_since_s: float | None = None  # None: it has something to do
    waits_since_s: float | None = None  # its first request that cannot start, since it is not here


@dataclass(frozen=True, slots=True)
class Moves:
    come: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    again_s: float | None = None
    """When to ask again, if nothing happens before."""


def next_moves(models: Sequence[ModelTurn], rules: TurnRules, now_s: float) -> Moves:
    """What is to begin now. A model for which room has to be made comes once another one has left."""
    come: list[str] = []
    leave: list[str] = []
    dues: list[float] = []
    waiting = [model for model in models if model.state is PresenceState.AWAY and model.waits_since_s is not None]
    groups = {model.group: [other for other in models if other.group == model.group] for model in waiting}
    for group, members in groups.items():
        asking = sorted((model for model in waiting if model.group == group), key=_waits_since)
        if group is None:
            come += [model.name for model in asking]
            continue
        n_room = rules.most.get(group, 1) - sum(model.state not in _LEAVES_ROOM for model in members)
        come += [model.name for model in asking[: max(n_room, 0)]]
        n_leaving = sum(model.state is PresenceState.LEAVING for model in members)
        n_wanted = len(asking) - max(n_room, 0) - n_leaving
        here = [model for model in members if model.state is PresenceState.HERE and not model.stays]
        for model in sorted(here, key=lambda model: _due_s(model, rules))[: max(n_wanted, 0)]:
            due_s = _due_s(model, rules)
            if due_s <= now_s:
                leave.append(model.name)
            else:
                dues.append(due_s)
    return Moves(tuple(come), tuple(leave), min(dues, default=None))


def _waits_since(model: ModelTurn) -> float:
    assert model.waits_since_s is not None
    return model.waits_since_s


def _due_s(model: ModelTurn, rules: TurnRules) -> float:
    """When it may be sent away."""
    turn_s = model.since_s + rules.turn_s
    return turn_s if model.idle_since_s is None else min(turn_s, model.idle_since_s + rules.linger_s)
