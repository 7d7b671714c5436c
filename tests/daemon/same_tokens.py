"""When are tokens the same? Up to the first step whose margin is below the noise; after it the texts may part.

The margin of a step is how far the best logit leads the second one in the reference. Runs that batch differently add
up in another order, so a step that is nearly a tie may go either way. Such steps are counted and bounded, so that the
rule cannot hide a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from tests import near_ties

NOISE_GOLDEN = 0.15
"""Against the reference in float32: our activations are quantised too."""
NOISE_BATCHING = 0.15
"""Between two runs of ours that batch differently, with q8_0 or bf16 KV on CPU, on a trained model. Where the packaged
one's logits were measured they did not move at all; on another CPU two texts in eight parted,
at margins of 0.003 and 0.031: ggml's kernels, and so the order of their sums, are not the same on all of them."""
NOISE_CUTS = 0.3
"""The same on random text, where one run cuts the prompt at other positions than the other: 0.13 measured on the
packaged model, both for the logit and its rival; a restore that cuts at the same ones moves nothing."""
NOISE_STRANGE = 0.3
"""The same as NOISE_BATCHING on what the packaged model would not have written: text that a grammar, a penalty or a
high temperature has chosen. Under a grammar 0.22 measured in the logprobs of 1,650 steps, with drafts in three lanes or
without; of three times as many 0.29 without, 0.67 in one text with drafts, which had moved by 0.05 at its first token,
before any draft; with drafts in one lane none moved."""
NOISE_RANDOM = 0.5
NOISE_RANDOM_MOE = 1.5
"""The same on random weights, which amplify a rounding from layer to layer: 0.37 measured on dense ones within 180
tokens, 1.1 where a near-tie of the router sends a token to another expert."""
NOISE_GPU = 0.35
"""The packaged model with f16 KV on CUDA, whose kernels add up in another order for another batch: 0.29 measured. Dense
random weights stay within their noise there, but any text of theirs comes to a near-tie within 48 tokens."""
NOISE_CUTS_GPU = 1.0
"""Random weights on CUDA, where one run cuts the prompt at other positions than the other: of 120 texts with a random
cut, neither with drafts, 58 parted with qwen35, at margins up to 0.51, and margins moved by up to 0.87 (qwen3 0.42,
gemma4 0.16); two drafting histories parted at 0.70."""
NOISE_FAR_MOE = 4.0
"""Random experts on CUDA: 1.1 in the logits of one step, but a flipped expert of one token stays in the cache for all
that follow. 3.2 seen after 37 tokens. It tells a wrong text all the same, whose margins are of any size."""

SHARE_SHORT = 0.25
"""Of drawn texts of up to 48 tokens that part by rounding, on CPU. None to one in twenty-five did, and one in ten where
all the vocabulary could be drawn (each of its tokens adds an edge); with another seed nine in ten or more."""


def noise_of_random(is_moe: bool, gpu: bool) -> float:
    """Of a model with random weights, within some 50 tokens."""
    return (NOISE_FAR_MOE if gpu else NOISE_RANDOM_MOE) if is_moe else NOISE_RANDOM


def parting(name: str, got: Sequence[int], reference: Sequence[int]) -> int | None:
    """The first step at which they differ; one that merely ends before the other is wrong."""
    pairs = zip(got, reference, strict=False)
    step = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if step is None:
        assert len(got) == len(reference), f"{name}: {len(got)} tokens instead of {len(reference)}"
    return step


