"""Whose turn it is: everybody gets one, nobody more than there is room for, and no model is only swapped."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from luce.supervisor.fleet.turns import ModelTurn, Moves, TurnRules, next_moves
from luce.supervisor.scheduling.presence import PresenceState

RULES = TurnRules(turn_s=10, linger_s=2)
HERE, AWAY = PresenceState.HERE, PresenceState.AWAY


def turn(name: str, **values: object) -> ModelTurn:
    defaults = ModelTurn(name=name, group="device", state=AWAY, since_s=0.0)
    return dataclasses.replace(defaults, **values)  # type: ignore[arg-type]


def test_who_waits_comes_into_free_room() -> None:
    assert next_moves([turn("a", waits_since_s=1.0), turn("b")], RULES, 1.0) == Moves(("a",))


def test_the_longest_wait_comes_first() -> None:
    models = [turn("a", waits_since_s=3.0), turn("b", waits_since_s=2.0)]
    assert next_moves(models, RULES, 4.0).come == ("b",)


def test_a_busy_model_keeps_its_turn_and_no_longer() -> None:
    models = [turn("a", state=HERE, since_s=5.0), turn("b", waits_since_s=6.0)]
    assert next_moves(models, RULES, 14.9) == Moves(again_s=15.0)
    assert next_moves(models, RULES, 15.0) == Moves(leave=("a",))


def test_an_idle_model_lingers_for_a_tool_and_no_longer() -> None:
    models = [turn("a", state=HERE, since_s=5.0, idle_since_s=7.0), turn("b", waits_since_s=6.0)]
    assert next_moves(models, RULES, 8.0) == Moves(again_s=9.0)
    assert next_moves(models, RULES, 9.0) == Moves(leave=("a",))


def test_nobody_leaves_while_nobody_waits() -> None:
    assert next_moves([turn("a", state=HERE), turn("b")], RULES, 1e6) == Moves()


def test_the_idle_one_leaves_before_the_busy_one() -> None:
    models = [turn("a", state=HERE), turn("b", state=HERE, idle_since_s=90.0), turn("c", waits_since_s=50.0)]
    rules = dataclasses.replace(RULES, most={"device": 2})
    assert next_moves(models, rules, 100.0).leave == ("a",), "its turn was over before the other one fell idle"
    models[0] = turn("a", state=HERE, since_s=95.0)
    assert next_moves(models, rules, 100.0).leave == ("b",)


def test_one_that_leaves_makes_room_for_one() -> None:
    models = [turn("a", state=PresenceState.LEAVING), turn("b", state=HERE), turn("c", waits_since_s=1.0)]
    assert next_moves(models, dataclasses.replace(RULES, most={"device": 2}), 100.0) == Moves()


def test_residents_and_models_without_a_group_are_in_nobodys_way() -> None:
    models = [turn("a", state=HERE, stays=True, group=None), turn("b", group=None, waits_since_s=1.0)]
    assert next_moves(models, RULES, 100.0) == Moves(("b",))
    models = [turn("a", state=HERE, stays=True), turn("b", waits_since_s=1.0)]
    assert next_moves(models, RULES, 100.0) == Moves(), "a resident of the group is not sent away"


@dataclass
class World:
    """Models of which some always have work, on a device that takes `swap_s` to swap."""

    wants: list[list[tuple[float, float]]]  # of each model: when work comes, and how long it takes
    swap_s: float

    def run(self, end_s: float) -> tuple[list[float], list[int]]:
        """The longest wait of each model for its turn, and how often it has come."""
        n = len(self.wants)
        state = [AWAY] * n
        since = [0.0] * n
        free_s: list[float | None] = [None] * n  # when a move ends
        left = [list(wants) for wants in self.wants]
        waits: list[float | None] = [None] * n
        busy_until = [0.0] * n
        longest, comes = [0.0] * n, [0] * n
        now = 0.0
        while now < end_s:
            for i in range(n):
                if (ends_s := free_s[i]) is not None and ends_s <= now:
                    state[i] = HERE if state[i] is PresenceState.COMING else AWAY
                    since[i], free_s[i] = now, None
                while left[i] and left[i][0][0] <= now and state[i] is HERE:
                    _, lasts_s = left[i].pop(0)
                    busy_until[i] = max(busy_until[i], now) + lasts_s
                if state[i] is HERE:
                    waits[i] = None
                elif left[i] and left[i][0][0] <= now and waits[i] is None:
                    waits[i] = now
                if (waited := waits[i]) is not None:
                    longest[i] = max(longest[i], now - waited)
            models = [
                ModelTurn(
                    name=str(i),
                    group="device",
                    state=state[i],
                    since_s=since[i],
                    idle_since_s=None if busy_until[i] > now else busy_until[i],
                    waits_since_s=waits[i],
                )
                for i in range(n)
            ]
            moves = next_moves(models, RULES, now)
            for name in moves.come:
                i = int(name)
                state[i], free_s[i] = PresenceState.COMING, now + self.swap_s
                comes[i] += 1
            for name in moves.leave:
                i = int(name)
                state[i], free_s[i] = PresenceState.LEAVING, max(busy_until[i], now)
            n_there = sum(other is not AWAY for other in state)
            assert n_there <= 1, "more than there is room for"
            now += 0.5
        return longest, comes


_WORK = st.lists(st.tuples(st.floats(0, 400), st.floats(0.1, 8)), max_size=60).map(sorted)


@settings(max_examples=30)
@given(st.lists(_WORK, min_size=2, max_size=4), st.floats(0.25, 5))
def test_everybody_gets_a_turn_and_swaps_are_bounded(wants: list[list[tuple[float, float]]], swap_s: float) -> None:
    world = World(wants, swap_s)
    longest, comes = world.run(1200.0)
    work_s = max(sum(lasts for _, lasts in want) for want in wants)
    assert max(longest) <= len(wants) * (work_s + RULES.turn_s + swap_s + 1)
    n_needed = sum(bool(want) for want in wants)
    assert sum(comes) <= max(n_needed, 1) + 1200 / (RULES.linger_s + swap_s)
    assert all(n >= 1 for n, want in zip(comes, wants, strict=True) if want)
