"""How much a client may be served from memory: what it has sent itself, whatever others do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.http.answering.tenant_isolation import TenantIsolation

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), TEXTS, TEXTS), max_size=30)
Request = tuple[str, list[int], list[int]]


def n_common(text: list[int], others: list[list[int]]) -> int:
    def common(other: list[int]) -> int:
        return next((n for n, pair in enumerate(zip(text, other, strict=False)) if len(set(pair)) > 1),
                    min(len(text), len(other)))  # fmt: skip

    return max(map(common, others), default=0)


def serve(texts: TenantIsolation, client: str, prompt: list[int], answer: list[int]) -> int:
    n_known = texts.begin(client, prompt)
    texts.end(client, prompt, [answer])
    return n_known


@given(REQUESTS, TEXTS)
def test_a_client_gets_what_it_has_sent_and_what_is_common(requests: list[Request], common: list[int]) -> None:
    texts = TenantIsolation([common])
    known: dict[str, list[list[int]]] = {name: [] for name in "abc"}
    for client, prompt, answer in requests:
        assert serve(texts, client, prompt, answer) == n_common(prompt, [*known[client], common])
        known[client] += [prompt, prompt + answer]


@given(REQUESTS, REQUESTS)
def test_nothing_that_others_send_changes_anything(requests: list[Request], others: list[Request]) -> None:
    """Neither more nor less of it comes from memory: with others' texts between them, the same."""
    alone, beside = TenantIsolation(), TenantIsolation()
    between = [("x" + client, prompt, answer) for client, prompt, answer in others]
    for number, request in enumerate(requests):
        if number < len(between):
            serve(beside, *between[number])
        assert serve(alone, *request) == serve(beside, *request)


@given(REQUESTS, st.integers(0, 40))
def test_with_little_room_a_client_gets_less_and_never_more(requests: list[Request], max_tokens: int) -> None:
    texts = TenantIsolation(max_tokens=max_tokens)
    known: dict[str, list[list[int]]] = {name: [] for name in "abc"}
    for client, prompt, answer in requests:
        assert serve(texts, client, prompt, answer) <= n_common(prompt, known[client])
        known[client] += [prompt, prompt + answer]
        assert texts.n_tokens <= max_tokens


def test_who_sends_much_forgets_its_own() -> None:
    texts = TenantIsolation(max_tokens=1000)
    other = [9000, *range(300)]
    serve(texts, "b", other, [])
    for number in range(300):
        serve(texts, "a", [number, *range(number * 1000, number * 1000 + 50)], [])
    assert texts.n_forgotten > 0
    assert texts.begin("b", [*other, 1]) == len(other), "another client keeps its own"
    assert texts.begin("a", [299, *range(299_000, 299_050), 1]) == 51, "and the latest of its own stays"
    assert texts.begin("a", [0, *range(50)]) == 0
