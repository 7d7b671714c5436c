"""An agent's loop at a server: a task, tools, the model's own answers, and a file of real code after each. What a turn
has to read, what it reads, how soon its first token is there, and whether calls can be run. Knows a server, no engine.

The loop goes on whatever the model calls, so that each model gets the same texts: the files are this package's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from luce.supervisor.checking.workload import Work
from luce.supervisor.cli.fieldtest.report import Turn
from luce.supervisor.cli.fieldtest.serving import Asked, Serving
from luce.supervisor.cli.fieldtest.step import LeftOutError, Step
from luce.supervisor.cli.fieldtest.volume import Volume
from luce.supervisor.cli.server_client import ServerError
from luce.supervisor.evaluating.question import Call, Reply
from luce.supervisor.evaluating.tasks.tool_calls import TOOLS
from luce.supervisor.evaluating.tasks.tool_schemas import is_well_formed
from luce.supervisor.evaluating.transcripts import made_up_system

PART = "agent"
_SYSTEM_BYTES = 2000
_FILE_CHARACTERS = 1200
_N_SYSTEM, _N_FILE = 1000, 400  # tokens, about, with the tools and a turn's frame
_NO_ROOM = frozenset({400, 413, 422})
_FILES = Path(__file__).resolve().parents[2] / "checking"


class AgentPart:
    def __init__(self, serving: Serving, volume: Volume) -> None:
        self._serving = serving
        self._volume = volume
        self._files = [path.read_text("utf-8")[:_FILE_CHARACTERS] for path in sorted(_FILES.glob("*.py"))]
        task = "Find out what the files in the folder src do, one after the other. Read one at a time with a tool."
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": made_up_system("claude", "main", _SYSTEM_BYTES)},
            {"role": "user", "content": task},
        ]
        self._n_known = 0
        self._turns: list[Turn] = []

    def steps(self) -> list[Step]:
        n_turns, n = self._volume.n_turns, self._volume.n_turn_answer
        steps = [
            Step(PART, f"turn {turn + 1} of {n_turns}", Work(0, _N_FILE if turn else _N_SYSTEM, n), self._turn)
            for turn in range(n_turns - 1)
        ]
        n_cold = _N_SYSTEM + n_turns * (_N_FILE + n)
        return [*steps, Step(PART, f"turn {n_turns}, warm and cold", Work(0, n_cold, n), self._last_turn)]

    def rows(self) -> list[Turn]:
        return self._turns

    def _turn(self) -> str:
        return self._take(is_last=False)

    def _last_turn(self) -> str:
        return self._take(is_last=True)

    def _take(self, *, is_last: bool) -> str:
        asked = self._asked(self._volume.n_turn_answer)
        cold = self._asked(1, cache_prompt=False) if is_last else None
        answer = asked.answer
        reply = Reply(answer.content, tuple(Call(call.name, call.arguments) for call in answer.calls))
        turn = Turn(
            n_prompt=asked.n_prompt,
            n_new=max(asked.n_prompt - self._n_known, 0),
            n_read=asked.n_prompt - asked.n_cached,
            first_token_s=asked.first_token_s,
            cold_first_token_s=None if cold is None else cold.first_token_s,
            n_calls=len(answer.calls),
            is_well_formed=is_well_formed(reply, TOOLS),
        )
        self._turns.append(turn)
        self._n_known = asked.n_prompt + asked.n_answer
        self._go_on(asked)
        return f"{turn.n_read:,} of {turn.n_prompt:,} tokens read, {turn.n_new:,} of them new"

    def _asked(self, n: int, **fields: Any) -> Asked:
        try:
            return self._serving.ask(self._messages, n, tools=list(TOOLS), **fields)
        except ServerError as error:
            if error.status in _NO_ROOM:
                raise LeftOutError(f"turn {len(self._turns) + 1}: {error}") from None
            raise

    def _go_on(self, asked: Asked) -> None:
        """As agents do: with the answer as it came, and the results of its calls."""
        file = self._files[len(self._turns) % len(self._files)]
        answer = asked.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        self._messages.append(message)
        if answer.calls:
            self._messages += [{"role": "tool", "tool_call_id": call.id, "content": file} for call in answer.calls]
        else:
            self._messages.append({"role": "user", "content": f"Here is the next file:\n\n{file}"})
