"""Whether an agent's next call stays well formed where only parts of its session are read. Made sessions read long
files with a tool, one after the other, and are told to read another one; recorded ones go on as their transcripts do,
each answer asked for again. Asked freely, and with a call that is required, whose argument the model has to choose.
Counts, no times.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from luce.protocol import Generate, MemoryArgs, PinSpan, Reading, ReadingArgs, format_command
from luce.supervisor.evaluating.transcripts import Session
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from scripts.bench.replay.prompts import PromptMaker, Setting
from scripts.bench.residency.prompts import python_text
from tests.daemon_driver import DaemonDriver

N_ANSWER = 512
"""Tokens: calls that write a file are long."""
CHOICES: tuple[Literal["auto", "required"], ...] = ("auto", "required")
NAMES = ("app", "main", "server", "client", "util", "parser", "model", "cache")
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
Before = Callable[[DaemonDriver, Sequence[int]], None]
"""What is done with a prompt's text before it is asked, which then goes on from what is known of it."""
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


@dataclass(frozen=True)
class ToolSample:
    """What came of it: `right`, `formed` (a call, but another one), `none`, `cut` (in its first call, by the limit), or
    `broken`: what no client can read, or an answer that begins inside a tool's block."""

    session: str
    n_prompt: int
    is_required: bool
    whole: str
    found: dict[float, str]
    """At each share."""


def measure_tool_calls(
    start: Callable[[int], DaemonDriver],
    model_path: Path,
    lengths: Sequence[int],
    shares: Sequence[float],
    n_sessions: int,
    report: Callable[[ToolSample], None],
    before: Before | None = None,
) -> list[ToolSample]:
    samples = []
    with TextModel(model_path) as model:
        asker = _Asker(model, shares, before)
        for n_tokens in lengths:
            with start(n_tokens) as daemon:
                for seed in range(n_sessions):
                    for choice in CHOICES:
                        samples.append(asker.sample(daemon, _session(model, n_tokens, seed), choice))
                        report(samples[-1])
    return samples


def measure_transcripts(
    start: Callable[[int], DaemonDriver],
    model_path: Path,
    sessions: Sequence[Session],
    n_ctx: int,
    shares: Sequence[float],
    report: Callable[[ToolSample], None],
) -> list[ToolSample]:
    """Every recorded answer that fits `n_ctx`, asked for again behind the recorded text before it."""
    samples = []
    with TextModel(model_path) as model:
        asker = _Asker(model, shares)
        maker = PromptMaker(model, sessions, Setting())
        with start(n_ctx) as daemon:
            for session in sessions:
                for prompt in maker.prepare(session, n_ctx=n_ctx, max_tokens=N_ANSWER).prompts:
                    asked = _Asked(f"{session.name} {prompt.number}", prompt.messages, prompt.tools)
                    for choice in CHOICES if prompt.tools else ():
                        samples.append(asker.sample(daemon, asked, choice))
                        report(samples[-1])
    return samples


@dataclass(frozen=True)
class _Asked:
    session: str
    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    arguments: dict[str, Any] | None = None
    """Of the call that is right, where it is known."""


class _Asker:
    def __init__(self, model: TextModel, shares: Sequence[float], before: Before | None = None) -> None:
        self._model = model
        self._renderer = Renderer(model)
        self._shares = shares
        self._before = before

    def sample(self, daemon: DaemonDriver, asked: _Asked, choice: Literal["auto", "required"]) -> ToolSample:
        prompt = ChatPrompt(messages=list(asked.messages), tools=list(asked.tools), tool_choice=choice)
        rendered = self._renderer.render(prompt, parts_from=0)
        keep, blocks = (
            tuple(PinSpan(*span) for span in spans) for spans in (rendered.reading.keep, rendered.reading.blocks)
        )
        rendered.close()

        def told(reading: ReadingArgs) -> str:
            if self._before is not None:
                self._before(daemon, rendered.ids)
            command = Generate(
                id=1,
                prompt=tuple(rendered.ids),
                n_generate=N_ANSWER,
                constraint=rendered.constraint,
                memory=MemoryArgs(reuse=self._before is not None),
                reading=reading,
            )
            daemon.send_bytes(format_command(command))
            answer = daemon.collect(1)[1]
            text = self._model.detokenize(answer.tokens, unparse_special=True).decode(errors="replace")
            return _judge(text, len(answer.tokens) == N_ANSWER, asked)

        found = {share: told(ReadingArgs(Reading.SPARSE, share, keep=keep, blocks=blocks)) for share in self._shares}
        return ToolSample(asked.session, len(rendered.ids), choice == "required", told(ReadingArgs()), found)


def _session(model: TextModel, n_tokens: int, seed: int) -> _Asked:
    rng = random.Random(seed)
    names = rng.sample(NAMES, 5)
    messages: list[dict[str, Any]] = []
    for number, name in enumerate(names[:4]):
        arguments = json.dumps({"path": f"src/{name}.py"})
        text = python_text(model, n_tokens // 4, 10 * seed + number)
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
        messages += [
            {"role": "user", "content": f"Read the file src/{name}.py"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": text},
            {"role": "assistant", "content": "I have read it."},
        ]  # fmt: skip
    path = f"src/{names[4]}.py"
    messages.append({"role": "user", "content": f"Read the file {path}"})
    return _Asked(f"seed {seed}", messages, [TOOL], {"path": path})


def _judge(answer: str, is_cut: bool, asked: _Asked) -> str:
    rest = _CALL.sub("", answer)
    if is_cut:
        rest = rest.partition("<tool_call>")[0]
    if "tool_" in rest:  # half a block, or the answer began inside one
        return "broken"
    calls = [_read_call(found[1]) for found in _CALL.finditer(answer)]
    names = {tool["function"]["name"] for tool in asked.tools}
    if any(call is None or call.get("name") not in names for call in calls):
        return "broken"
    if not calls:
        return "cut" if is_cut and "<tool_call>" in answer else "none"
    return "right" if calls[0] is not None and calls[0]["arguments"] == asked.arguments else "formed"


def _read_call(text: str) -> dict[str, Any] | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    return call if isinstance(call, dict) and isinstance(call.get("arguments"), dict) else None
