#!/usr/bin/env python3
"""Measure what the server computes of a turn of a long conversation before the engine gets it: the body read, the
prompt made (template, ids, known answers), the command written.

A synthetic agent's conversation (tools, calls, results) grows to --tokens tokens and then by a turn a round. Each
prompt is made by a server that has served the conversation, and from scratch by one that has not (another model opened
on the same file). The aim is 10 ms with 64K tokens. Reported is processor time, of the whole process, so that other
programs disturb little; medians and ranges over the rounds, and the ratio of the pairs. --profile tells where the time
goes, by Python's functions.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from cProfile import Profile
from dataclasses import replace
from pathlib import Path
from pstats import Stats
from time import process_time
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.protocol import MAX_MARKS, MemoryArgs, format_command
from luce.supervisor.engine.prompt_file import PromptFile
from luce.supervisor.http.answering.choice_requests import engine_request
from luce.supervisor.http.openai_chat.body import ChatBody
from luce.supervisor.http.openai_chat.parse import read_chat
from luce.supervisor.http.prompts.answer_request import AnswerRequest
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.body import check
from luce.supervisor.http.transport.json_body import parse_object
from luce.supervisor.scheduling.in_flight_request import InFlightRequest
from luce.supervisor.text import TextModel
from scripts.bench.harness import TINY, write_json

T = TypeVar("T")

KEPT_BYTES = 64 << 20
PARTS = ("body", "prompt", "command")
WARM = "the next turn"
COLD = "from scratch"
WORDS = ["file", "def", "return", "path", "the", "server", "=", "(", ")", "\n", "'name'", "cache", "/home/a/b.py", "42"]

Message = dict[str, Any]


class Agent:
    """What a coding agent sends: the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        schema = {"type": "object", "properties": {"path": {"type": "string"}, "line": {"type": "integer"}}}
        self.tools = [
            {"type": "function",
             "function": {"name": f"tool_{n}", "description": self._text(200), "parameters": schema}}
            for n in range(12)
        ]  # fmt: skip
        self.messages: list[Message] = [
            {"role": "system", "content": self._text(3000)},
            {"role": "user", "content": self._text(40)},
        ]

    def answer(self) -> Message:
        number = len(self.messages)
        arguments = json.dumps({"path": f"/home/a/{number}.py", "line": number})
        function = {"name": "tool_1", "arguments": arguments}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        return {"role": "assistant", "content": self._text(40), "tool_calls": [call]}

    def go_on(self, answer: Message) -> None:
        call = answer["tool_calls"][0]["id"]
        self.messages += [answer, {"role": "tool", "tool_call_id": call, "content": self._text(380)}]

    def _text(self, n_words: int) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(n_words))


class TextSide:
    """Of a server that has just begun."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._known = TokenReplayCache(model, KEPT_BYTES)
        self._spellings = AnswerSpellings(KEPT_BYTES)
        self._renderer = Renderer(model, self._known, self._spellings)

    def turn(self, body: bytes) -> tuple[Rendered, dict[str, float]]:
        """The prompt, and the processor time that each part of it took in seconds."""
        seconds: dict[str, float] = {}

        def timed(part: str, act: Callable[[], T]) -> T:
            began_s = process_time()
            made = act()
            seconds[part] = process_time() - began_s
            return made

        asked = timed("body", lambda: self._read(body))
        rendered = timed("prompt", lambda: self._renderer.render(asked.prompt))
        timed("command", lambda: self._hand_over(asked, rendered))
        rendered.close()
        return rendered, seconds

    def _read(self, body: bytes) -> AnswerRequest:
        checked = check(parse_object(body), ChatBody)
        return read_chat(checked, self._model, max_choices=1, headers={}, client="").answer_request

    def _hand_over(self, asked: AnswerRequest, rendered: Rendered) -> None:
        """As the multiplexer and an engine's client do it."""
        request = engine_request(
            asked, rendered, 0, ServeSettings(), max_tokens=1024, n_vocab=self._model.n_vocab, salt=None
        )
        assert request.prompt_ids is not None
        in_flight = InFlightRequest(1, request, request.prompt_ids, 1)
        marks = sorted({*request.boundaries, *request.marks})[-MAX_MARKS:]
        command = in_flight.command(MemoryArgs(marks=tuple(marks), turn=request.turn), request.reading)
        file = PromptFile.write(command.prompt)
        format_command(replace(command, id=1, prompt=(), prompt_path=file.path))
        file.remove()

    def note(self, rendered: Rendered, answer: Message) -> None:
        """The model has written it, in its own spelling."""
        assert rendered.turn is not None
        assert rendered.place is not None
        function = answer["tool_calls"][0]["function"]
        call = f'{{"name":"{function["name"]}","arguments":{function["arguments"]}}}'
        ids = self._model.tokenize(f"{answer['content']}\n<tool_call>\n{call}\n</tool_call>", parse_special=True)
        given = self._spellings.keep(rendered.place, answer)
        self._known.keep(rendered.turn, ids, None, given)


def measure(
    path: Path, template: str | None, n_tokens: int, n_rounds: int, profile: Profile | None
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in (*PARTS, WARM, COLD)}
    agent = Agent(3)
    with TextModel(path, chat_template=template) as model:
        warm = TextSide(model)
        is_long = False
        while len(seconds[WARM]) < n_rounds:
            body = json.dumps({"messages": agent.messages, "tools": agent.tools}).encode()
            if is_long and profile is not None:
                profile.enable()
            rendered, parts = warm.turn(body)
            if profile is not None:
                profile.disable()
            if is_long:
                for part, part_s in parts.items():
                    seconds[part].append(part_s)
                seconds[WARM].append(sum(parts.values()))
                with TextModel(path, chat_template=template) as other:
                    other.render([{"role": "user", "content": "Hello"}])  # its template has been analysed
                    seconds[COLD].append(sum(TextSide(other).turn(body)[1].values()))
            is_long = len(rendered.ids) >= n_tokens
            answer = agent.answer()
            warm.note(rendered, answer)
            agent.go_on(answer)
    return seconds


def spread(values: Sequence[float], digits: int) -> str:
    return f"**{statistics.median(values):.{digits}f}** ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="in place of the model's own")
    parser.add_argument("--tokens", type=int, default=64 << 10, help="of the prompt, at least")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="the time of the turns by Python's functions, too")
    parser.add_argument("--json", type=Path, help="write the samples there")
    args = parser.parse_args()
    template = None if args.chat_template is None else args.chat_template.read_text()
    profile = Profile() if args.profile else None
    seconds = measure(args.model, template, args.tokens, args.rounds, profile)
    ratios = [a / b for a, b in zip(seconds[WARM], seconds[COLD], strict=True)]
    print(f"| {args.model.stem}, {args.tokens} tokens | processor time, ms |")
    print("|---|---|")
    for name, samples in seconds.items():
        print(f"| {name} | {spread([1e3 * sample for sample in samples], 1)} |")
    print(f"| ratio | {spread(ratios, 3)} |")
    write_json(args.json, seconds)
    if profile is not None:
        Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
