"""Finding: what one check found in one case, as a value. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of the report."""

    check: str
    case: str
    verdict: Verdict
    compared: str
    """What was held against what."""
    n_tokens: int = 0
    """That were compared."""
    text: str = ""
    """What is wrong, why it was left out, or what a reader should know of it."""
    figures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def left_out(check: str, case: str, why: str) -> Finding:
    return Finding(check=check, case=case, verdict=Verdict.LEFT_OUT, compared="", text=why)
