"""Which clients may be served from memory: against a model that remembers everything of everybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.answering.tenant_isolation import TenantIsolation

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), TEXTS, TEXTS), max_size=30)


def n_common(text: list[int], others: list[list[int]]) -> int:
    def common(other: list[int]) -> int:
        return next((n for n, pair in enumerate(zip(text, other, strict=False)) if len(set(pair)) > 1),
                    min(len(text), len(other)))  # fmt: skip

    return max(map(common, others), default=0)


@given(REQUESTS)
def test_nothing_is_found_that_only_others_have_sent(requests: list[tuple[str, list[int], list[int]]]) -> None:
    texts = TenantIsolation()
    known: dict[str, list[list[int]]] = {name: [] for name in "abc"}
    for number, (client, prompt, answer) in enumerate(requests):
        reuses = texts.begin(number, client, prompt)
        anybodys = [text for owned in known.values() for text in owned]
        assert reuses == (n_common(prompt, anybodys) <= n_common(prompt, known[client]))
        texts.end(number, [answer])
        known[client] += [prompt, prompt + answer]


def test_an_answer_that_is_being_written_is_nobody_elses_beginning() -> None:
    texts = TenantIsolation()
    assert texts.begin(1, "a", [1, 2, 3])
    assert texts.begin(2, "a", [1, 2, 3, 4, 5])
    assert not texts.begin(3, "b", [1, 2, 3])
    assert not texts.begin(5, "d", [1, 2, 3, 4, 5, 6])
    assert texts.begin(4, "c", [7, 2, 3])


def test_a_client_that_has_sent_much_is_still_served_and_nobody_learns_of_others() -> None:
    """What no longer fits is shortened: its owner goes on from it, and for all others it is somebody else's."""
    texts = TenantIsolation(max_tokens=1000)
    system = [1] * 50

    def serve(number: int, client: str, prompt: list[int]) -> bool:
        reuses = texts.begin(number, client, prompt)
        texts.end(number, [])
        return reuses

    first = [*system, *range(100, 300)]
    assert serve(0, "a", first)
    for number in range(1, 40):
        serve(number, "a", [*system, *range(number * 1000, number * 1000 + 200)])
        assert texts.n_tokens <= 1000
    assert not texts.is_full
    assert serve(50, "a", [*first, 7])
    assert not serve(51, "b", [*first, 8]), "how far it went on nobody knows any more"
    assert serve(52, "a", [*first, 9]), "another one's text of the same beginning takes nothing from its owner"
    assert serve(53, "c", [2, *range(5000, 5100)])


def test_who_sends_too_much_takes_reuse_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """More than shortened texts have room for: before, nobody was served from memory any more."""
    texts = TenantIsolation(max_tokens=1000)
    other = [9000, *range(300)]

    def serve(number: int, client: str, prompt: list[int]) -> bool:
        reuses = texts.begin(number, client, prompt)
        texts.end(number, [])
        return reuses

    assert serve(0, "b", other)
    with caplog.at_level("WARNING", "luce.http.answering"):
        for number in range(1, 300):
            assert serve(number, "a", [number, *range(number * 1000, number * 1000 + 50)]), number
            assert texts.n_tokens <= 1000
    assert not texts.is_full
    assert texts.n_shortened > 0
    assert caplog.text.count("too many texts of one client") == 1
    assert serve(1000, "b", [*other, 1]), "another client keeps its own"
    assert serve(1001, "a", [7, *range(7000, 7050), 1]), "and who has sent too much keeps its own too"
    assert not serve(1002, "b", [7, *range(7000, 7050)]), "but nobody learns of it"
    assert serve(1003, "c", [8000, 1])


def test_a_table_that_is_full_serves_nobody_from_memory_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    texts = TenantIsolation(max_tokens=3)
    was_full = [texts.is_full]
    with caplog.at_level("WARNING", "luce.http.answering"):
        for number in range(5):
            texts.begin(number, "a", [number] * 20)
            texts.end(number, [])
            was_full.append(texts.is_full)
            if was_full[-1]:
                break
    assert not was_full[0]
    assert was_full[-1]
    assert "kept apart" in caplog.text
    assert not texts.begin(9, "a", [1] * 4)


@given(REQUESTS, st.integers(10, 40))
def test_nobody_learns_of_others_however_little_room_there_is(
    requests: list[tuple[str, list[int], list[int]]], max_tokens: int
) -> None:
    texts = TenantIsolation(max_tokens)
    known: dict[str, list[list[int]]] = {name: [] for name in "abc"}
    for number, (client, prompt, answer) in enumerate(requests):
        reuses = texts.begin(number, client, prompt)
        others = [text for name, owned in known.items() if name != client for text in owned]
        assert not reuses or n_common(prompt, others) <= n_common(prompt, known[client])
        texts.end(number, [answer])
        known[client] += [prompt, prompt + answer]
