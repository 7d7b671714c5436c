"""What a key may use: against a count of what it has used, minute by minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.api_key import ApiKey, Scope, digest_of
from luce.supervisor.http.keys.key_account import Allowance, KeyAccount
from luce.supervisor.http.keys.key_ring import KeyRing


def key(name: str = "alice", text: str = "k", **limits: int) -> ApiKey:
    scope: Scope = "infer"
    return ApiKey(name=name, digest=digest_of(text), scope=scope, **limits)


@given(st.integers(1, 50), st.lists(st.floats(0, 30), max_size=200))
def test_no_minute_sees_more_than_two_minutes_worth(per_minute: int, pauses: list[float]) -> None:
    """What has gathered, and what is granted meanwhile. And who waits as long as was said gets one more."""
    allowance, now_s = Allowance(per_minute, 0.0), 0.0
    granted: list[float] = []
    for pause in pauses:
        now_s += pause
        wait_s = allowance.wait_s(now_s)
        if wait_s > 0:
            assert len(granted) >= per_minute, "a whole minute's worth is there at first"
            now_s += wait_s * 1.000001
            assert allowance.wait_s(now_s) < 1e-3
        allowance.use(1)
        granted.append(now_s)
    for begin in granted:
        assert sum(begin <= one < begin + 60 for one in granted) <= 2 * per_minute + 1


def test_requests_and_tokens() -> None:
    account = KeyAccount(key(requests_per_minute=2, tokens_per_minute=100), 0.0)
    account.begin_request(0.0)
    account.begin_request(0.0)
    with pytest.raises(ApiError) as refused:
        account.begin_request(0.0)
    assert (refused.value.kind, refused.value.code) == (ErrorKind.OVERLOADED, "key_requests")
    assert refused.value.retry_after_s == pytest.approx(30)
    account.begin_request(30.1)
    account.use_tokens(250)
    with pytest.raises(ApiError) as refused:
        account.begin_request(70.0)
    assert refused.value.code == "key_tokens"
    wait_s = refused.value.retry_after_s
    assert wait_s is not None
    assert wait_s == pytest.approx(90 - 39.9 + 0.6), "what it was overdrawn by, and one more"
    account.begin_request(70.0 + wait_s + 0.01)


def test_a_key_without_limits() -> None:
    account = KeyAccount(key(), 0.0)
    for _ in range(10_000):
        account.begin_request(0.0)
        account.use_tokens(1_000_000)
    with account.lanes(1000):
        pass


def test_lanes() -> None:
    account = KeyAccount(key(max_lanes=3), 0.0)
    with account.lanes(2), account.lanes(1):
        with pytest.raises(ApiError) as refused, account.lanes(1):
            pass
        assert refused.value.kind is ErrorKind.OVERLOADED
        assert refused.value.retry_after_s is not None
    with account.lanes(3):
        pass
    with pytest.raises(ApiError) as refused, account.lanes(4):
        pass
    assert refused.value.kind is ErrorKind.INVALID, "waiting would not help"


def test_keys_that_are_read_anew() -> None:
    ring = KeyRing([key("alice", "a", requests_per_minute=1), key("bob", "b")])
    alice = ring.find(["wrong", "a"])
    assert alice is not None
    now_s = 1e9  # far behind the clock that the ring looks at: nothing gathers meanwhile
    alice.begin_request(now_s)
    ring.replace([key("alice", "new", requests_per_minute=1), key("carol", "c")])
    assert ring.find(["a"]) is None
    assert ring.find(["b"]) is None
    assert ring.find(["new"]) is alice
    with pytest.raises(ApiError):
        alice.begin_request(now_s)
    assert len(ring) == 2
    assert ring.find([]) is None
    assert ring.find(["\udcff"]) is None
    assert not KeyRing()
