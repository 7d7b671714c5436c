"""PrefixIndex against a dictionary that is searched from end to end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce.supervisor.prefix_cache.page_names import salted
from luce.supervisor.prefix_cache.prefix_index import Match, PrefixIndex, common_tokens, pack

# Few different tokens and short texts, so that they share prefixes; one id has bytes that look like others'.
TEXTS = st.lists(st.sampled_from([0, 1, 256, 2**31 - 1]), max_size=7).map(pack)


def n_common(a: bytes, b: bytes) -> int:
    return next((i for i in range(min(len(a), len(b)) // 4) if a[4 * i : 4 * i + 4] != b[4 * i : 4 * i + 4]), -1) % (
        min(len(a), len(b)) // 4 + 1
    )


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=30), st.lists(TEXTS, min_size=1, max_size=5))
def test_it_answers_as_a_list_would(changes: list[tuple[bool, bytes]], asked: list[bytes]) -> None:
    index: PrefixIndex[int] = PrefixIndex()
    model: dict[bytes, int] = {}
    for number, (is_insert, key) in enumerate(changes):
        if is_insert:
            index.insert(key, number)
            model[key] = number
        else:
            assert index.remove(key) == model.pop(key, None)
        index.check_integrity()
        assert len(index) == len(model)
        assert index.n_tokens == len({entry[: 4 * n] for entry in model for n in range(1, len(entry) // 4 + 1)})
    for key in [*asked, *model]:
        expected = [Match(len(entry) // 4, value) for entry, value in model.items() if key.startswith(entry)]
        assert index.matches(key) == sorted(expected, reverse=True)
        assert index.get(key) == model.get(key)
        assert index.n_common(key) == max((n_common(key, entry) for entry in model), default=0)
    for key in model:
        others = {entry[: 4 * n] for entry in model if entry != key for n in range(1, len(entry) // 4 + 1)}
        own = {key[: 4 * n] for n in range(1, len(key) // 4 + 1)}
        assert index.n_exclusive(key) == len(own - others)
        onward = {entry[len(key) : len(key) + 4] for entry in model if entry.startswith(key) and entry != key}
        assert index.n_branches(key) == len(onward)


@given(TEXTS, TEXTS)
def test_common_tokens(a: bytes, b: bytes) -> None:
    assert common_tokens(a, b) == common_tokens(b, a) == n_common(a, b)


def test_a_long_text_is_exact_to_the_token() -> None:
    text = list(range(100_000))
    index: PrefixIndex[str] = PrefixIndex()
    index.insert(pack(text[:70_001]), "long")
    index.insert(pack(text[:333]), "short")
    parted = [*text[:70_000], 5, 6]
    assert index.matches(pack(text)) == [(70_001, "long"), (333, "short")]
    assert index.matches(pack(parted)) == [(333, "short")]
    assert index.n_common(pack(parted)) == 70_000


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 14))
def test_a_salted_text_is_another_one_from_there_on(text: list[int], begin: int) -> None:
    key = pack(text)
    one, again, other = (salted(key, salt, begin) for salt in (1, 1, 2**64 - 1))
    assert len(one) == len(key)
    assert one == again
    n_shared = min(begin, len(text))
    assert common_tokens(one, key) == common_tokens(one, other) == n_shared
    longer = salted(pack([*text, 5]), 1, begin)
    assert longer.startswith(one), "what goes on from it is found by it"
