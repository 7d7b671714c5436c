"""The checks by name, and how they run: one after the other, each with engines of its own. One whose engine fails is
failed, and the next one begins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from luce.protocol import ProtocolError
from luce.supervisor.checking.conversation import check_conversation
from luce.supervisor.checking.finding import Finding, Verdict
from luce.supervisor.checking.kv_types import check_kv_type
from luce.supervisor.checking.memory import check_disk, check_park, check_restore, check_reuse
from luce.supervisor.checking.pressure import check_paging, check_suspend
from luce.supervisor.checking.sampling import check_sampling
from luce.supervisor.checking.speculation import check_drafter, check_lanes, check_ngrams
from luce.supervisor.checking.subject import Subject
from luce.supervisor.engine.generation import EngineDied, EngineError
from luce.supervisor.engine.process import StartError


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    about: str
    run: Callable[[Subject], AsyncIterator[Finding]]


CHECKS = (
    Check("reuse", "a prompt whose beginning is remembered, and one that is remembered whole", check_reuse),
    Check("restore", "snapshots that were taken on the way, restored", check_restore),
    Check("park", "texts after the device's memory was given back and taken again", check_park),
    Check("disk", "texts after a restart, from --disk-cache", check_disk),
    Check("suspend", "answers that are set aside for each other in a pool that is too small", check_suspend),
    Check("paging", "texts in a bounded pool (--kv-offload) that they leave and come back to", check_paging),
    Check("lanes", "several answers at once", check_lanes),
    Check("ngrams", "drafts copied from earlier text, alone and in lanes", check_ngrams),
    Check("drafter", "drafts of --draft or --mtp, alone and in lanes", check_drafter),
    Check("sampling", "sampled answers with drafts: the same seeds, and chi-square with others", check_sampling),
    Check("conversation", "a conversation that grows: no answer is empty, no logprob is no number", check_conversation),
    Check("kv-type", "KL divergence of the KV type in use against f16", check_kv_type),
)


async def run_checks(
    subject: Subject,
    checks: Sequence[Check],
    findings: list[Finding],
    on_check: Callable[[Check, Sequence[Finding]], None] = lambda _check, _found: None,
) -> None:
    """Appends to `findings` what is found, as soon as it is; who cancels it has all up to there. `on_check` gets those
    of each check when it is through."""
    for check in checks:
        n_before = len(findings)
        begun_s = time.monotonic()
        try:
            async for finding in check.run(subject):
                findings.append(replace(finding, seconds=time.monotonic() - begun_s))
                begun_s = time.monotonic()
        except (StartError, EngineError, EngineDied, ProtocolError, TimeoutError, OSError) as error:
            text = f"the engine failed: {str(error) or type(error).__name__}"
            seconds = time.monotonic() - begun_s
            findings.append(
                Finding(check=check.name, case="", verdict=Verdict.FAILED, compared="", text=text, seconds=seconds)
            )
        on_check(check, findings[n_before:])
