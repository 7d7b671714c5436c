"""Data sets of two or three problems of our own, in the shape of the published ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HUMANEVAL: list[dict[str, Any]] = [
    {
        "task_id": "Made/0",
        "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """The sum."""\n',
        "entry_point": "total",
        "canonical_solution": "    return sum(numbers)\n",
        "test": "def check(candidate):\n    assert candidate([1, 2, 3]) == 6\n    assert candidate([]) == 0\n",
    },
    {
        "task_id": "Made/1",
        "prompt": 'def half(n):\n    return n / 2\n\n\ndef quarter(n):\n    """A quarter, by way of half."""\n',
        "entry_point": "quarter",
        "canonical_solution": "    return half(half(n))\n",
        "test": "def check(candidate):\n    assert candidate(8) == 2\n",
    },
]
GSM8K = [
    {"question": "Tom has 3 boxes of 4 pens. How many pens?", "answer": "3 * 4 = <<3*4=12>>12 pens.\n#### 12"},
    {"question": "A house costs $1,000 more than $249,000. How much?", "answer": "So.\n#### 250,000"},
]
MATH = [
    {"problem": "What is half of one?", "solution": "It is $\\boxed{\\frac{1}{2}}$.", "level": "Level 1"},
    {"problem": "Solve $x^2 = 4$ for $x > 0$.", "solution": "We get $x = \\boxed{2}$.", "answer": "2"},
]


def write_lines(path: Path, problems: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(problem) + "\n" for problem in problems).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def write_all(folder: Path) -> dict[str, Path]:
    return {
        "humaneval": write_lines(folder / "HumanEval.jsonl.gz", HUMANEVAL),
        "gsm8k": write_lines(folder / "gsm8k.jsonl", GSM8K),
        "math": write_lines(folder / "math.jsonl", MATH),
    }
