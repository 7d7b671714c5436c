"""When are tokens the same? Up to the first step whose margin is below the noise; after it the texts may part.

The margin of a step is how far the best logit leads the second one in the reference. Runs that batch differently add
up in another order, so a step that is nearly a tie may go either way. Such steps are counted and bounded, so that the
rule cannot hide a wrong answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NOISE_GOLDEN = 0.15
"""Against the reference in float32: our activations are quantised too."""
NOISE_BATCHING = 0.05
"""Between two runs of ours that batch differently, with q8_0 or bf16 KV on CPU, on a trained model. The packaged one's
logits did not move at all (scripts/bench/noise.py)."""
NOISE_CUTS = 0.3
"""The same on random text, where one run cuts the prompt at other positions than the other: 0.13 measured on the
packaged model, both for the logit and its rival; a restore that cuts at the same ones moves nothing."""
NOISE_RANDOM = 0.5
NOISE_RANDOM_MOE = 1.5
"""The same on random weights, which amplify a rounding from layer to layer: 0.37 measured on dense ones within 180
tokens, 1.1 where a near-tie of the router sends a token to another expert."""
NOISE_GPU = 0.3
"""The two last ones with f16 KV on CUDA, whose kernels depend on the batch's size. A guess until it is measured."""


@dataclass
class Comparison:
    """Counts sequences; a deviation at a clear step fails at once, too many unclear ones fail at the end."""

    noise: float
    n_sequences: int = 0
    unclear: list[str] = field(default_factory=list)

    def check(self, name: str, got: Sequence[int], reference: Sequence[int], margins: Sequence[float]) -> None:
        self.n_sequences += 1
        pairs = zip(got, reference, strict=False)
        step = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if step is None:
            assert len(got) == len(reference), f"{name}: {len(got)} tokens instead of {len(reference)}"
            return
        assert margins[step] < self.noise, (
            f"{name}: token {got[step]} instead of {reference[step]} at step {step}, where the margin is "
            f"{margins[step]:.3f} (noise {self.noise})"
        )
        self.unclear.append(f"{name} at step {step} (margin {margins[step]:.3f})")

    def finish(self, n_allowed: int) -> None:
        """`n_allowed` sequences may have parted at an unclear step: 2 %, and at least what a small set needs."""
        print(f"{self.n_sequences} sequences, {len(self.unclear)} parted at an unclear step: {self.unclear}")
        assert len(self.unclear) <= n_allowed, self.unclear
