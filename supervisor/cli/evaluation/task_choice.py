"""What `luce eval` asks: the tasks that were chosen, with the files that the user has. Reads these files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, Failure
from luce.supervisor.evaluating.code_runner import runs_to_its_end
from luce.supervisor.evaluating.question import Task
from luce.supervisor.evaluating.tasks import GENERATED
from luce.supervisor.evaluating.tasks.human_eval import human_eval_task
from luce.supervisor.evaluating.tasks.published import DataSetError
from luce.supervisor.evaluating.tasks.replay import replay_task
from luce.supervisor.evaluating.tasks.sums import gsm8k_task, math_task
from luce.supervisor.evaluating.transcripts import Session, find_transcripts, read_transcript

DATA_SETS = ("humaneval", "gsm8k", "math")


def choose_tasks(values: Mapping[str, Any], n_problems: int | None) -> list[Task]:
    """Those that --tasks names, else all that there are questions for. Raises Failure or UsageError."""
    tasks = [*GENERATED, replay_task(_sessions(values["transcripts"])), *_data_sets(values, n_problems)]
    wanted = values["tasks"]
    if wanted is None:
        return tasks
    names = {name for task in tasks for name in (task.name, task.family)}
    for name in wanted:
        if name not in names:
            hint = f": name its file with --{name}" if name in DATA_SETS else f": there are {', '.join(sorted(names))}"
            raise click.UsageError(f"--tasks has no {name!r}{hint}")
    return [task for task in tasks if task.name in wanted or task.family in wanted]


def _sessions(paths: Sequence[Path]) -> list[Session]:
    sessions = []
    for path in find_transcripts(paths):
        session = read_transcript(path)
        if session.turns:
            sessions.append(session)
    if paths and not sessions:
        raise Failure("--transcripts: there is no request in these files", EXIT_BAD_ARGS)
    return sessions


def _data_sets(values: Mapping[str, Any], n_problems: int | None) -> list[Task]:
    """Raises Failure or UsageError."""
    if values["humaneval"] is not None and not values["run_code"]:
        raise click.UsageError("--humaneval runs what the model writes, on this machine: allow it by --run-code")
    try:
        found = []
        if values["humaneval"] is not None:
            found.append(human_eval_task(values["humaneval"], n_problems, runs_to_its_end))
        if values["gsm8k"] is not None:
            found.append(gsm8k_task(values["gsm8k"], n_problems))
        if values["math"] is not None:
            found.append(math_task(values["math"], n_problems))
    except DataSetError as error:
        raise Failure(str(error), EXIT_BAD_ARGS) from None
    return found
