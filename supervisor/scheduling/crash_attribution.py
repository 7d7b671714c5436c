"""FailureCount: may this request run beside others, and is it to be given up? Pure.

Engines that die are counted for each request that was running in them. After two deaths in a row a request runs alone,
until it has brought some new tokens (`acquittal_tokens`). Three crashes of the engine's own making while nothing else
ran, or eight deaths of whatever cause (somebody outside may kill engines), and the request fails. Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

N_DEATHS_BEFORE_ALONE = 2
N_CRASHES_ALONE = 3
N_DEATHS_ALONE = 8
N_REFUSALS_BEFORE_ALONE = 8


@dataclass(slots=True)
class FailureCount:
    """Of one request, since it last went on."""

    n_deaths: int = 0
    n_alone: int = 0  # of these, those with nothing else running
    n_crashes_alone: int = 0  # of these, those by the engine's own fault
    n_refusals: int = 0  # by engines that had no room for it

    def note_death(self, *, alone: bool, own_fault: bool) -> None:
        """`own_fault`: the engine has crashed or hung; else somebody outside may have ended it."""
        self.n_deaths += 1
        self.n_alone += alone
        self.n_crashes_alone += alone and own_fault

    def note_error(self, *, alone: bool) -> None:
        """The engine could not carry this request and lives on."""
        self.note_death(alone=alone, own_fault=True)
        self.n_deaths = max(self.n_deaths, N_DEATHS_BEFORE_ALONE)

    def note_refusal(self, *, alone: bool) -> None:
        """The engine has no room for it as long as others run."""
        self.n_refusals += 1
        if alone:
            self.note_error(alone=True)

    def clear(self) -> None:
        """It has gone on."""
        self.n_deaths = self.n_alone = self.n_crashes_alone = self.n_refusals = 0

    @property
    def is_clear(self) -> bool:
        return self.n_deaths == self.n_refusals == 0

    @property
    def must_run_alone(self) -> bool:
        return self.n_deaths >= N_DEATHS_BEFORE_ALONE or self.n_refusals >= N_REFUSALS_BEFORE_ALONE

    @property
    def is_hopeless(self) -> bool:
        return self.n_crashes_alone >= N_CRASHES_ALONE or self.n_alone >= N_DEATHS_ALONE
