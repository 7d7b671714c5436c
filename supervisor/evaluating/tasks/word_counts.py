"""RULER's aggregation: the words that a long list has most often, and the made-up words that stand out in one. Pure."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from luce.supervisor.evaluating.question import Question, Reply, Scale, Scores, Task, share_found

_N_COMMON = 5
_TIMES = 10  # as often as the others
_CHARS_A_WORD = 12  # with its number
_N_FREQUENT = 3
_N_CODED = 40
_ZIPF = 2.0
_NOUNS = (
    "anchor apron arrow attic axe badge bakery balcony barn basket beach bell bench berry blanket bottle bowl"
    " branch bread brick bridge broom bucket button cabin cable camera candle canoe carpet castle ceiling chain"
    " chalk cheese cherry chimney circle cliff cloud coat coin copper cotton cradle crown curtain cushion dairy"
    " desert dish dock drawer drum engine fabric farm feather fence ferry field flag flute forest fork fountain"
    " garden gate glove grain grape guitar hammer harbor harvest hat helmet hill honey hook horn island ivory"
    " jacket jar jewel kettle key kitchen kite ladder lake lamp lantern leaf leather lemon letter lock magnet"
    " maple marble meadow medal melon mill mirror mitten mountain needle nest net notebook oak oar ocean olive"
    " onion orchard oven paddle paint palace paper parcel path pear pebble pencil pepper piano pillow pine pipe"
    " plank plate pocket pond porch potato prairie pump puzzle quilt rail rake ribbon ring river rocket roof rope"
    " ruler saddle sail salt sand scarf school shelf shield ship shirt shovel silk sink sleigh soap spoon spring"
    " stable stamp statue stone stove straw street sugar table tent thread ticket timber tower trail tray trunk"
    " tunnel turnip valley vase velvet village violin wagon wall wallet water wheat wheel whistle willow window"
    " wire wood wool yard zipper"
)
_WORDS = tuple(_NOUNS.split())
_WORD = re.compile(r"[a-z]+")


class _Judge:
    """Words that are not of the list count for nothing."""

    def __init__(self, metric: str, expected: tuple[str, ...], known: frozenset[str]) -> None:
        self._metric = metric
        self._expected = expected
        self._known = known

    def __call__(self, reply: Reply) -> Scores:
        named = self._known & set(_WORD.findall(reply.text.lower()))
        return {self._metric: share_found(self._expected, named)}


def _question(task: str, name: str, listed: str, asked: str, judge: _Judge, right: str, length: int) -> Question:
    messages = [{"role": "user", "content": f"{listed}\n\n{asked}"}]
    return Question(task, name, messages, 96, judge, Reply(right), length=length)


def _common(scale: Scale) -> Iterator[Question]:
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("common-words", length, number)
            n_words, words = scale.chars(length) // _CHARS_A_WORD, rng.sample(_WORDS, len(_WORDS))
            common, others = words[:_N_COMMON], words[_N_COMMON:]
            n_rarely = max(-(-n_words // (len(others) + _TIMES * _N_COMMON)), 1)
            # A short list has no room for so many: half of it then.
            n_commonly = min(_TIMES * n_rarely, max(n_words // (2 * _N_COMMON), 4))
            listed = [word for word in common for _ in range(n_commonly)]
            rare = (word for word in others for _ in range(n_rarely))
            listed += islice(rare, max(n_words - len(listed), 0))
            rng.shuffle(listed)
            asked = f"Which {_N_COMMON} words are the most common in this list?"
            judge = _Judge("common-words", tuple(common), frozenset(words))
            name = f"{length:,} tokens, {number + 1}"
            yield _question("common-words", name, _numbered(listed), asked, judge, ", ".join(common), length)


def _numbered(words: Iterable[str]) -> str:
    return " ".join(f"{at}. {word}" for at, word in enumerate(words, start=1))


def _frequent(scale: Scale) -> Iterator[Question]:
    """Made-up words, by Zipf's law."""
    for length in scale.lengths:
        for number in range(scale.n_samples):
            rng = scale.rng("frequent-words", length, number)
            words = _made_up(rng)
            shares = [1 / rank**_ZIPF for rank in range(1, len(words) + 1)]
            n_words = max(scale.chars(length) // (len(words[0]) + 1), 4 * _N_CODED)
            listed = [
                word
                for word, one in zip(words, shares, strict=True)
                for _ in range(max(round(n_words * one / sum(shares)), 1))
            ]
            rng.shuffle(listed)
            asked = f"Which {_N_FREQUENT} words are the most frequent in this coded text?"
            judge = _Judge("frequent-words", tuple(words[:_N_FREQUENT]), frozenset(words))
            name, right = f"{length:,} tokens, {number + 1}", ", ".join(words[:_N_FREQUENT])
            yield _question("frequent-words", name, " ".join(listed), asked, judge, right, length)


def _made_up(rng: random.Random) -> list[str]:
    words: dict[str, None] = {}
    while len(words) < _N_CODED:
        words["".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))] = None
    return list(words)


_LISTED = _numbered(_WORDS)
_CODED = " ".join(_made_up(random.Random(0)))  # noqa: S311

TASKS = (
    Task("common-words", "ruler", "The five most common words of a list.", ("common-words",), _common, _LISTED),
    Task("frequent-words", "ruler", "The three most frequent made-up words.", ("frequent-words",), _frequent, _CODED),
)
