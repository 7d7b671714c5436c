"""The texts that engines are asked to go on with: of any length, the same each time. Knows the model's text side only.

Sentences in random order with facts in between, and an ending that asks for one of the facts. The same body is asked
for each of its facts: an answer depends most on the place that has what was asked for, and so the answers together
depend on places all over the text. A model without a vocabulary of texts gets ids.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from luce.supervisor.text import TextModel

_SENTENCES = (
    "The wind moved over the hills.",
    "A train left the station on time.",
    "Two boats crossed the bay.",
    "The library was quiet that evening.",
    "The market sold apples and bread.",
    "A dog slept by the door.",
    "The teacher closed the window.",
    "Rain fell on the old roof.",
)
_OWNERS = ("green owl", "red fox", "blue whale", "black cat", "grey goose", "white horse")
_QUESTIONS = ("Who are you?", "What is 7 + 5?", "What can you do?", "What is 12 + 30?")
N_ENDINGS = len(_OWNERS)
_N_REPEATED = 12  # ids of an ending
_LEAST_ID, _IDS = 10, 200  # of texts without a vocabulary: ids that every model has


@dataclass(frozen=True, slots=True)
class CheckText:
    name: str
    ids: tuple[int, ...]
    n_body: int
    """Of them, those before the ending."""


class Texts:
    def __init__(self, model: TextModel | None, n_vocab: int) -> None:
        """None: the model has no vocabulary of texts."""
        self.model = model
        self._n_vocab = n_vocab
        self._known: dict[tuple[int, int], list[CheckText]] = {}

    def of_length(self, n_tokens: int, variant: int = 0) -> list[CheckText]:
        """Of exactly so many tokens, or some more: one body, and all its endings."""
        key = (n_tokens, variant)
        if key not in self._known:
            rng = random.Random(1000 * variant + 1)  # noqa: S311  no secrets
            body, endings = self._ids(n_tokens, rng) if self.model is None else _sentences(self.model, n_tokens, rng)
            self._known[key] = [
                CheckText(f"ending {i + 1}", (*body, *ending), len(body)) for i, ending in enumerate(endings)
            ]
        return self._known[key]

    def with_choice(self, variant: int) -> CheckText:
        """Ends where a sentence does, or some tokens before: then comes one of many, as the first token or as one that
        n-grams foresee, often wrongly."""
        rng = random.Random(2000 + variant)  # noqa: S311  no secrets
        if self.model is None:
            body, _ = self._ids(128, rng)
            return CheckText(f"ids {variant + 1}", tuple(body), len(body))
        ids = self.model.tokenize(" ".join(rng.choice(_SENTENCES) for _ in range(20)), add_special=True)
        n_cut = 3 * (variant % 2)
        return CheckText(f"sentences {variant + 1}", tuple(ids[: len(ids) - n_cut]), len(ids) - n_cut)

    def message(self, n_characters: int, variant: int) -> str:
        """What a user writes: sentences, and a question."""
        rng = random.Random(3000 + variant)  # noqa: S311  no secrets
        question = _QUESTIONS[variant % len(_QUESTIONS)]
        n_sentences = max(n_characters - len(question), 0) // (len(" ".join(_SENTENCES)) // len(_SENTENCES))
        return " ".join([*(rng.choice(_SENTENCES) for _ in range(n_sentences)), question])

    def _ids(self, n_tokens: int, rng: random.Random) -> tuple[list[int], list[list[int]]]:
        """What is asked for is the passage that follows some ids that stood there before."""
        most = min(self._n_vocab - _LEAST_ID, _IDS)
        body = [_LEAST_ID + rng.randrange(most) for _ in range(max(n_tokens - _N_REPEATED, 1))]
        places = [len(body) * i // N_ENDINGS for i in range(N_ENDINGS)]
        return body, [body[place : place + _N_REPEATED] for place in places]


def _sentences(model: TextModel, n_tokens: int, rng: random.Random) -> tuple[list[int], list[list[int]]]:
    endings = [model.tokenize(f" The access code of the {owner} is") for owner in _OWNERS]
    facts = [f"The access code of the {owner} is {rng.randrange(10_000, 99_999)}." for owner in _OWNERS]
    n_body = n_tokens - min(len(ending) for ending in endings)
    filler = " ".join(_SENTENCES)
    n_filler_tokens = len(model.tokenize(filler))
    n_sentences = max(n_body - len(model.tokenize(" ".join(facts))), 0) * len(_SENTENCES) // n_filler_tokens
    sentences = [rng.choice(_SENTENCES) for _ in range(n_sentences)]
    for i, fact in enumerate(facts):
        sentences.insert((n_sentences + len(facts)) * (i + 1) // (len(facts) + 1), fact)
    body = model.tokenize(" ".join(sentences), add_special=True)
    while len(body) < n_body:
        body += model.tokenize(f" {filler}")
    return body[:n_body], endings
