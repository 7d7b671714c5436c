"""Whether an agent's next call stays well formed where only parts of its session are read: sessions that read long
files with a tool, one after the other, and are told to read another one. Asked freely, and with a call that is
required, whose argument the model has to choose. Counts, no times.
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
from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from scripts.bench.residency.prompts import python_text
from tests.daemon_driver import DaemonDriver

N_ANSWER = 64
NAMES = ("app", "main", "server", "client", "util", "parser", "model", "cache")
_CALL = re.compile(r"<tool_call>\s*(\{.*\})\s*</tool_call>", re.DOTALL)
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
    """What came of it: `right`, `formed` (a call, but another one), `none`, or `broken`."""

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
) -> list[ToolSample]:
    samples = []
    with TextModel(model_path) as model:
        renderer = Renderer(model)
        for n_tokens in lengths:
            with start(n_tokens) as daemon:
                for seed in range(n_sessions):
                    for choice in ("auto", "required"):
                        samples.append(_sample(daemon, model, renderer, n_tokens, seed, choice, shares))
                        report(samples[-1])
    return samples


def _sample(
    daemon: DaemonDriver,
    model: TextModel,
    renderer: Renderer,
    n_tokens: int,
    seed: int,
    choice: Literal["auto", "required"],
    shares: Sequence[float],
) -> ToolSample:
    messages, path = _session(model, n_tokens, seed)
    rendered = renderer.render(ChatPrompt(messages=messages, tools=[TOOL], tool_choice=choice), parts_from=0)
    keep, blocks = (
        tuple(PinSpan(*span) for span in spans) for spans in (rendered.reading.keep, rendered.reading.blocks)
    )
    rendered.close()

    def told(reading: ReadingArgs) -> str:
        command = Generate(
            id=1,
            prompt=rendered.ids,
            n_generate=N_ANSWER,
            constraint=rendered.constraint,
            memory=MemoryArgs(reuse=False),
            reading=reading,
        )
        daemon.send_bytes(format_command(command))
        answer = daemon.collect(1)[1]
        return _judge(model.detokenize(answer.tokens, unparse_special=True).decode(errors="replace"), path)

    found = {share: told(ReadingArgs(Reading.SPARSE, share, keep=keep, blocks=blocks)) for share in shares}
    return ToolSample(len(rendered.ids), choice == "required", told(ReadingArgs()), found)


def _session(model: TextModel, n_tokens: int, seed: int) -> tuple[list[dict[str, Any]], str]:
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
    return [*messages, {"role": "user", "content": f"Read the file {path}"}], path


def _judge(answer: str, path: str) -> str:
    found = _CALL.search(answer)
    if found is None:
        return "broken" if "tool_call" in answer or "tool_response" in answer else "none"
    try:
        call = json.loads(found[1])
    except ValueError:
        return "broken"
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
        return "broken"
    return "right" if call.get("arguments") == {"path": path} else "formed"
