"""How far two next-token distributions are apart, and how far a KV type may take them. Knows logprobs only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import exp, inf, log

MOST_MEAN_KL = {
    "f32": 0.005,
    "bf16": 0.005,
    "q8_0": 0.01,
    "q5_1": 0.03,
    "q5_0": 0.03,
    "q4_1": 0.06,
    "q4_0": 0.06,
    "iq4_nl": 0.06,
    "tq3": 0.15,
}
"""Against f16, in nats a token, mean over positions of one text; docs/check.md has what was measured."""

CLEAR_LEAD = 0.3
"""Of a likeliest token, in logits: where it is less, f16 itself is not sure."""

SHARE_UNSAID = 0.05
"""Of the places, where another token is the likeliest: of more it is said that answers change, near ties or not."""

_LEAST = 1e-6  # probability that what is not told may have


def kl_divergence(reference: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> float:
    """KL(reference || other) in nats of the likeliest tokens that both tell, all others as one: never more than that
    of the whole distributions, and hardly less where the told ones hold nearly all of the probability."""
    there = {token: logprob for token, logprob in other if logprob > -inf}
    both = [(logprob, there[token]) for token, logprob in reference if token in there and logprob > -inf]
    total = sum(exp(p) * (p - q) for p, q in both)
    rest = max(1 - sum(exp(p) for p, _ in both), 0.0)
    rest_there = max(1 - sum(exp(q) for _, q in both), _LEAST)
    return max(total + (rest * log(rest / rest_there) if rest > 0 else 0.0), 0.0)


def lead_of_another(reference: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> float | None:
    """By how much the reference's likeliest token leads, in the reference, the one that is the likeliest in the other;
    None: it is the same. The likeliest stand first."""
    (first, lead), (there, _) = reference[0], other[0]
    if there == first:
        return None
    return lead - next((logprob for token, logprob in reference if token == there), -inf)


def most_mean_kl(kv: str) -> float | None:
    """What is allowed for the types that a ready line tells (`kv=`): the coarsest of them decides. None: none is known
    here."""
    limits = [limit for name, limit in MOST_MEAN_KL.items() if re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", kv)]
    return max(limits, default=None)


def is_f16(kv: str) -> bool:
    """Nothing but the reference's own type."""
    return set(re.findall(r"[a-z]+[0-9]+(?:_[a-z0-9]+)?", kv)) == {"f16"}
