"""HumanEval (Chen et al. 2021): a function by its head and its description. Its own tests judge the answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from luce.supervisor.evaluating.question import Question, Reply, Scale, Scores, Task
from luce.supervisor.evaluating.tasks.published import read_data_set

_KEYS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
_N_ANSWER = 1024
_ASKED = "Complete this function. Answer with the whole function in one Python code block.\n\n```python\n{}```"
_BLOCK = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

RunCode = Callable[[str], bool]
"""Whether a program runs to its end."""


def human_eval_task(path: Path, n_most: int | None, run_code: RunCode) -> Task:
    """Raises DataSetError."""
    problems = read_data_set(path, _KEYS)[:n_most]

    def make(scale: Scale) -> Iterator[Question]:
        del scale
        for problem in problems:
            yield Question(
                task="humaneval",
                name=problem["task_id"],
                messages=[{"role": "user", "content": _ASKED.format(problem["prompt"])}],
                max_tokens=_N_ANSWER,
                judge=_Judge(problem, run_code),
                right=Reply(f"```python\n{problem['prompt']}{problem['canonical_solution']}```"),
            )

    return Task("humaneval", "humaneval", "Functions that pass their tests.", ("humaneval",), make)


class _Judge:
    def __init__(self, problem: dict[str, Any], run_code: RunCode) -> None:
        self._problem = problem
        self._run_code = run_code

    def __call__(self, reply: Reply) -> Scores:
        return {"humaneval": float(self._run_code(program(reply.text, self._problem)))}


def program(answer: str, problem: dict[str, Any]) -> str:
    """The answer's function and the tests of it. Where the answer has the body alone, the prompt is its head; where it
    has all, the prompt still brings what it imports and the functions before."""
    name, prompt = problem["entry_point"], problem["prompt"]
    code = code_of(answer, name)
    if re.search(rf"^\s*def\s+{re.escape(name)}\b", code, re.MULTILINE):
        before = prompt[: prompt.rfind(f"def {name}")]
        code = f"{before}\n{code}"
    else:
        code = prompt + code
    return f"{code}\n\n{problem['test']}\n\ncheck({name})\n"


def code_of(answer: str, name: str) -> str:
    """The block that has the function, else the first one, else all of it."""
    blocks: list[str] = _BLOCK.findall(answer)
    with_it = (block for block in blocks if re.search(rf"\bdef\s+{re.escape(name)}\b", block))
    return next(with_it, blocks[0] if blocks else answer)
