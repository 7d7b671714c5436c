"""When are two answers the same? Up to the first step whose margin is below the noise; behind it they may part.

The margin of a step is how far the likeliest token leads the second one in the reference. Sums that are formed in
another order round otherwise, and turn what is nearly a tie. Every other difference is wrong, and so are logprobs that
moved by more than the noise while the tokens are still the same: memory that is damaged shows there first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Step = Sequence[tuple[int, float]]
"""Of one generated token: its own logprob first, then those of the likeliest in falling order."""


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    tokens: Sequence[int]
    steps: Sequence[Step]
    """One for each token. REQUIRES: at least the two likeliest."""


def margin(step: Step) -> float:
    return step[1][1] - step[2][1]


@dataclass
class Comparison:
    """Takes answers one by one. What is wrong is in `wrong`, empty if nothing is."""

    noise: float
    n_texts: int = 0
    n_tokens: int = 0
    """That were the same, or wrong: what comes behind a near tie is not compared."""
    largest_move: float = 0.0
    """Of a chosen token's logprob."""
    near_ties: list[str] = field(default_factory=list)
    tied_tokens: set[tuple[int, int]] = field(default_factory=set)
    """At near ties: the reference's token and the one that came."""
    wrong: list[str] = field(default_factory=list)

    def check(self, name: str, got: AnswerTokens, reference: AnswerTokens) -> None:
        self.n_texts += 1
        n_both = min(len(got.tokens), len(reference.tokens))
        for step in range(n_both):
            if got.tokens[step] != reference.tokens[step]:
                self._note_parting(name, step, got.tokens[step], reference)
                return
            self.n_tokens += 1
            move = abs(got.steps[step][0][1] - reference.steps[step][0][1])
            self.largest_move = max(self.largest_move, move)
            if not move <= self.noise:  # so that NaN is wrong, too
                self.wrong.append(
                    f"{name}: the logprob of token {step} ({got.tokens[step]}) is {got.steps[step][0][1]:.3f} instead"
                    f" of {reference.steps[step][0][1]:.3f} (noise {self.noise:g})"
                )
                return
        if len(got.tokens) != len(reference.tokens):
            self.wrong.append(f"{name}: {len(got.tokens)} tokens instead of {len(reference.tokens)}")

    def _note_parting(self, name: str, step: int, token: int, reference: AnswerTokens) -> None:
        lead = margin(reference.steps[step])
        place = f"{name}: token {step} is {token} instead of {reference.tokens[step]}, where the margin is {lead:.3f}"
        if lead < self.noise:
            self.near_ties.append(place)
            self.tied_tokens.add((reference.tokens[step], token))
        else:
            self.n_tokens += 1
            self.wrong.append(f"{place} (noise {self.noise:g})")

    def too_many_ties(self) -> bool:
        """Rounding turns a near tie now and then, in both of two answers. Most of several texts: the rule would hide
        what is wrong. Answers that go on alike come to the same tie: it counts once."""
        return len(self.tied_tokens) > max(2, self.n_texts // 2)
