"""Lifecycle, Liveness, FailureCount and the router: decisions, without an engine or a clock."""

from __future__ import annotations

import pytest

from luce.supervisor.engine.token_records import TokenRecords
from luce.supervisor.engine.watchdog import (
    TRANSITIONS,
    EngineState,
    Lifecycle,
    Liveness,
    LivenessLimits,
    ProcessActivity,
    RestartPolicy,
)
from luce.supervisor.scheduling.crash_attribution import FailureCount
from luce.supervisor.scheduling.router import Candidate, RecentSessions, choose

ASLEEP = ProcessActivity(stopped=False, busy=False)
BUSY = ProcessActivity(stopped=False, busy=True)
STOPPED = ProcessActivity(stopped=True, busy=False)
TICK_S = 0.25


def test_every_state_is_in_the_table_and_can_be_reached_and_stopped() -> None:
    assert set(TRANSITIONS) == set(EngineState)
    reachable = {EngineState.STARTING} | {state for targets in TRANSITIONS.values() for state in targets}
    assert reachable == set(EngineState)
    assert [state for state, targets in TRANSITIONS.items() if EngineState.STOPPING not in targets] == [
        EngineState.STOPPING
    ]


def test_an_illegal_step_is_a_bug() -> None:
    lifecycle = Lifecycle(RestartPolicy())
    lifecycle.to(EngineState.READY)
    with pytest.raises(AssertionError):
        lifecycle.to(EngineState.STARTING)


def die(lifecycle: Lifecycle, *, did_work: bool) -> float | None:
    delay_s = lifecycle.note_death(did_work=did_work)
    if delay_s is not None:
        lifecycle.to(EngineState.STARTING)
    return delay_s


def test_restarts_back_off_and_end() -> None:
    lifecycle = Lifecycle(RestartPolicy(first_delay_s=1, factor=2, max_delay_s=5, limit=5))
    assert [die(lifecycle, did_work=False) for _ in range(5)] == [1, 2, 4, 5, None]
    assert lifecycle.state is EngineState.FAILED


def test_one_that_was_given_up_is_tried_once_more_after_the_longest_pause() -> None:
    lifecycle = Lifecycle(RestartPolicy(max_delay_s=5, limit=2))
    assert not lifecycle.try_again(1000), "it was not given up"
    assert [die(lifecycle, did_work=False) for _ in range(2)] == [0.1, None]
    assert not lifecycle.try_again(4.9)
    assert lifecycle.try_again(5)
    assert lifecycle.state is EngineState.STARTING
    assert die(lifecycle, did_work=False) is None, "one chance, not ten"
    assert lifecycle.try_again(5)
    assert die(lifecycle, did_work=True) == 0, "it has earned them anew"
    assert die(lifecycle, did_work=False) == 0.1


def test_an_engine_that_works_is_restarted_at_once_for_ever() -> None:
    lifecycle = Lifecycle(RestartPolicy(limit=2))
    for _ in range(100):
        assert die(lifecycle, did_work=True) == 0
    assert die(lifecycle, did_work=False) == 0.1
    for _ in range(100):  # somebody's fault, but not the engine's
        lifecycle.note_death(did_work=False, had_requests=True)
        lifecycle.to(EngineState.STARTING)
    assert die(lifecycle, did_work=False) is None
    assert lifecycle.n_deaths == 202


def silent(liveness: Liveness, seconds: float) -> None:
    for _ in range(round(seconds / TICK_S)):
        liveness.tick(TICK_S, heard=False, ping_waits=True, moved=False, requests_wait=True)


def heard(liveness: Liveness) -> None:
    liveness.tick(TICK_S, heard=True, ping_waits=False, moved=True, requests_wait=True)


def test_how_long_silence_is_borne_depends_on_what_the_process_does() -> None:
    liveness = Liveness(LivenessLimits(stopped_s=2, asleep_s=5, busy_s=100), TICK_S)
    silent(liveness, 1.5)
    assert [liveness.verdict(activity) for activity in (ASLEEP, BUSY, STOPPED)] == [None] * 3
    silent(liveness, 1)
    assert [liveness.verdict(activity) is None for activity in (ASLEEP, BUSY, STOPPED)] == [True, True, False]
    silent(liveness, 3)
    assert [liveness.verdict(activity) is None for activity in (ASLEEP, BUSY, STOPPED)] == [False, True, False]
    silent(liveness, 100)
    assert "silent for" in str(liveness.verdict(BUSY))


def test_a_slow_engine_is_not_a_dead_one() -> None:
    liveness = Liveness(LivenessLimits(asleep_s=5, slow_factor=4), TICK_S)
    for step_s in (4, 12, 40):  # each within four of the slowest before it
        silent(liveness, step_s)
        assert liveness.verdict(ASLEEP) is None
        heard(liveness)
    liveness.start()  # a restart forgets nothing of it
    silent(liveness, 159)
    assert liveness.verdict(ASLEEP) is None
    silent(liveness, 2)
    assert liveness.verdict(ASLEEP) is not None


def test_a_pause_of_our_own_is_not_held_against_the_engine() -> None:
    liveness = Liveness(LivenessLimits(asleep_s=5), TICK_S)
    liveness.tick(3600, heard=False, ping_waits=True, moved=False, requests_wait=True)
    assert liveness.verdict(ASLEEP) is None


