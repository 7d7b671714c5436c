"""Are sampled tokens drawn from the same distribution with drafts as without? A drafted token that is not the one that
was drawn is rejected; a mistake there shifts what comes.

With the same seeds nearly all answers are the same, but where two tokens are nearly as likely. With other seeds they
are samples of one distribution: chi-square of the tokens at each place and of whole answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from math import exp, log

from luce.protocol import SamplingArgs
from luce.supervisor.checking.chi_square import ChiSquare, compare_samples
from luce.supervisor.checking.engines import Answer, CheckedEngine, Question
from luce.supervisor.checking.finding import Finding, Verdict, left_out
from luce.supervisor.checking.same_tokens import AnswerTokens, Step
from luce.supervisor.checking.speculation import ALWAYS
from luce.supervisor.checking.subject import Subject
from luce.supervisor.checking.texts import CheckText

_N_CANDIDATES = 8
_N_LIKELIEST = 40
_TEMPERATURE = 0.7
_N_TOKENS = 8
_AT_ONCE = 32
_LEAST_P = 1e-4
"""One run in some thousands fails by chance alone, and the seeds are the same each time."""
_MOST_PARTED = 0.25
"""Of answers with the same seed, where tokens differ that are not nearly as likely: rounding moves the edge between
them over a draw."""


async def check_sampling(subject: Subject) -> AsyncIterator[Finding]:
    """Temperature 0.7, top-k 40, top-p 0.95, with drafts and without."""
    if subject.starter.config.draft_max == 0:
        yield left_out("sampling", "", "--draft-max 0: nothing is drafted")
        return
    seeds = range(subject.volume.n_seeds)
    async with subject.plain_engine() as engine:
        texts = await _with_most_choice(engine, subject)
        plain = [await _sampled(engine, text, seeds, _N_LIKELIEST) for text in texts]
    async with subject.engine(**ALWAYS) as engine:
        for text, without in zip(texts, plain, strict=True):
            same = await _sampled(engine, text, seeds)
            other = await _sampled(engine, text, [seed + len(seeds) for seed in seeds])
            yield _judge(text, without, same, other, subject.noise)


async def _with_most_choice(engine: CheckedEngine, subject: Subject) -> list[CheckText]:
    """Of some texts those where most could come: where one answer has all the probability nothing can be seen."""
    choices: list[tuple[float, CheckText]] = []
    for variant in range(_N_CANDIDATES):
        text = subject.texts.with_choice(variant)
        answer = await engine.ask(Question(text.ids, n=_N_TOKENS, n_logprobs=_N_LIKELIEST))
        choices.append((sum(_entropy(step[1:]) for step in answer.steps), text))
    choices.sort(key=lambda choice: -choice[0])
    return [text for _, text in choices[: subject.volume.n_sampled]]


def _entropy(likeliest: Step) -> float:
    """With the temperature that is sampled with."""
    weights = [exp(logprob / _TEMPERATURE) for _, logprob in likeliest]
    shares = [weight / sum(weights) for weight in weights]
    return -sum(share * log(share) for share in shares if share > 0)


async def _sampled(engine: CheckedEngine, text: CheckText, seeds: Sequence[int], n_logprobs: int = 0) -> list[Answer]:
    answers: list[Answer] = []
    for at in range(0, len(seeds), _AT_ONCE):
        questions = [
            Question(
                text.ids,
                n=_N_TOKENS,
                n_logprobs=n_logprobs,
                sampling=SamplingArgs(temperature=_TEMPERATURE, top_k=40, top_p=0.95, seed=seed),
            )
            for seed in seeds[at : at + _AT_ONCE]
        ]
        answers += await engine.ask_together(questions)
    return answers


def parts_clearly(answer: AnswerTokens, plain: AnswerTokens, noise: float) -> bool:
    """Tokens are drawn in the order of their probability. Two that are nearly as likely change places by rounding, and
    with them all draws that fall on either."""
    for token, expected, step in zip(answer.tokens, plain.tokens, plain.steps, strict=False):
        if token != expected:
            likeliest = dict(step[1:])
            return token not in likeliest or abs(likeliest[token] - step[0][1]) >= noise
    return len(answer.tokens) != len(plain.tokens)


def _judge(
    text: CheckText, plain: Sequence[Answer], same: Sequence[Answer], other: Sequence[Answer], noise: float
) -> Finding:
    wrong = []
    n_parted = sum(tuple(a.tokens) != tuple(b.tokens) for a, b in zip(same, plain, strict=True))
    parted = [i for i, (a, b) in enumerate(zip(same, plain, strict=True)) if parts_clearly(a, b, noise)]
    if len(parted) > _MOST_PARTED * len(plain):
        seed = parted[0]
        wrong.append(
            f"{len(parted)} of {len(plain)} answers are not those of the same seed without drafts, nor part from them"
            f" at a near tie; seed {seed} gives {tuple(same[seed].tokens)} instead of {tuple(plain[seed].tokens)}"
        )
    name, test = _farthest(plain, other)
    if test.p * (_N_TOKENS + 1) < _LEAST_P:
        wrong.append(
            f"{name} are of another distribution: chi-square {test.statistic:.1f} with {test.n_free} degrees of"
            f" freedom, p {test.p:.1e}"
        )
    if test.n_free == 0:
        wrong.append("there were no two answers to tell apart: nothing was checked")
    n_drafted = sum(answer.n_drafted for answer in (*same, *other))
    n_accepted = sum(a.final.speculation.n_accepted for a in (*same, *other) if a.final.speculation is not None)
    if n_drafted == 0:
        wrong.append("nothing was drafted: nothing was checked")
    told = (
        f"least p {test.p:.3f} ({name}), {n_parted} of {len(plain)} part from the same seed's ({len(parted)} not at a"
        f" near tie), {n_accepted} of {n_drafted} drafted tokens accepted"
    )
    return Finding(
        check="sampling",
        case=text.name,
        verdict=Verdict.FAILED if wrong else Verdict.PASSED,
        compared="with drafts / without",
        n_tokens=sum(len(answer.tokens) for answer in (*same, *other)),
        text="; ".join(wrong) or told,
        figures={
            "least_p": test.p,
            "chi_square": test.statistic,
            "n_free": float(test.n_free),
            "parted_share": n_parted / len(plain),
            "clearly_parted_share": len(parted) / len(plain),
            "n_drafted": float(n_drafted),
            "n_accepted": float(n_accepted),
        },
    )


def _farthest(here: Sequence[Answer], there: Sequence[Answer]) -> tuple[str, ChiSquare]:
    """Of the tokens at each place and of whole answers those that are the least likely to be of one distribution."""
    tests = [("whole answers", compare_samples([tuple(a.tokens) for a in here], [tuple(b.tokens) for b in there]))]
    for place in range(_N_TOKENS):
        at_place = compare_samples([a.tokens[place] for a in here], [b.tokens[place] for b in there])
        tests.append((f"tokens {place}", at_place))
    return min(tests, key=lambda test: (test[1].p, -test[1].n_free))
