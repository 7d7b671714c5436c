"""HeldPages: what the engines report is what it answers; and EngineTexts, which asks it."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.prefix_cache.held_pages import HeldPages
from luce.supervisor.prefix_cache.page_changes import PageChange, PageText, Tier
from luce.supervisor.prefix_cache.page_names import PAGE_TOKENS, page_names
from luce.supervisor.prefix_cache.prefix_index import pack
from luce.supervisor.scheduling.engine_texts import EngineTexts

ENGINES = ("engine 0", "engine 1")
IDENTITY = "identity"
Step = tuple[str, str, int, frozenset[Tier]]


def text(number: int, n_tokens: int) -> bytes:
    """All begin with the same page."""
    return pack([*range(PAGE_TOKENS), *(1000 * number + i for i in range(n_tokens - PAGE_TOKENS))])


def report(key: bytes, n_pages: int, tiers: frozenset[Tier] = frozenset({Tier.DEVICE})) -> list[PageChange]:
    """The first pages of a text, as an engine that has not reported them does it."""
    names = list(page_names(key, IDENTITY))[:n_pages]
    return [
        PageChange(name, tiers, PageText(parent, array("I", [0] * PAGE_TOKENS)))
        for name, parent in zip(names, [None, *names], strict=False)
    ]


def gone(key: bytes, n_first: int) -> list[PageChange]:
    """All pages but the first ones, the last of them first."""
    return [PageChange(name, frozenset()) for name in list(page_names(key, IDENTITY))[n_first:][::-1]]


STEPS = st.tuples(
    st.sampled_from(ENGINES),
    st.sampled_from(["report", "report", "report", "gone", "anew", "lose"]),
    st.integers(0, 3),
    st.frozensets(st.sampled_from(Tier), min_size=1),
)


@given(st.lists(STEPS, max_size=30))
def test_it_answers_what_was_reported(steps: list[Step]) -> None:
    held = HeldPages()
    keys = [text(number, 4 * PAGE_TOKENS) for number in range(4)]
    reported: dict[str, set[bytes]] = {engine: set() for engine in ENGINES}
    for engine, what, number, tiers in steps:
        pages = report(keys[number], number + 1, tiers)
        if what == "lose":
            held.lose(engine)
            reported[engine] = set()
        elif what == "gone":
            changes = [change for change in gone(keys[number], 1) if change.name in reported[engine]]
            held.change(engine, changes)
            reported[engine] -= {change.name for change in changes}
        else:
            held.change(engine, pages, begins_anew=what == "anew")
            before = set() if what == "anew" else reported[engine]
            reported[engine] = before | {page.name for page in pages}
        for asked in ENGINES:
            for key in keys:
                names = list(page_names(key, IDENTITY))
                expected = next((i for i, name in enumerate(names) if name not in reported[asked]), len(names))
                assert held.n_first(asked, names) == expected
        everything = reported[ENGINES[0]] | reported[ENGINES[1]]
        assert set(held.names(every=1)) == everything
        assert set(held.names(every=2)) == {
            name for key in keys for name in list(page_names(key, IDENTITY))[1::2] if name in everything
        }
        assert {move.name for move in held.listing()} == everything


def test_an_engine_has_what_it_reports_and_what_it_reads() -> None:
    held = HeldPages()
    texts, key = EngineTexts(ENGINES[0], held), text(1, 5 * PAGE_TOKENS + 10)
    names = list(page_names(key, IDENTITY))
    assert texts.n_held(key, names, []) == 0
    held.change(ENGINES[0], report(key, 2))
    held.change(ENGINES[1], report(key, 5))
    assert texts.n_held(key, names, []) == 2 * PAGE_TOKENS, "of this engine alone"
    assert texts.n_held(key, names, [text(2, 900), text(1, 4 * PAGE_TOKENS + 3)]) == 4 * PAGE_TOKENS
    assert texts.n_held(key, names, [key[: 70 * 4]]) == 2 * PAGE_TOKENS
    texts.note_ended(key, 7)
    assert texts.n_held(key, names, []) == 5 * PAGE_TOKENS, "what has just ended is reported next"
    texts.note_report()
    assert texts.n_held(key, names, []) == 2 * PAGE_TOKENS
    held.lose(ENGINES[0])
    assert texts.n_held(key, names, []) == 0


def test_the_longest_text_of_a_request_that_ended_lately() -> None:
    texts = EngineTexts(ENGINES[0], HeldPages())
    for number in range(70):
        texts.note_ended(text(number, 100 + number), number)
    assert texts.longest_ended(text(69, 300), 256) == (169, 69)
    assert texts.longest_ended(text(2, 300), 256) is None, "the engine has forgotten it"
    texts.note_ended(text(69, 120), 70)
    assert texts.longest_ended(text(69, 300), 256) == (169, 69)
    assert texts.longest_ended(text(69, 300), 128) == (169, 69)
    assert texts.longest_ended(text(69, 300), 64) == (120, 70), "the end of the longer one has left memory"
    assert texts.longest_ended(text(69, 300), 0) is None
    texts.clear()
    assert texts.longest_ended(text(69, 300), 256) is None
