"""Which replica reads a prompt: digests and prices; and that digests say what engines hold."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from luce.ray.prefix_digest import PrefixDigest
from luce.ray.replica_book import Question
from luce.supervisor import GenerateRequest, TextSalt
from luce.supervisor.prefix_cache.page_names import page_names, salted
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.scheduling.router import Candidate, by_price, by_two_choices
from tests.ray.conftest import STRIDE, Replica, Site
from tests.ray.test_failover import read


def text(seed: int, n_tokens: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(2, 5000) for _ in range(n_tokens)]


def candidate(name: str, **of: object) -> Candidate[str]:
    plain = Candidate(taker=name, n_held=0, n_open=0, n_lanes=4, n_unread=0, read_s=0.001, answer_s=2.0)
    return replace(plain, **of)  # type: ignore[arg-type]


def test_a_digest_misses_nothing_and_is_bounded() -> None:
    names = {os.urandom(16) for _ in range(5000)}
    digest = PrefixDigest.from_text(PrefixDigest.of(names).to_text())
    assert all(name in digest for name in names)
    assert sum(os.urandom(16) in digest for _ in range(2000)) < 200
    assert len(PrefixDigest.of({os.urandom(16) for _ in range(200_000)}).to_text()) <= 4 * (64 << 10) // 3 + 4


@pytest.mark.parametrize(
    ("what", "candidates"),
    [
        ("what is known need not be read", [candidate("best", n_held=900), candidate("other")]),
        ("a short wait is cheaper than reading", [candidate("best", n_held=900, n_unread=300), candidate("other")]),
        ("a long wait is not", [candidate("best"), candidate("other", n_held=900, n_unread=3000)]),
        ("reading holds up others", [candidate("best"), candidate("other", n_open=3)]),
        ("lanes that are busy have to end first", [candidate("best", n_open=3), candidate("other", n_open=8)]),
        ("sessions stay", [candidate("best", is_home=True), candidate("other")]),
        ("a slow one reads less", [candidate("best"), candidate("other", n_held=600, read_s=0.01)]),
    ],
)
def test_the_cheapest_is_chosen(what: str, candidates: list[Candidate[str]]) -> None:
    assert by_price(candidates[::-1], 1000)[0] == "best", what


def test_two_choices_take_the_emptier_of_two() -> None:
    candidates = [candidate("full", n_open=9), candidate("empty"), candidate("half", n_open=3)]
    firsts = {by_two_choices(candidates, random.Random(seed))[0] for seed in range(30)}
    assert firsts == {"empty", "half"}


@pytest.mark.parametrize("salt", [None, TextSalt(5)], ids=["plain", "salted"])
async def test_a_conversation_goes_where_it_lies(site: Site, salt: TextSalt | None) -> None:
    """By the digests of what engines tell of their pages alone: what was sent is forgotten."""
    turn = GenerateRequest(prompt_ids=text(1, 8 * STRIDE), max_tokens=4, ignore_eos=True, salt=salt)
    _, first = await read(site, turn)
    assert first.n_reused == 0
    [home] = [one for one in site.replicas.values() if one.names]
    for replica in site.replicas.values():
        site.book.forget(replica.name)
        replica.tell()
    site.replicas = {name: one for name, one in site.replicas.items() if one is not home} | {home.name: home}
    key = pack(text(1, 8 * STRIDE))
    key = key if salt is None else salted(key, salt.value, salt.begin)
    question: Question[Replica] = Question(site.book, lambda identity: list(page_names(key, identity)), 8 * STRIDE)
    assert question.ranked(list(site.replicas.values()), "price", random.Random(1))[0] is home
    _, second = await read(site, turn)
    assert second.n_reused >= 7 * STRIDE
