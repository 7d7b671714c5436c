"""Each check passes on the real engine and fails on one with a fault, for the reason that the fault is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from luce.supervisor.checking.checks import CHECKS
from luce.supervisor.checking.engines import Tally
from luce.supervisor.checking.finding import Verdict
from luce.supervisor.checking.workload import Scope, works_of
from tests.checking.conftest import N_CTX, VOLUME, RunCheck
from tests.checking.faulty_luced import FAULTS

SEEDED = [
    ("reuse", "DamagedMemory", "logprob|margin"),
    ("reuse", "NothingReused", "only 0 of 256 tokens were reused"),
    ("restore", "DamagedSnapshot", "logprob|margin"),
    ("restore", "SnapshotIgnored", "the engine went on from None"),
    ("park", "WrongAfterPark", "token 5 is"),
    ("park", "NothingReused", "only 0 of 256 tokens were reused"),
    ("disk", "DamagedOnDisk", "logprob|margin"),
    ("disk", "DamagedFiles", "not from disk"),
    ("suspend", "LostToken", "token 5 is|logprob of token 5"),
    ("suspend", "RoomyPool", "neither was set aside"),
    ("paging", "DamagedInPool", "logprob|margin"),
    ("paging", "NothingReused", "it did not come back from the host"),
    ("lanes", "WrongInLanes", "token 5 is"),
    ("lanes", "OneLane", "no two of them were ever computed together"),
    ("ngrams", "WrongDrafts", "token 5 is"),
    ("ngrams", "NoDrafts", "nothing was drafted"),
    ("drafter", "WrongDrafts", "token 5 is"),
    ("sampling", "OtherSeeds", "are not those of the same seed without drafts, nor part from them at a near tie"),
    ("sampling", "OtherDistribution", "are of another distribution"),
    ("sampling", "NoDrafts", "nothing was drafted"),
    ("conversation", "EmptyAnswers", "gone on with: the answer is empty"),
    ("conversation", "NoNumbers", "is no number"),
    ("kv-type", "CoarseCache", "mean KL"),
    ("kv-type", "DamagedCache", "mean KL"),
]


def test_every_check_has_a_fault_and_every_fault_a_check() -> None:
    assert {check for check, _, _ in SEEDED} == {check.name for check in CHECKS}
    assert {fault for _, fault, _ in SEEDED} == set(FAULTS)


def check_expected(name: str, tally: Tally) -> None:
    """How long a check takes is foretold by what it is expected to do. References may be there already."""
    scope = Scope(VOLUME, VOLUME.lengths, N_CTX, has_drafter=True, has_drafts=True)
    least = works_of(["reuse", name], scope)[1]
    most = least + scope.references + scope.in_lanes
    assert least.n_starts <= tally.n_starts <= most.n_starts
    assert least.n_read / 2 <= tally.n_read <= 2 * most.n_read
    if name != "conversation":  # where the model ends answers by itself
        assert least.n_written / 2 <= tally.n_written <= 2 * most.n_written


@pytest.mark.parametrize("name", [check.name for check in CHECKS])
async def test_the_real_engine_passes(run_check: RunCheck, name: str) -> None:
    tally = Tally()
    findings = await run_check(name, tally=tally)
    assert [finding for finding in findings if finding.verdict is Verdict.FAILED] == []
    assert any(finding.verdict is Verdict.PASSED and finding.n_tokens > 0 for finding in findings)
    check_expected(name, tally)


# In short form the first fault of each check.
FIRST = {check: fault for check, fault, _ in reversed(SEEDED)}


@pytest.mark.parametrize(
    ("name", "fault", "said"),
    [pytest.param(*one, marks=[] if FIRST[one[0]] == one[1] else [pytest.mark.full_only]) for one in SEEDED],
)
async def test_a_fault_fails_its_check(run_check: RunCheck, name: str, fault: str, said: str) -> None:
    failed = [finding for finding in await run_check(name, fault=fault) if finding.verdict is Verdict.FAILED]
    assert failed
    assert any(re.search(said, finding.text) for finding in failed), failed


async def test_what_is_packed_in_the_host_is_compared_too(run_check: RunCheck) -> None:
    """With more positions than a short text has room for."""
    volume = replace(VOLUME, n_positions=48, most_kl=None, most_changed=0.1)
    device, host = await run_check("kv-type", volume=volume, outside="tq3")
    assert [device.verdict, host.verdict] == [Verdict.PASSED] * 2, (device, host)
    assert host.figures["mean_kl"] > device.figures["mean_kl"] > 0
    few = replace(volume, n_positions=2)
    *_, nowhere = await run_check("kv-type", volume=few, outside="tq3", fault="NothingReused")
    assert nowhere.verdict is Verdict.FAILED
    assert "not from the host: nothing was checked" in nowhere.text


async def test_a_format_that_changes_many_likeliest_tokens_fails_whatever_its_mean(run_check: RunCheck) -> None:
    """Another text in one place is more than rounding: with a KL limit beyond it, the changed tokens tell."""
    far = replace(VOLUME, most_kl=100.0)
    (found,) = await run_check("kv-type", volume=far, fault="DamagedCache")
    assert found.figures["clearly_changed"] > 0.05
    assert found.verdict is Verdict.FAILED
    assert "where f16 is clear: more than 5% of all (--max-changed)" in found.text
    (found,) = await run_check("kv-type", volume=replace(far, most_changed=1.0), fault="DamagedCache")
    assert found.verdict is Verdict.PASSED
    assert re.match(r"answers change: mean KL .* another token is the likeliest at \d+ of 12 places", found.text)
