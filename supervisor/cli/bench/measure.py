"""What a server does, measured as a client sees it: sides take turns, so that whatever else a machine does falls on all
of them. Knows prompts and the clock; must not know how figures are shown.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from luce.supervisor.cli.server_client import CHAT_PATH, Answer, ServerClient, ServerError
from luce.supervisor.cli.servers import UNNAMED_MODEL

_ENGLISH = (
    "the of and to in that it was for on are with as be at one have this from or had by hot but some what there we can"
    " out other were all your when up use word how said an each she which do their time if will way about many then"
)
_WORDS = tuple(_ENGLISH.split())
_FEW, _MANY = 64, 192  # words of the two prompts that tell how many tokens a word has
_NEXT = "Go on."
_NO_TEXT = "(nothing)"

# What speculation finds easy, middling and hard to foresee.
SPECULATION_PROMPTS = {
    "copy": "Repeat these lines word for word: The cat sat on the mat. The dog sat on the log. The frog sat on a rock.",
    "code": "Write a Python function that returns the sum of the squares of a list of numbers, and three tests of it.",
    "prose": "Tell a short story about a lighthouse.",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer. Times in seconds, from sending the request."""

    n_prompt: int
    n_cached: int
    n_answer: int
    first_token_s: float
    decode_s: float

    @property
    def read_per_s(self) -> float:
        """Tokens of the prompt that were not known, a second."""
        return max(self.n_prompt - self.n_cached, 0) / self.first_token_s

    @property
    def decoded_per_s(self) -> float | None:
        """Behind the first one; None: there was none."""
        return (self.n_answer - 1) / self.decode_s if self.n_answer > 1 and self.decode_s > 0 else None


@dataclass(frozen=True, slots=True)
class DepthSample:
    """A prompt that the server has not seen, and the next turn of the same conversation."""

    side: str
    depth: int
    turn: int
    cold: Sample
    warm: Sample


@dataclass(frozen=True, slots=True)
class SpeculationSample:
    """The same prompt with drafts and without."""

    prompt: str
    turn: int
    drafted: Sample
    plain: Sample
    is_same_text: bool


class Side:
    """A server under a name."""

    def __init__(self, name: str, server: ServerClient, path: str = CHAT_PATH, model: str = UNNAMED_MODEL) -> None:
        self.name = name
        self._server = server
        self._path = path
        self._model = model
        self._ours = {"ignore_eos": True}  # what servers know that are made for measuring; others refuse it
        self._tokens_per_word: tuple[float, float] | None = None

    def ask(self, texts: Sequence[str], n_tokens: int) -> tuple[Sample, str]:
        """`texts` are what user and assistant said in turns. Returns also what was answered. Raises ServerError."""
        try:
            return self._ask(texts, n_tokens)
        except ServerError as error:
            if error.status not in {400, 422} or not self._ours:
                raise
            self._ours = {}
            return self._ask(texts, n_tokens)

    def _ask(self, texts: Sequence[str], n_tokens: int) -> tuple[Sample, str]:
        body: dict[str, Any] = {"model": self._model, "max_tokens": n_tokens, "temperature": 0, **self._ours}
        if self._path == CHAT_PATH:
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        else:
            body["prompt"] = "\n\n".join(texts)
        answer, began_s = Answer(), time.monotonic()
        came_s: list[float] = []
        with closing(self._server.stream(self._path, body, answer)) as pieces:
            came_s.extend(time.monotonic() for _ in pieces)
        if "prompt_tokens" not in answer.usage:
            raise ServerError(f"{self._server.url} does not say how many tokens a prompt has (stream_options)")
        if not came_s:
            raise ServerError(f"{self._server.url} answers with no text")
        known = (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        n_prompt, n_answer = int(answer.usage["prompt_tokens"]), int(answer.usage.get("completion_tokens", 0))
        sample = Sample(n_prompt, int(known), n_answer, came_s[0] - began_s, came_s[-1] - came_s[0])
        return sample, answer.content

    def words_for(self, n_tokens: int) -> int:
        """How many words of ours make a prompt of about so many tokens: two prompts are asked for it, once."""
        if self._tokens_per_word is None:
            rng = random.Random(self.name)  # noqa: S311
            few, many = (self.ask([text_of(n, rng)], 2)[0].n_prompt for n in (_FEW, _MANY))
            each = max((many - few) / (_MANY - _FEW), 0.25)
            self._tokens_per_word = each, few - each * _FEW
        each, beside = self._tokens_per_word
        return max(round((n_tokens - beside) / each), 1)


def text_of(n_words: int, rng: random.Random) -> str:
    """Its first words are not those of another text, so that no cache knows it."""
    first = [rng.choice(_WORDS) for _ in range(min(n_words, 8))]
    return " ".join([*first, *(rng.choice(_WORDS) for _ in range(n_words - len(first)))])


def in_turns(sides: Sequence[Side], turn: int) -> list[Side]:
    """Another one first each time."""
    at = turn % len(sides)
    return [*sides[at:], *sides[:at]]


def measure_depths(
    sides: Sequence[Side], depths: Sequence[int], n_rounds: int, n_tokens: int, on_skip: Callable[[str], None]
) -> Iterator[DepthSample]:
    """Raises ServerError; a depth that a server has no room for is left out, and said."""
    rng = random.Random(time.time_ns())  # noqa: S311  the texts of an earlier run may be known
    for depth in depths:
        for turn in range(n_rounds):
            try:
                yield from [_ask_twice(side, depth, turn, n_tokens, rng) for side in in_turns(sides, turn)]
            except ServerError as error:
                if error.status not in {400, 413, 422}:
                    raise
                on_skip(f"depth {depth:,} is left out: {error}")
                break


def _ask_twice(side: Side, depth: int, turn: int, n_tokens: int, rng: random.Random) -> DepthSample:
    text = text_of(side.words_for(depth), rng)
    cold, answer = side.ask([text], n_tokens)
    warm, _ = side.ask([text, answer or _NO_TEXT, _NEXT], n_tokens)
    return DepthSample(side.name, depth, turn, cold, warm)


def measure_speculation(drafting: Side, plain: Side, n_rounds: int, n_tokens: int) -> Iterator[SpeculationSample]:
    """The first turn is cold and does not count. Raises ServerError."""
    for turn in range(n_rounds + 1):
        for name, text in SPECULATION_PROMPTS.items():
            found = {side: side.ask([text], n_tokens) for side in in_turns((drafting, plain), turn)}
            (drafted, drafted_text), (undrafted, plain_text) = found[drafting], found[plain]
            if turn > 0:
                yield SpeculationSample(name, turn, drafted, undrafted, drafted_text == plain_text)
