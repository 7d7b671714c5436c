"""The random protocol histories of test_histories.py with a drafter: answers stay those of plain decoding, whatever is
cancelled, suspended, restored, moved between device, host and disk, or parked between drafts.

Random drafters are nearly always wrong, so nearly every step goes back; the n-gram lookup's drafts and those of the
packaged drafter are often right.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from luce.protocol import ReadyLine
from tests.daemon.conftest import Start
from tests.daemon.histories import Reference, make_prompts, make_references
from tests.daemon.same_tokens import NOISE_CUTS, NOISE_CUTS_GPU, NOISE_RANDOM, noise_of_random
from tests.daemon.test_histories import play_batch
from tests.daemon.test_speculation import ARCHITECTURES, MOE
from tests.daemon_driver import DaemonDriver

N_HISTORIES = 5
N_HISTORIES_TINY = 2  # of the packaged model, whose tokens cost more, in the short form
N_BATCHES_FULL = 20
NOISE_CUTS_MOE = 4.0
"""Random experts where one run cuts the prompt at other positions than the other: 1.73 measured between two runs that
draft nothing (laguna), 3.05 between one that drafts in eight lanes and one that does not. Which rows of a call its last
ones are moves a sum by its last bits, that turns a rounding of an activation to eight bits, and this an expert."""
KINDS = [
    ("qwen3", "drafts/simple-qwen3", "draft"),
    ("qwen35", "qwen35", "draft"),  # with a recurrent state of its own, and nearly always right
    ("qwen3", "drafts/eagle3-qwen3", "eagle3"),
    ("qwen35", "drafts/eagle3-qwen35", "eagle3"),
    ("qwen35", "drafts/mtp-qwen35", "mtp"),
    ("qwen35_mtp", "", "mtp"),  # the heads in the model's own file
    ("gemma4", "drafts/assistant-gemma4", "assistant"),
]
"""Target, file of the draft, and what it is."""


Plain = dict[Path, tuple[list[Reference], ReadyLine]]


@pytest.fixture(scope="module")
def plain() -> Plain:
    """By model, once it has been asked: what each prompt is answered without drafts, and the ready line."""
    return {}


@pytest.mark.parametrize(
    ("architecture", "gate"),
    [
        *((architecture, "off") for architecture in ("tiny", *ARCHITECTURES)),
        ("tiny", "on"),
        *(pytest.param(architecture, "on", marks=pytest.mark.full_only) for architecture in ARCHITECTURES),
    ],
)
def test_random_histories(
    start: Start, plain: Plain, tiny_model: Path, packaged_draft: Path, test_models: Path, tmp_path: Path,
    architecture: str, gate: str, gpu: bool, full: bool,
) -> None:  # fmt: skip
    is_tiny = architecture == "tiny"
    model = tiny_model if is_tiny else test_models / f"{architecture}.gguf"
    draft = packaged_draft if is_tiny else test_models / "drafts" / f"dflash-{architecture}.gguf"
    noise = NOISE_CUTS if is_tiny else noise_of_random(architecture in MOE, gpu)
    if architecture in MOE:
        noise = max(noise, NOISE_CUTS_MOE)
    elif gpu and not is_tiny:
        noise = NOISE_CUTS_GPU
    drafting = ("--draft", str(draft), "--draft-adaptive", gate)
    seed, n = f"{architecture} with drafts {gate}", N_HISTORIES_TINY if is_tiny and not full else N_HISTORIES
    play(start, plain, model, drafting, "ngram+dflash", seed, tmp_path, noise, gpu, full, n)


@pytest.mark.parametrize(("architecture", "draft", "kind"), KINDS)
def test_random_histories_of_every_kind_of_draft_model(
    start: Start, plain: Plain, test_models: Path, tmp_path: Path, architecture: str, draft: str, kind: str, gpu: bool,
    full: bool,
) -> None:  # fmt: skip
    """Each carries over something else between drafts: rows of its own, the target's last feature, a state, or nothing
    but what the target's own cells hold."""
    model = test_models / f"{architecture}.gguf"
    source = ("--draft", str(test_models / f"{draft}.gguf")) if draft else ("--mtp",)
    noise = NOISE_CUTS_GPU if gpu else NOISE_RANDOM
    drafting = (*source, "--draft-adaptive", "off", "--draft-max", "4")
    # A seed by which the host has room for states in the one batch of the short form, too: most have to come back.
    seed = f"{architecture} with drafts of {kind}"
    play(start, plain, model, drafting, f"ngram+{kind}", seed, tmp_path, noise, gpu, full)


def play(
    start: Start, plain: Plain, model: Path, drafting: Sequence[str], spec: str, seed: str, tmp_path: Path,
    noise: float, gpu: bool, full: bool, n_histories: int = N_HISTORIES,
) -> None:  # fmt: skip
    """`spec`: what the daemon has to say that it drafts with."""
    if model not in plain:
        with closing(start("--lanes", "1", "--ctx", "256", "--draft-ngram", "off", model=model)) as alone:
            plain[model] = make_references(alone, make_prompts(1, 230)), alone.ready
    references, ready = plain[model]

    def start_with_drafter(*more: str, model: Path, mux: bool) -> DaemonDriver:
        """Of the lanes that the history would have every second time eight."""
        arguments = list(more)
        if batch % 2 == 0:
            arguments[arguments.index("--lanes") + 1] = "8"
        daemon = start(*drafting, *arguments, model=model, mux=mux)
        assert dict(daemon.ready.fields)["spec"] == spec
        return daemon

    for batch in range(N_BATCHES_FULL if full else 1):
        play_batch(
            start_with_drafter, model, references, ready, tmp_path, f"{seed} {batch}", n_histories, noise, gpu, full
        )
