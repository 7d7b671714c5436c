"""What counts as right: numbers and boxes that are spelled otherwise, code as models write it, calls by their schema.
And what is no data set."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from luce.supervisor.evaluating.code_runner import can_be_alone, runs_to_its_end
from luce.supervisor.evaluating.question import Call, Reply, Scale, share_found
from luce.supervisor.evaluating.tasks import GENERATED
from luce.supervisor.evaluating.tasks.human_eval import human_eval_task, program
from luce.supervisor.evaluating.tasks.published import DataSetError
from luce.supervisor.evaluating.tasks.replay import words_in_common
from luce.supervisor.evaluating.tasks.sums import boxed, gsm8k_task, is_same_value, last_number, math_task
from luce.supervisor.evaluating.tasks.tool_calls import ADD, READ_FILE, WEATHER
from luce.supervisor.evaluating.tasks.tool_schemas import is_well_formed
from tests.evaluating.published import GSM8K, HUMANEVAL, MATH, write_lines


def test_naming_everything_earns_little() -> None:
    assert share_found(["a"], ["a"]) == 1
    assert share_found(["a", "b"], ["a"]) == 0.5
    assert share_found(["a"], ["a", "b", "c", "d"]) == 0.25
    assert share_found(["a"], []) == 0


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("first 3, then 12", "12"),
        ("#### 7\nthat is 3 more", "7"),
        ("It costs $1,250.", "$1,250"),
        ("-4 degrees", "-4"),
        ("none", None),
    ],
)
def test_the_number_that_counts(said: str, number: str | None) -> None:
    assert last_number(said) == number


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("\\frac{1}{2}", "\\dfrac12", True),
        ("0.5", "\\frac{1}{2}", True),
        ("-\\frac{3}{4}", "-0.75", True),
        ("250000", "250,000", True),
        ("$12", "12.00", True),
        ("\\left( 1, 2 \\right)", "(1,2)", True),
        ("90^\\circ", "90", True),
        ("5\\text{ cm}", "5cm", True),
        ("(1,2)", "12", False),
        ("x^2", "x^3", False),
        ("\\frac{1}{0}", "1", False),
        ("1e99999999", "2e99999999", False),
    ],
)
def test_values_that_are_spelled_otherwise(one: str, other: str, is_same: bool) -> None:
    assert is_same_value(one, other) is is_same


def test_the_box_has_its_braces() -> None:
    assert boxed("first \\boxed{1}, no, \\boxed{\\frac{1}{2}} it is") == "\\frac{1}{2}"
    assert boxed("\\boxed{cut off") is None
    assert boxed("none") is None


@pytest.mark.parametrize(
    "answer",
    [
        "Here:\n```python\ndef total(numbers):\n    return sum(numbers)\n```\nIt adds them.",
        "```\n# nothing\n```\n```py\ndef total(numbers):\n    return sum(numbers)\n```",
        "def total(numbers):\n    return sum(numbers)",
        "    return sum(numbers)",
        "```python\n    return sum(numbers)\n```",
        "```python\ndef total(numbers: List[int]) -> int:\n    return sum(numbers)\n",
    ],
)
def test_code_as_models_write_it(answer: str) -> None:
    assert runs_to_its_end(program(answer, HUMANEVAL[0]))


def test_functions_before_are_there() -> None:
    assert runs_to_its_end(program("```python\ndef quarter(n):\n    return half(half(n))\n```", HUMANEVAL[1]))


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "x = [0] * (1 << 29)",
        "open('big', 'w').write('x' * (1 << 22))",
        "def f(): f()\nf()",
        "input()",
        "this is no code",
    ],
)
def test_code_that_does_not_reach_its_end(code: str) -> None:
    assert not runs_to_its_end(code)


def test_code_has_no_network_where_the_kernel_allows_it() -> None:
    if not can_be_alone():
        pytest.skip("left out: this kernel gives no namespaces to users")
    assert runs_to_its_end("import socket; assert [name for _, name in socket.if_nameindex()] == ['lo']")


def test_processes_that_code_starts_end_with_it(tmp_path: Path) -> None:
    """A pipe has no writer any more."""
    if not can_be_alone():
        pytest.skip("left out: this kernel gives no namespaces to users")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    code = f"import os, time\nos.open({str(pipe)!r}, os.O_WRONLY)\nos.fork() or (os.setsid(), time.sleep(60))\n"
    try:
        assert runs_to_its_end(code)
        assert os.read(reader, 1) == b"", "somebody would still write"
    finally:
        os.close(reader)


@pytest.mark.parametrize(
    ("call", "is_good"),
    [
        (Call("read_file", '{"path": "a.py"}'), True),
        (Call("read_file", '{"path": 5}'), False),
        (Call("read_file", "{}"), False),
        (Call("read_file", '["a.py"]'), False),
        (Call("read_file", '{"path": "a.py", "other": 1}'), False),
        (Call("add", '{"a": 1, "b": 2}'), True),
        (Call("add", '{"a": 1, "b": true}'), False),
        (Call("get_weather", '{"city": "Oslo", "unit": "celsius"}'), True),
        (Call("get_weather", '{"city": "Oslo", "unit": "kelvin"}'), False),
        (Call("no_such_tool", "{}"), False),
    ],
)
def test_calls_by_their_schema(call: Call, is_good: bool) -> None:
    assert is_well_formed(Reply(calls=(call,)), [READ_FILE, ADD, WEATHER]) is is_good


def test_words_in_common() -> None:
    assert words_in_common("I have read it.", "i HAVE read it") == 1
    assert words_in_common("one two", "two three") == 0.5
    assert words_in_common("", "") == 1
    assert words_in_common("", "x") == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"{", "line 1: no JSON"),
        (b'{"question": "x"}', "no text under answer"),
        (b'{"question": "x", "answer": 5}', "no text under answer"),
        (b"[]", "no text under"),
        (b'{"question": "x", "answer": "five"}', "no number behind ####"),
        (b"\xff\xfe", "UTF-8"),
        (b"\x1f\x8bxx", ""),
    ],
)
def test_what_is_no_data_set(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "it.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataSetError, match=r"it\.jsonl") as error:
        gsm8k_task(path, None)
    assert said in str(error.value)


def test_so_many_problems_and_no_more(tmp_path: Path) -> None:
    scale = Scale((), 0, 0, 0, 4.0)
    for task in (
        gsm8k_task(write_lines(tmp_path / "g.jsonl", GSM8K), 1),
        math_task(write_lines(tmp_path / "m.jsonl", MATH), 1),
        human_eval_task(write_lines(tmp_path / "h.jsonl", HUMANEVAL), 1, runs_to_its_end),
    ):
        assert len(list(task.make(scale))) == 1
    with pytest.raises(DataSetError, match="boxed"):
        math_task(write_lines(tmp_path / "b.jsonl", [{"problem": "x", "solution": "y"}]), None)


def test_a_seed_draws_the_same_questions_and_another_others() -> None:
    def asked(seed: int) -> list[str]:
        scale = Scale((400,), 2, 6, seed, 4.0)
        return [json.dumps(question.messages) for task in GENERATED for question in task.make(scale)]

    assert asked(1) == asked(1)
    assert not set(asked(1)) & set(asked(2)) - {text for text in asked(1) if len(text) < 200}


def test_long_texts_are_as_long_as_asked_for() -> None:
    scale = Scale((500, 3000, 20000), 1, 0, 1, 4.0)
    for task in GENERATED:
        for question in task.make(scale):
            if question.length is not None:
                n_tokens = len(question.messages[0]["content"]) / scale.chars_per_token
                assert 0.7 * question.length < n_tokens < 1.4 * question.length, question.name
