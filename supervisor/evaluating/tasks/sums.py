"""GSM8K (Cobbe et al. 2021) and MATH (Hendrycks et al. 2021): problems with one answer, compared as a number or as what
stands in the box. Pure but for the files that are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from luce.supervisor.evaluating.question import Question, Reply, Scale, Scores, Task
from luce.supervisor.evaluating.tasks.published import DataSetError, read_data_set

_N_ANSWER = 1024
_GSM8K = "{}\n\nThink step by step. Write the answer, a number, in the last line behind ####."
_MATH = "{}\n\nThink step by step. Write the answer as \\boxed{{…}} at the end."
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####\s*(-?\$?\d[\d,]*(?:\.\d+)?)")
# What says the same in another way.
_SPELLINGS = (
    (re.compile(r"\\(?:left|right|displaystyle|mathrm|,|;|!|:|\s)"), ""), (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\text\{([^{}]*)\}"), r"\1"), (re.compile(r"\\(?:%|\$)|\^\\circ|\^\{\\circ\}|[$%\s]"), ""),
    (re.compile(r"\\frac(\d)(\d)"), r"\\frac{\1}{\2}"), (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)  # fmt: skip
_PLAIN = re.compile(r"-?\d{1,99}(?:\.\d{1,99})?|-?\.\d{1,99}")
_FRACTION = re.compile(r"(-?)\\frac\{(-?\d{1,99})\}\{(\d{1,99})\}")


def gsm8k_task(path: Path, n_most: int | None) -> Task:
    """Raises DataSetError."""
    problems = read_data_set(path, ("question", "answer"))[:n_most]
    for number, problem in enumerate(problems, start=1):
        if _MARKED.search(problem["answer"]) is None:
            raise DataSetError(f"{path}, problem {number}: its answer has no number behind ####")
    return _task("gsm8k", "Word problems of sums.", problems, "question", _GSM8K, last_number, "answer")


def math_task(path: Path, n_most: int | None) -> Task:
    """`answer` is what MATH-500 has; in the first edition the solution's box has it. Raises DataSetError."""
    problems = read_data_set(path, ("problem", "solution"))[:n_most]
    for number, problem in enumerate(problems, start=1):
        if boxed(problem["solution"]) is None:
            raise DataSetError(f"{path}, problem {number}: its solution has no \\boxed{{…}}")
    return _task("math", "Problems of competitions.", problems, "problem", _MATH, boxed, "solution")


def _task(
    name: str, what: str, problems: list[dict[str, Any]], asked: str, template: str,
    answer_of: Callable[[str], str | None], solution: str,
) -> Task:  # fmt: skip
    def make(scale: Scale) -> Iterator[Question]:
        del scale
        for number, problem in enumerate(problems, start=1):
            yield Question(
                task=name,
                name=f"{number}",
                messages=[{"role": "user", "content": template.format(problem[asked])}],
                max_tokens=_N_ANSWER,
                judge=_Judge(name, answer_of, answer_of(problem[solution])),
                right=Reply(problem[solution]),
            )

    return Task(name, name, what, (name,), make)


class _Judge:
    def __init__(self, metric: str, answer_of: Callable[[str], str | None], expected: str | None) -> None:
        self._metric = metric
        self._answer_of = answer_of
        self._expected = expected

    def __call__(self, reply: Reply) -> Scores:
        said = self._answer_of(reply.text)
        is_right = said is not None and self._expected is not None and is_same_value(said, self._expected)
        return {self._metric: float(is_right)}


def last_number(text: str) -> str | None:
    """Behind ####, else the last one of all."""
    marked: list[str] = _MARKED.findall(text)
    numbers: list[str] = marked or _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def boxed(text: str) -> str | None:
    r"""What stands in the last \boxed{…}, with the braces in it."""
    begin = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if begin < 0:
        return None
    inside, depth = text[text.index("{", begin) + 1 :], 1
    for at, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return inside[:at]
    return None


def is_same_value(one: str, other: str) -> bool:
    a, b = _spelled(one), _spelled(other)
    return a == b or (_number(a) is not None and _number(a) == _number(b))


def _spelled(text: str) -> str:
    for pattern, plain in _SPELLINGS:
        text = pattern.sub(plain, text)
    return text.strip().rstrip(".")


def _number(text: str) -> Fraction | None:
    fraction = _FRACTION.fullmatch(text)
    if fraction is not None:
        sign, over, under = int(fraction[1] + "1"), int(fraction[2]), int(fraction[3])
        return Fraction(sign * over, under) if under else None
    return Fraction(text) if _PLAIN.fullmatch(text) else None
