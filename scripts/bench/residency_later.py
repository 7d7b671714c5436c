"""What an answer finds of a text that the pool cannot hold when it comes to need it late: neither the question nor the
answer's prefix asks for it. The answer is forced, token by token, up to the code of a needle, which it then has to
write by itself. Counts, no times. It must not know how a table looks.

Pages are chosen at the prompt's end and every tau tokens of the answer, by what tokens before each choice ask for. So
it matters how far behind a choice the code is written, and how long before that choice the answer spoke of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from urllib.parse import quote

from luce.protocol import GenerateOk
from luce.supervisor.text import TextModel
from scripts.bench.residency_prompts import OWNERS, python_with, sentences
from scripts.bench.residency_recall import Residency
from scripts.bench.residency_sides import DEADLINE_S, EngineSettings, RefusedError
from tests.daemon_driver import DaemonDriver, gen_line

LEAST_TAU = 32  # the sentences that are forced have to fit between two choices
# Of the text that stands before the needle, which is so far from the end that the newest pages do not hold it.
SHALLOWEST, DEEPEST = 0.1, 0.5
N_CHOICES = 2  # of an answer, up to where the code is written; the one at the prompt's end is not counted
N_DIGITS = 5


@dataclass(frozen=True, order=True)
class Need:
    """Where an answer writes the code."""

    place: int
    """Tokens of the answer between the newest choice of pages and the code."""
    mentioned: int | None = None
    """The last token of a sentence that speaks of it is the so manyth before that choice; None: nothing does."""


def needs_of(tau: int) -> list[Need]:
    """Unannounced, all the way between two choices; and announced before a choice, more and more long ago."""
    unannounced = [Need(place) for place in (4, tau // 8, tau // 4, tau // 2, tau - 4)]
    place = max(16, tau // 4)
    return unannounced + [Need(place, n) for n in (1, 4, tau // 8, tau // 4, tau // 2, tau * 3 // 4)]


@dataclass(frozen=True)
class LaterSample:
    """One need of one text, and what each side wrote."""

    percent: int
    n_pool: int
    n_prompt: int
    need: Need
    expected: str
    answers: dict[str, str]
    """By side."""

    def is_right(self, side: str) -> bool:
        return self.answers[side].strip() == self.expected


class LaterText:
    """A long text with a needle, questions that do not ask for it, and answers that come to need it."""

    def __init__(self, model: TextModel, n_tokens: int, depth: float, seed: int) -> None:
        self._model = model
        self._rng = random.Random(f"later {n_tokens} {depth:.4f} {seed}")
        self.owner = self._rng.choice(OWNERS)
        self.code = str(self._rng.randrange(10 ** (N_DIGITS - 1), 10**N_DIGITS))
        fact = f"The access code of the {self.owner} is {self.code}."
        self._text = python_with(model, n_tokens, depth, fact, self._rng)
        answer = sentences(model, n_tokens, self._rng)
        self._filler = [token for sentence in answer for token in model.tokenize(f" {sentence}")]

    def prompt(self, number: int) -> list[int]:
        """Each number has its own end, so that what comes before is read once and pages are chosen for each."""
        chat = self._model.render([{"role": "user", "content": f"{self._text}\n\nChapter {number}: go on."}])
        ids = list(chat.tokens)
        chat.close()
        return ids

    def forced(self, need: Need, tau: int) -> list[int]:
        """The answer up to the code. At a prompt's end pages are chosen before its last token is computed: so the
        first choice of the answer follows tau - 1 tokens of its own."""
        n_choice = N_CHOICES * tau - 1
        n_forced = n_choice + need.place
        cue = self._cue()
        if need.mentioned is None:
            return self._sentences(n_forced - len(cue)) + cue
        mention = self._model.tokenize(f" Now think of the access code of the {self.owner}.")
        before = self._sentences(n_choice - need.mentioned + 1 - len(mention)) + mention
        return before + self._sentences(n_forced - len(before) - len(cue)) + cue

    def _cue(self) -> list[int]:
        """The needle's sentence as it is cut into tokens, up to the code."""
        whole = self._model.tokenize(f" The access code of the {self.owner} is {self.code}.")
        return list(takewhile(lambda token: not any(map(str.isdigit, self._piece(token))), whole))

    def _piece(self, token: int) -> str:
        return self._model.detokenize([token]).decode(errors="replace")

    def _sentences(self, n_tokens: int) -> list[int]:
        """Exactly so many tokens; the last sentence is whole."""
        assert n_tokens >= 0, "the mention and the code lie too near to each other"
        end = max(n_tokens, len(self._filler) // 2)
        ends = [i + 1 for i, token in enumerate(self._filler) if i + 1 >= end and self._piece(token).endswith(".")]
        return self._filler[ends[0] - n_tokens : ends[0]]


def measure_later(
    settings: EngineSettings,
    residency: Residency,
    n_texts: int = 40,
    seed: int = 0,
    report: Callable[[LaterSample], None] = lambda _: None,
) -> list[LaterSample]:
    """Every need of each text. Raises RefusedError."""
    samples = []
    n_pool = residency.n_pool(settings.n_ubatch)
    needs = needs_of(settings.tau)
    with TextModel(settings.model) as model, settings.sides(residency.n_ctx, n_pool) as daemons:
        for i in range(n_texts):
            depth = SHALLOWEST + (DEEPEST - SHALLOWEST) * (i + 0.5) / n_texts
            text = LaterText(model, residency.n_tokens, depth, seed * n_texts + i)
            prompts = [text.prompt(number) for number in range(1, len(needs) + 1)]
            n_shared = min(_n_shared(prompts[0], prompt) for prompt in prompts[1:])
            for prompt, need in zip(prompts, needs, strict=True):
                forced = text.forced(need, settings.tau)
                written = {side: write(daemons[side], prompt, n_shared, forced) for side in daemons}
                answers = {side: model.detokenize(tokens).decode(errors="replace") for side, tokens in written.items()}
                samples.append(LaterSample(residency.percent, n_pool, len(prompt), need, text.code, answers))
                report(samples[-1])
    return samples


def write(daemon: DaemonDriver, prompt: Sequence[int], n_shared: int, forced: Sequence[int]) -> list[int]:
    """What the daemon writes behind a forced prefix: as many digits as a code has. What prompts share, up to
    n_shared, may be known already. Raises RefusedError."""
    grammar = "root ::= " + " ".join(f"<[{token}]>" for token in forced) + ' " "? ' + " ".join(["[0-9]"] * N_DIGITS)
    n_most = len(forced) + 1 + N_DIGITS
    daemon.send(gen_line(1, n_most, prompt, f"marks={n_shared} grammar={quote(grammar, safe='')}"))
    tokens = daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply()
    if not isinstance(reply, GenerateOk):
        raise RefusedError(reply)
    assert tokens[: len(forced)] == list(forced), "the answer is not what was forced"
    return tokens[len(forced) :]


def _n_shared(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
