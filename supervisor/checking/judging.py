"""Judge: collects what one case of a check compared and demanded, and makes a Finding of it. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luce.supervisor.checking.finding import Finding, Verdict
from luce.supervisor.checking.same_tokens import AnswerTokens, Comparison


@dataclass
class Judge:
    check: str
    case: str
    compared: str
    noise: float
    demands: list[str] = field(default_factory=list)
    """That were not met."""
    _comparison: Comparison = field(init=False)

    def __post_init__(self) -> None:
        self._comparison = Comparison(self.noise)

    def compare(self, name: str, got: AnswerTokens, reference: AnswerTokens) -> None:
        self._comparison.check(name, got, reference)

    def need(self, is_so: bool, otherwise: str) -> None:
        """What has to hold beside the tokens: mostly that what is to be checked has happened at all."""
        if not is_so:
            self.demands.append(otherwise)

    def finding(self, text: str = "", figures: Mapping[str, float] | None = None) -> Finding:
        """`text`: for a reader, where nothing is wrong."""
        comparison = self._comparison
        wrong = [*comparison.wrong, *self.demands]
        if comparison.too_many_ties():
            n_parted = len(comparison.near_ties)
            wrong.append(f"{n_parted} of {comparison.n_texts} answers part at near ties: {comparison.near_ties[0]}")
        notes = [text] if text else []
        if comparison.near_ties:
            notes.append(f"parts at a near tie ({comparison.near_ties[0]})")
        moved = {"largest_logprob_move": comparison.largest_move} if comparison.n_texts else {}
        return Finding(
            check=self.check,
            case=self.case,
            verdict=Verdict.FAILED if wrong else Verdict.PASSED,
            compared=self.compared,
            n_tokens=comparison.n_tokens,
            text="; ".join(wrong or notes),
            figures={**moved, **(figures or {})},
        )