def test_tokens_are_no_answer_to_a_ping_and_pongs_are_no_progress() -> None:
    mute = Liveness(LivenessLimits(mute_s=10), TICK_S)
    stalled = Liveness(LivenessLimits(stalled_s=10), TICK_S)
    for _ in range(41):
        mute.tick(TICK_S, heard=True, ping_waits=True, moved=True, requests_wait=True)
        stalled.tick(TICK_S, heard=True, ping_waits=False, moved=False, requests_wait=True)
    assert "ping" in str(mute.verdict(BUSY))
    assert "progress" in str(stalled.verdict(BUSY))


def test_one_that_loads_its_model_answers_nothing_meanwhile() -> None:
    loading = Liveness(LivenessLimits(mute_s=10, stalled_s=10), TICK_S)
    for number in range(100):
        loads = number % 4 == 0
        loading.tick(TICK_S, heard=loads, ping_waits=True, moved=False, requests_wait=True, loads=loads)
        assert loading.verdict(BUSY) is None


def test_an_idle_engine_makes_no_progress_and_lives() -> None:
    liveness = Liveness(LivenessLimits(stalled_s=1), TICK_S)
    for _ in range(100):
        liveness.tick(TICK_S, heard=True, ping_waits=False, moved=False, requests_wait=False)
    assert liveness.verdict(ASLEEP) is None


def test_two_deaths_make_a_request_run_alone_and_three_crashes_alone_end_it() -> None:
    poison, neighbour = FailureCount(), FailureCount()
    for n_deaths in (1, 2):
        for count in (poison, neighbour):
            count.note_death(alone=False, own_fault=True)
            assert count.must_run_alone == (n_deaths == 2)
    neighbour.clear()
    assert neighbour.is_clear
    assert not neighbour.must_run_alone
    seen = []
    for _ in range(3):
        poison.note_death(alone=True, own_fault=True)
        seen.append(poison.is_hopeless)
    assert seen == [False, False, True]


def test_it_takes_more_where_somebody_outside_may_have_ended_the_engines() -> None:
    count = FailureCount()
    seen = []
    for _ in range(8):
        count.note_death(alone=True, own_fault=False)
        seen.append(count.is_hopeless)
    assert seen == [False] * 7 + [True]


def test_outsiders_kills_end_nobody_who_goes_on() -> None:
    count = FailureCount()
    for _ in range(100):
        count.note_death(alone=True, own_fault=False)
        assert not count.is_hopeless
        count.clear()


def test_a_request_that_the_engine_cannot_carry_runs_alone() -> None:
    count = FailureCount()
    count.note_error(alone=False)
    assert count.must_run_alone
    seen = []
    for _ in range(3):
        count.note_error(alone=True)
        seen.append(count.is_hopeless)
    assert seen == [False, False, True]


def test_a_request_for_which_there_is_no_room_waits_beside_others() -> None:
    count = FailureCount()
    for _ in range(7):
        count.note_refusal(alone=False)
        assert not count.must_run_alone
    count.note_refusal(alone=False)
    assert count.must_run_alone
    assert not count.is_hopeless
    for _ in range(3):
        count.note_refusal(alone=True)
    assert count.is_hopeless


def engine(name: str, n_open: int, n_lanes: int, n_held: int, *, is_home: bool = False) -> Candidate[str]:
    return Candidate(taker=name, n_held=n_held, n_open=n_open, n_lanes=n_lanes, is_home=is_home)


def test_the_longest_beginning_wins_then_the_least_load() -> None:
    assert choose([]) is None
    assert choose([engine("a", 3, 4, 10), engine("b", 0, 4, 9)]) == "a"
    assert choose([engine("a", 3, 4, 10), engine("b", 2, 4, 10)]) == "b"
    assert choose([engine("a", 2, 4, 0), engine("b", 3, 8, 0)]) == "b"
    assert choose([engine("a", 0, 4, 0), engine("b", 0, 4, 0)]) == "a"


def test_a_session_goes_home_among_equals() -> None:
    home = engine("home", 3, 4, 64, is_home=True)
    assert choose([engine("idle", 0, 4, 64), home]) == "home"
    assert choose([engine("longer", 3, 4, 128), home]) == "longer"
    sessions = RecentSessions()
    engines = [object(), object()]
    sessions.note("a", engines[0])
    sessions.note("", engines[0])
    assert sessions.is_home("a", engines[0])
    assert not sessions.is_home("a", engines[1])
    assert not sessions.is_home("", engines[0])
    sessions.note("a", engines[1])
    assert sessions.is_home("a", engines[1])
    for i in range(5000):
        sessions.note(f"other {i}", engines[0])
    assert not sessions.is_home("a", engines[1])


def test_records_come_out_however_the_bytes_come_in() -> None:
    from luce.protocol import Dialect, End, Token, format_event

    events: list[Token | End] = [Token(1, 7), End(2), Token(3, 2**31 - 1), Token(2**31 - 1, 0)]
    data = b"".join(format_event(Dialect.MULTIPLEXED, event) for event in events)
    expected = [(1, 7), (2, -1), (3, 2**31 - 1), (2**31 - 1, 0)]
    for n_bytes in range(1, len(data) + 1):
        records = TokenRecords()
        chunks = [data[i : i + n_bytes] for i in range(0, len(data), n_bytes)]
        assert [record for chunk in chunks for record in records.feed(chunk)] == expected
