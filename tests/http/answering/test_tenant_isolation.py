"""Which clients may be served from memory: against a model that remembers everything of everybody."""

from __future__ import annotations

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


def test_a_full_table_serves_nobody_from_memory() -> None:
    texts = TenantIsolation(max_tokens=10)
    assert texts.begin(1, "a", [1] * 4)
    texts.end(1, [[2] * 4])
    assert texts.begin(2, "a", [1] * 4), "eight tokens fit"
    texts.end(2, [[3] * 9])
    assert not texts.begin(3, "a", [1] * 4)
    texts.end(3, [[2]])
