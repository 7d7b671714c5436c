"""What drafts bring by kind of text: the same prompts at a server with drafts and at one without, round by round. Knows
servers, no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from luce.supervisor.checking.workload import Work
from luce.supervisor.cli.fieldtest.report import Drafted
from luce.supervisor.cli.fieldtest.serving import Asked, Serving
from luce.supervisor.cli.fieldtest.step import Step
from luce.supervisor.cli.fieldtest.volume import Volume

PART = "drafts"
_N_PROMPT = 300  # tokens, about
_CODE = '''\
def invoice(items, discounts, country):
    """The sum of an invoice in cents, with its tax."""
    total = 0
    for item in items:
        price = item["price"] * item["count"]
        if item["name"] in discounts:
            price -= price * discounts[item["name"]] // 100
        total += price
    if country == "NO":
        tax = total * 25 // 100
    elif country == "DE":
        tax = total * 19 // 100
    else:
        tax = 0
    total += tax
    return {"total": total, "tax": tax, "country": country}
'''
KINDS = {
    "edit": f"```python\n{_CODE}```\nWrite this file again, all of it, with the variable total renamed to amount.",
    "chat": "Explain to a child why the sky is blue by day and red in the evening.",
    "json": "Write five made-up books as a JSON array of objects with the keys title, author, year and pages.",
}


class DraftsPart:
    def __init__(self, serving: Serving, volume: Volume, *, has_gpu: bool) -> None:
        self._has_gpu = has_gpu
        self._serving = serving
        self._volume = volume
        self._asked: dict[tuple[str, int, bool], Asked] = {}

    def steps(self) -> list[Step]:
        """The server with drafts and the one without begin in turns, each fresh."""
        steps = []
        for turn in range(self._volume.n_draft_rounds):
            for has_drafts in (True, False) if turn % 2 == 0 else (False, True):
                with_them = "with drafts" if has_drafts else "without drafts"
                steps.append(Step(PART, f"load, {with_them}", Work(1), self._start(has_drafts)))
                work = Work(0, _N_PROMPT, self._volume.n_draft_answer)
                steps += [Step(PART, f"{kind}, {with_them}", work, self._ask(kind, turn, has_drafts)) for kind in KINDS]
        return steps

    def rows(self) -> list[Drafted]:
        return [row for kind in KINDS if (row := self._row(kind)) is not None]

    def _row(self, kind: str) -> Drafted | None:
        """None: there is no pair with rates."""
        turns = range(self._volume.n_draft_rounds)
        both = [
            (self._asked[kind, turn, True], self._asked[kind, turn, False])
            for turn in turns
            if (kind, turn, True) in self._asked and (kind, turn, False) in self._asked
        ]
        rates = [(a.decoded_per_s, b.decoded_per_s) for a, b in both]
        pairs = [(a, b) for a, b in rates if a is not None and b is not None]
        if not pairs:
            return None
        busy = [b.busy_s / a.busy_s for a, b in both if a.busy_s > 0]
        first = both[0][0]
        return Drafted(
            kind=kind,
            drafted_per_s=median(a for a, _ in pairs),
            plain_per_s=median(b for _, b in pairs),
            ratio=_spread([a / b for a, b in pairs]),
            busy_ratio=_spread(busy) if busy and not self._has_gpu else None,
            n_drafted=first.n_drafted,
            n_accepted=first.n_accepted,
            is_same_text=all(a.answer.content == b.answer.content for a, b in both),
        )

    def _start(self, has_drafts: bool) -> Callable[[], str]:
        return lambda: f"{self._serving.start(has_drafts=has_drafts):.1f} s"

    def _ask(self, kind: str, turn: int, has_drafts: bool) -> Callable[[], str]:
        def ask() -> str:
            messages = [{"role": "user", "content": KINDS[kind]}]
            asked = self._serving.ask(messages, self._volume.n_draft_answer)
            self._asked[kind, turn, has_drafts] = asked
            rate = asked.decoded_per_s
            return f"{asked.n_answer} tokens" + ("" if rate is None else f", {rate:,.1f} a second")

        return ask


def _spread(ratios: Sequence[float]) -> list[float]:
    return [median(ratios), min(ratios), max(ratios)]
