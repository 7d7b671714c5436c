"""Every task has full marks where a server answers rightly, and loses them where a fault is seeded: each fault is one
that the task is there to find, and lowers the metrics that it should, and no others."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from luce.supervisor.cli.evaluation.sides import ServerSide
from luce.supervisor.cli.server_client import ServerClient
from luce.supervisor.evaluating.code_runner import runs_to_its_end
from luce.supervisor.evaluating.question import Call, Question, Reply, Scale, Task
from luce.supervisor.evaluating.results import Results
from luce.supervisor.evaluating.run import ask_all
from luce.supervisor.evaluating.tasks import GENERATED
from luce.supervisor.evaluating.tasks.human_eval import human_eval_task
from luce.supervisor.evaluating.tasks.replay import replay_task
from luce.supervisor.evaluating.tasks.sums import gsm8k_task, math_task
from luce.supervisor.evaluating.transcripts import find_transcripts, read_transcript
from tests.evaluating.oracle import Fault, Oracle, oracle
from tests.evaluating.published import write_all

TRANSCRIPTS = Path(__file__).resolve().parents[1] / "data" / "transcripts"


@pytest.fixture(scope="module")
def server() -> Iterator[Oracle]:
    with oracle() as running:
        yield running


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    files = write_all(tmp_path_factory.mktemp("published"))
    sessions = [read_transcript(path) for path in find_transcripts([TRANSCRIPTS])]
    return {task.name: task for task in GENERATED} | {
        "replay": replay_task([]),
        "recorded": replay_task(sessions),
        "humaneval": human_eval_task(files["humaneval"], None, runs_to_its_end),
        "gsm8k": gsm8k_task(files["gsm8k"], None),
        "math": math_task(files["math"], None),
    }


def evaluate(server: Oracle, task: Task, fault: Fault | None, n_at_once: int = 1) -> dict[str, float]:
    """Its shares, by metric."""
    server.fault = fault or (lambda _, reply: reply)
    side = ServerSide("it", ServerClient(server.url, None), "default", 0)
    scale = Scale((300, 900), 3, 12, 7, side.chars_per_token(task.sample) if task.sample else 1.0)
    questions = server.learn(task.make(scale))
    results = Results({"it": server.url}, [task], {}, {})
    results.asked.extend(ask_all([side], questions, n_at_once))
    assert len(results.asked) == len(questions)
    return {row.metric: row.score.value for row in results.score_rows() if row.length is None}


# Faults


def asked_text(question: Question) -> str:
    return str(question.messages[-1]["content"])


def another_code(_: Question, reply: Reply) -> Reply:
    return Reply(re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), reply.text))


def all_codes(question: Question, _: Reply) -> Reply:
    """Everything that it has read."""
    return Reply(" ".join(re.findall(r"\d{5}", asked_text(question))))


def first_only(_: Question, reply: Reply) -> Reply:
    return Reply(reply.text.split(",")[0])


def another_owners(question: Question, reply: Reply) -> Reply:
    """What a text says of somebody else."""
    others = [code for code in re.findall(r"\d{5}", asked_text(question)) if code not in reply.text]
    return Reply(others[0])


def other_chain(question: Question, reply: Reply) -> Reply:
    names = set(re.findall(r"VAR ([A-Z]{5})", asked_text(question))) - set(reply.text.split(", "))
    return Reply(", ".join(sorted(names)))


def last_words(question: Question, reply: Reply) -> Reply:
    listed = re.findall(r"[a-z]+", asked_text(question).partition("\n\n")[0])
    return Reply(", ".join(word for word in dict.fromkeys(listed) if word not in reply.text))


def changed_call(reply: Reply, name: str | None = None, arguments: str | None = None) -> Reply:
    if not reply.calls:
        return reply
    call = reply.calls[0]
    return Reply(reply.text, (Call(name or call.name, arguments or call.arguments), *reply.calls[1:]))


def cut_off(_: Question, reply: Reply) -> Reply:
    """Arguments that end too early."""
    return changed_call(reply, arguments=reply.calls[0].arguments[:-1]) if reply.calls else reply


def as_words(_: Question, reply: Reply) -> Reply:
    """A call that the server did not take for one."""
    if not reply.calls:
        return reply
    call = reply.calls[0]
    return Reply(f'<tool_call>{{"name": "{call.name}", "arguments": {call.arguments}}}')


def unknown_argument(_: Question, reply: Reply) -> Reply:
    return changed_call(reply, arguments=json.dumps({"nothing": 1}))


def another_tool(question: Question, reply: Reply) -> Reply:
    """A good call, but of the wrong tool."""
    if not reply.calls:
        return reply
    for tool in (tool["function"] for tool in question.tools):
        properties = tool["parameters"]["properties"]
        if tool["name"] != reply.calls[0].name and all(p.get("type") == "string" for p in properties.values()):
            arguments = {name: (schema.get("enum") or ["x"])[0] for name, schema in properties.items()}
            return changed_call(reply, tool["name"], json.dumps(arguments))
    return changed_call(reply, "none_of_them")


def another_value(question: Question, reply: Reply) -> Reply:
    """The right tool with something else."""
    if not reply.calls:
        return reply
    tool = next(tool["function"] for tool in question.tools if tool["function"]["name"] == reply.calls[0].name)
    arguments = json.loads(reply.calls[0].arguments)
    for name, value in arguments.items():
        choices = [choice for choice in tool["parameters"]["properties"][name].get("enum", ()) if choice != value]
        match value:
            case str():
                arguments[name] = choices[0] if choices else f"{value}x"
            case int():
                arguments[name] = value + 1
    return changed_call(reply, arguments=json.dumps(arguments))


def twice(_: Question, reply: Reply) -> Reply:
    """The same call again and again."""
    return dataclasses.replace(reply, calls=reply.calls * 2)


def other_words(_: Question, reply: Reply) -> Reply:
    return reply if reply.calls else Reply("Zzz.")


def nothing(_: Question, __: Reply) -> Reply:
    return Reply()


def leaves_early(_: Question, reply: Reply) -> Reply:
    """As if all had gone well."""
    return Reply(reply.text.replace("```python\n", "```python\nimport os\nos._exit(0)\n"))


def forever(_: Question, reply: Reply) -> Reply:
    return Reply(reply.text.replace("    return", "    while True: pass\n    return", 1))


ALL_TOOLS = ("tools-formed", "tools-name", "tools-arguments")
CASES: list[tuple[str, Fault, Sequence[str]]] = [
    ("needle", another_code, ["needle"]),
    ("needle", nothing, ["needle"]),
    ("needle-many", another_owners, ["needle-many"]),
    ("needle-many", all_codes, ["needle-many"]),
    ("needle-hop", another_owners, ["needle-hop"]),
    ("multi-key", all_codes, ["multi-key"]),
    ("multi-key", another_owners, ["multi-key"]),
    ("multi-value", first_only, ["multi-value"]),
    ("multi-query", first_only, ["multi-query"]),
    ("multi-query", all_codes, ["multi-query"]),
    ("variables", other_chain, ["variables"]),
    ("variables", first_only, ["variables"]),
    ("common-words", last_words, ["common-words"]),
    ("frequent-words", last_words, ["frequent-words"]),
    ("tools", cut_off, ALL_TOOLS),
    ("tools", as_words, ALL_TOOLS),
    ("tools", unknown_argument, ALL_TOOLS),
    ("tools", nothing, ALL_TOOLS),
    ("tools", another_tool, ALL_TOOLS[1:]),
    ("tools", twice, ALL_TOOLS[1:]),
    ("tools", another_value, ALL_TOOLS[2:]),
    ("replay", as_words, ["replay-formed", "replay-tool", "replay-arguments"]),
    ("replay", cut_off, ["replay-formed", "replay-arguments"]),
    ("replay", another_value, ["replay-arguments"]),
    ("replay", other_words, ["replay-text"]),
    ("replay", nothing, ["replay-formed", "replay-tool", "replay-arguments", "replay-text"]),
    ("recorded", another_tool, ["replay-tool", "replay-arguments"]),
    ("recorded", other_words, ["replay-text"]),
    ("humaneval", leaves_early, ["humaneval"]),
    ("humaneval", other_words, ["humaneval"]),
    ("gsm8k", another_code, ["gsm8k"]),
    ("math", another_code, ["math"]),
]


@pytest.mark.parametrize(("name", "fault", "lowered"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_a_fault_is_found(
    server: Oracle, tasks: dict[str, Task], name: str, fault: Fault, lowered: Sequence[str]
) -> None:
    right, wrong = evaluate(server, tasks[name], None), evaluate(server, tasks[name], fault)
    assert set(right) == set(tasks[name].metrics)
    assert set(right.values()) == {1.0}
    assert {metric for metric, share in wrong.items() if share < 0.75} == set(lowered)


def test_every_task_has_a_fault(tasks: dict[str, Task]) -> None:
    assert {name for name, _, _ in CASES} == tasks.keys()


def test_code_without_an_end_is_stopped(tasks: dict[str, Task]) -> None:
    question = next(iter(tasks["humaneval"].make(Scale((), 0, 0, 0, 4.0))))
    program = forever(question, question.right).text.removeprefix("```python\n").removesuffix("```")
    assert runs_to_its_end(program, limit_s=2.0), "it is only defined"
    assert not runs_to_its_end(program + "\ntotal([])\n", limit_s=2.0)


def test_questions_at_once_give_the_same(server: Oracle, tasks: dict[str, Task]) -> None:
    assert evaluate(server, tasks["needle-many"], None, 4) == {"needle-many": 1.0}
