"""The random protocol histories of test_histories.py with a drafter: answers stay those of plain decoding, whatever is
cancelled, suspended, restored, moved between device, host and disk, or parked between drafts.

Random drafters are nearly always wrong, so nearly every step goes back; the n-gram lookup's drafts and those of the
packaged drafter are often right.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.conftest import Start
from tests.daemon.histories import make_prompts, make_references
from tests.daemon.same_tokens import NOISE_CUTS, NOISE_CUTS_GPU, noise_of_random
from tests.daemon.test_histories import play_batch
from tests.daemon.test_speculation import ARCHITECTURES, MOE
from tests.daemon_driver import DaemonDriver

N_HISTORIES = 5
N_BATCHES_FULL = 20
NOISE_CUTS_MOE = 2.5
"""Random experts where one run cuts the prompt at other positions than the other: 1.73 measured between two runs that
draft nothing (laguna)."""


@pytest.mark.parametrize("gate", ["off", "on"])
@pytest.mark.parametrize("architecture", ["tiny", *ARCHITECTURES])
def test_random_histories(
    start: Start, tiny_model: Path, packaged_draft: Path, test_models: Path, tmp_path: Path, architecture: str,
    gate: str, gpu: bool, full: bool,
) -> None:  # fmt: skip
    is_tiny = architecture == "tiny"
    model = tiny_model if is_tiny else test_models / f"{architecture}.gguf"
    draft = packaged_draft if is_tiny else test_models / "drafts" / f"dflash-{architecture}.gguf"
    with closing(start("--lanes", "1", "--ctx", "256", "--draft-ngram", "off", model=model)) as alone:
        references = make_references(alone, make_prompts(1, 230))
        ready = alone.ready
    noise = NOISE_CUTS if is_tiny else noise_of_random(architecture in MOE, gpu)
    if architecture in MOE:
        noise = max(noise, NOISE_CUTS_MOE)
    elif gpu and not is_tiny:
        noise = NOISE_CUTS_GPU

    def start_with_drafter(*more: str, model: Path, mux: bool) -> DaemonDriver:
        """Of the lanes that the history would have every second time eight."""
        arguments = list(more)
        if batch % 2 == 0:
            arguments[arguments.index("--lanes") + 1] = "8"
        drafting = ("--draft", str(draft), "--draft-gate", gate)
        daemon = start(*drafting, *arguments, model=model, mux=mux)
        assert dict(daemon.ready.fields)["spec"] == "ngram+dflash"
        return daemon

    for batch in range(N_BATCHES_FULL if full else 1):
        seed = f"{architecture} with drafts {gate} {batch}"
        play_batch(start_with_drafter, model, references, ready, tmp_path, seed, N_HISTORIES, noise, gpu, full)
