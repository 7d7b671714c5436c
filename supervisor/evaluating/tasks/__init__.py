"""supervisor/evaluating/tasks: one file a family; each makes questions and judges answers.

`haystack` has long texts and facts to hide, `needles`, `keys`, `variables` and `word_counts` ask about them,
`tool_calls` and `replay` ask for calls (`tool_schemas` says which are well formed), `human_eval` and `sums` ask what
published data sets ask (`published` reads these). Knows no server.
"""

from luce.supervisor.evaluating.question import Task
from luce.supervisor.evaluating.tasks import keys, needles, tool_calls, variables, word_counts

GENERATED: tuple[Task, ...] = (
    *needles.TASKS, *keys.TASKS, *variables.TASKS, *word_counts.TASKS, *tool_calls.TASKS
)  # fmt: skip
"""What needs no file. Replays come from `replay.replay_task`."""
