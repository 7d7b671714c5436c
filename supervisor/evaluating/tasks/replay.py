"""Agents' sessions, replayed: each recorded answer is asked for again behind the recorded text before it, and compared.
Sessions come from transcripts, or are made: files read with a tool, one after the other. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from luce.supervisor.evaluating.question import Call, Message, Question, Reply, Scale, Scores, Task
from luce.supervisor.evaluating.tasks.tool_calls import READ_FILE
from luce.supervisor.evaluating.tasks.tool_schemas import arguments_of, is_well_formed
from luce.supervisor.evaluating.transcripts import Session, made_up_system, system_as_user, tools_of

METRICS = ("replay-formed", "replay-tool", "replay-arguments", "replay-text")
_N_ANSWER = 256
_SYSTEM_BYTES = 2048
_FILES = ("app", "main", "server", "client", "util", "parser", "model", "cache")
_N_FILES = 3
_WORD = re.compile(r"\w+")


def replay_task(sessions: Sequence[Session]) -> Task:
    """Without sessions: made ones."""

    def make(scale: Scale) -> Iterator[Question]:
        if not sessions:
            return _made(scale)
        # Sessions in turns, so that few questions are not all of one.
        waiting = [_recorded(session, sessions) for session in sessions]
        return islice(_in_turns(waiting), scale.n_calls)

    return Task("replay", "replay", "Answers of an agent's session against the recorded ones.", METRICS, make)


def _in_turns(waiting: list[Iterator[Question]]) -> Iterator[Question]:
    while waiting:
        for one in list(waiting):
            question = next(one, None)
            if question is None:
                waiting.remove(one)
            else:
                yield question


def _recorded(session: Session, sessions: Sequence[Session]) -> Iterator[Question]:
    tools = tools_of(session.client, sessions)
    for number, turn in enumerate(session.turns, start=1):
        system = turn.system or session.system or made_up_system(session.client, turn.kind, _SYSTEM_BYTES)
        messages = [{"role": "system", "content": system}, *system_as_user(turn.messages)]
        right = Reply(
            "\n\n".join(text for text in turn.answered.texts if text.strip()),
            tuple(Call(call.name, call.arguments) for call in turn.answered.calls),
        )
        own_tools = () if turn.kind == "title" else tools
        yield _question(f"{session.name}, turn {number}", messages, own_tools, right)


def _made(scale: Scale) -> Iterator[Question]:
    for number in range(-(-scale.n_calls // (2 * _N_FILES))):
        rng = scale.rng("replay", number)
        messages: list[Message] = []
        for at, name in enumerate(rng.sample(_FILES, _N_FILES)):
            path = f"src/{name}.py"
            call = Call("read_file", json.dumps({"path": path}))
            messages = [*messages, {"role": "user", "content": f"Read the file {path}"}]
            session = f"session {number + 1}"
            yield _question(f"{session}, turn {2 * at + 1}", messages, (READ_FILE,), Reply(calls=(call,)))
            called = {"id": f"c{at}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            messages = [
                *messages,
                {"role": "assistant", "content": "", "tool_calls": [called]},
                {"role": "tool", "tool_call_id": f"c{at}", "content": f"def {name}(a, b):\n    return a + b\n"},
            ]
            said = f"The file {path} has 2 lines and defines {name}."
            yield _question(f"{session}, turn {2 * at + 2}", messages, (READ_FILE,), Reply(said))
            messages = [*messages, {"role": "assistant", "content": said}]


def _question(name: str, messages: Sequence[Message], tools: Sequence[Message], right: Reply) -> Question:
    return Question("replay", name, messages, _N_ANSWER, _Judge(right, tools), right, tools)


class _Judge:
    """Against the recorded answer. Where that calls tools, its first call is what counts: others may follow later."""

    def __init__(self, right: Reply, tools: Sequence[Message]) -> None:
        self._right = right
        self._tools = tools

    def __call__(self, reply: Reply) -> Scores:
        is_answer = bool(reply.text.strip() or reply.calls)
        scores = {"replay-formed": float(is_answer and is_well_formed(reply, self._tools))}
        if self._right.calls:
            recorded = self._right.calls[0]
            is_tool = bool(reply.calls) and reply.calls[0].name == recorded.name
            is_same = is_tool and arguments_of(reply.calls[0]) == arguments_of(recorded)
            return scores | {"replay-tool": float(is_tool), "replay-arguments": float(is_same)}
        return scores | {"replay-text": words_in_common(reply.text, self._right.text)}


def words_in_common(text: str, other: str) -> float:
    """Twice those that both have, over all of both."""
    a, b = (Counter(_WORD.findall(each.lower())) for each in (text, other))
    n_words = a.total() + b.total()
    return 2 * (a & b).total() / n_words if n_words else 1.0
