"""Is an answer the same in every way that it may be computed: some checks of `luce check`, in short. Knows the checks
by name; how they compare is luce.supervisor.checking's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from luce.supervisor.checking.checks import CHECKS, Check, run_checks
from luce.supervisor.checking.finding import Finding
from luce.supervisor.checking.subject import Subject
from luce.supervisor.checking.workload import Scope, Work, works_of
from luce.supervisor.cli.fieldtest.privacy import cleaned
from luce.supervisor.cli.fieldtest.report import Exactness
from luce.supervisor.cli.fieldtest.step import Step
from luce.supervisor.cli.time_limit import TimeIsUp

PART = "exactness"
_NAMES = ("reuse", "restore", "lanes", "ngrams", "drafter")


def exactness_work(scope: Scope) -> Work:
    return sum(works_of(_NAMES, scope), Work())


class ExactnessPart:
    def __init__(self, subject: Subject, scope: Scope, left_s: Callable[[], float]) -> None:
        """`left_s`: how long it may still take."""
        self._subject = subject
        self._scope = scope
        self._left_s = left_s
        self._found: list[Finding] = []

    def steps(self) -> list[Step]:
        checks = {check.name: check for check in CHECKS}
        works = works_of(_NAMES, self._scope)
        return [
            Step(PART, checks[name].about, work, lambda check=checks[name]: self._run(check))  # type: ignore[misc]
            for name, work in zip(_NAMES, works, strict=True)
        ]

    def rows(self) -> list[Exactness]:
        return [
            Exactness(
                check=one.check,
                case=one.case,
                verdict=one.verdict.value,
                n_tokens=one.n_tokens,
                logprob_move=one.figures.get("largest_logprob_move"),
                told=cleaned(one.text),
            )
            for one in self._found
        ]

    def _run(self, check: Check) -> str:
        n_before = len(self._found)
        asyncio.run(self._check(check))
        return _in_words(self._found[n_before:])

    async def _check(self, check: Check) -> None:
        """A signal is no way to end what waits in an event loop: this has its own limit. Raises TimeIsUp."""
        try:
            async with asyncio.timeout(self._left_s()) as limit:
                await run_checks(self._subject, [check], self._found)
        except TimeoutError:
            if limit.expired():
                raise TimeIsUp from None
            raise


def _in_words(found: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(one.verdict.value for one in found))