@dataclass
class Comparison:
    """Counts sequences; a deviation at a clear step fails at once, too many unclear ones fail at the end.

    Nearly all steps of a trained model are clear, so a wrong text fails at its first wrong token; how many texts come
    to a near-tie that rounding turns is up to the processor, and tells only where it is most of them.
    """

    noise: float
    """inf: hold it against a control at the end."""
    n_sequences: int = 0
    unclear: list[str] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    """Of the steps at which texts parted."""

    def check(self, name: str, got: Sequence[int], reference: Sequence[int], margins: Sequence[float]) -> None:
        self.n_sequences += 1
        step = parting(name, got, reference)
        if step is None:
            return
        assert margins[step] < self.noise, (
            f"{name}: token {got[step]} instead of {reference[step]} at step {step}, where the margin is "
            f"{margins[step]:.3f} (noise {self.noise})"
        )
        self.unclear.append(f"{name} at step {step} (margin {margins[step]:.3f})")
        self.margins.append(margins[step])

    def share_beyond(self, noise: float) -> float:
        """Of the sequences: parted at a step with at least that margin."""
        return sum(margin >= noise for margin in self.margins) / self.n_sequences

    def finish_like(self, control: Comparison, noise: float) -> None:
        """For random experts over hundreds of tokens: an expert that a rounding flips stays in the cache for all that
        follow, so no margin is too wide to be turned (3.6 seen between plain decoding in eight lanes and in one, 4.4
        with drafts). How often that happens tells: in a control, which merely batches otherwise, about as often."""
        share, expected = self.share_beyond(noise), control.share_beyond(noise)
        print(f"{share:.1%} of {self.n_sequences} parted beyond {noise}, {expected:.1%} of the control's")
        assert share <= 2 * expected + 0.02, (self.unclear, control.unclear)

    def finish(self, share_allowed: float = 0.5) -> None:
        """Which share of the sequences may have parted at an unclear step: all of them where the weights are random."""
        print(f"{self.n_sequences} sequences, {len(self.unclear)} parted at an unclear step: {self.unclear}")
        near_ties.count(self.n_sequences, len(self.unclear))
        assert len(self.unclear) <= share_allowed * self.n_sequences, self.unclear


def drawn_between(likeliest: Sequence[tuple[int, float]], temperature: float, token: int) -> tuple[float, float]:
    """Which draws from [0, 1) give the token, in llama.cpp's order: what can be drawn lies side by side, the likeliest
    first. REQUIRES: top_k is the number of logprobs, and nothing but the temperature changes their chances."""
    tokens = [other for other, _ in likeliest]
    assert token in tokens, f"token {token} could not be drawn from {likeliest}"
    weights = [exp(logprob / temperature) for _, logprob in likeliest]
    at = tokens.index(token)
    return sum(weights[:at]) / sum(weights), sum(weights[: at + 1]) / sum(weights)


@dataclass
class SampledComparison:
    """Texts drawn with a temperature: one parts where rounding moves the edge between two tokens over its draw.

    A draw has no margin to tell, so the distributions that it was drawn from are compared: at the parting both runs
    have read the same text and must see the same. Told before the temperature, penalties and the grammar, they are the
    same for a wrong draw, too. Where all that can be drawn is told, the two tokens tell whether one draw can have given
    both; elsewhere only the number of texts that parted does: a random stream that goes on at another place, or a
    grammar that has read another text, parts nearly all. So a comparison is of many texts, and ends with finish().
    """

    noise: float
    n_sequences: int = 0
    parted: list[str] = field(default_factory=list)

    def check(
        self,
        name: str,
        got: Sequence[int],
        reference: Sequence[int],
        got_logprobs: Sequence[Sequence[tuple[int, float]]],
        reference_logprobs: Sequence[Sequence[tuple[int, float]]],
        *,
        temperature: float | None = None,
    ) -> None:
        """Logprobs: of each step the chosen token's and those of the likeliest, as (token, logprob).

        A temperature says that those are all that could be drawn, without penalties (`temp=T top_k=N logprobs=N`): then
        the same draw must have given both tokens."""
        self.n_sequences += 1
        step = parting(name, got, reference)
        if step is None:
            return
        here, there = dict(got_logprobs[step]), dict(reference_logprobs[step])
        both = here.keys() & there.keys()
        assert both, f"{name}: other likely tokens at step {step}: {here} instead of {there}"
        moved = max(abs(here[token] - there[token]) for token in both)
        assert moved < self.noise, (
            f"{name}: token {got[step]} instead of {reference[step]} at step {step}, where a logprob moved by "
            f"{moved:.3f} (noise {self.noise})"
        )
        if temperature is not None:
            low, high = drawn_between(got_logprobs[step][1:], temperature, got[step])
            low_there, high_there = drawn_between(reference_logprobs[step][1:], temperature, reference[step])
            assert max(low, low_there) < min(high, high_there), (
                f"{name}: token {got[step]} instead of {reference[step]} at step {step}, where no draw gives both: one "
                f"takes {low:.4f} to {high:.4f}, the other {low_there:.4f} to {high_there:.4f}"
            )
        self.parted.append(f"{name} at step {step}")

    def finish(self, share_allowed: float = 0.75) -> None:
        """Which share of the sequences may have parted. One draw in a thousand was seen to move, so a text of 300
        tokens parts one time in four; SHARE_SHORT is for short ones."""
        print(f"{self.n_sequences} sampled sequences, {len(self.parted)} parted: {self.parted}")
        near_ties.count(self.n_sequences, len(self.parted))
        assert len(self.parted) <= share_allowed * self.n_sequences, self.parted
