#!/usr/bin/env python3
"""Measure what the text side costs a turn of a long conversation: template, ids and known answers, before the engine
gets anything.

A synthetic agent's conversation (tools, calls, results) grows to --tokens tokens and then by a turn a round. Each
prompt is rendered by a server that has served the conversation, and from scratch by one that has not (another model
opened on the same file). The aim is 5 ms with 64K tokens. Reported is processor time, of the whole process, so that
other programs disturb little; medians and ranges over the rounds, and the ratio of the pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Rendered, Renderer
from luce.supervisor.http.prompts.token_replay_cache import TokenReplayCache
from luce.supervisor.text import TextModel
from scripts.bench.harness import TINY, write_json

KEPT_BYTES = 64 << 20
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

    def render(self, agent: Agent) -> tuple[Rendered, float]:
        """The prompt, and the processor time it took in seconds."""
        began_s = process_time()
        rendered = self._renderer.render(ChatPrompt(messages=agent.messages, tools=agent.tools))
        seconds = process_time() - began_s
        rendered.close()
        return rendered, seconds

    def note(self, rendered: Rendered, answer: Message) -> None:
        """The model has written it, in its own spelling."""
        assert rendered.turn is not None
        assert rendered.place is not None
        function = answer["tool_calls"][0]["function"]
        call = f'{{"name":"{function["name"]}","arguments":{function["arguments"]}}}'
        ids = self._model.tokenize(f"{answer['content']}\n<tool_call>\n{call}\n</tool_call>", parse_special=True)
        given = self._spellings.keep(rendered.place, answer)
        self._known.keep(rendered.turn, ids, None, given)


def measure(path: Path, template: str | None, n_tokens: int, n_rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {"next turn": [], "from scratch": []}
    agent = Agent(3)
    with TextModel(path, chat_template=template) as model:
        warm = TextSide(model)
        while len(seconds["next turn"]) < n_rounds:
            rendered, warm_s = warm.render(agent)
            if len(rendered.ids) >= n_tokens:
                seconds["next turn"].append(warm_s)
                with TextModel(path, chat_template=template) as other:
                    other.render([{"role": "user", "content": "Hello"}])  # its template has been analysed
                    seconds["from scratch"].append(TextSide(other).render(agent)[1])
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
    parser.add_argument("--json", type=Path, help="write the samples there")
    args = parser.parse_args()
    template = None if args.chat_template is None else args.chat_template.read_text()
    seconds = measure(args.model, template, args.tokens, args.rounds)
    ratios = [a / b for a, b in zip(seconds["next turn"], seconds["from scratch"], strict=True)]
    print(f"| {args.model.stem}, {args.tokens} tokens | processor time, ms |")
    print("|---|---|")
    for name, samples in seconds.items():
        print(f"| {name} | {spread([1e3 * sample for sample in samples], 1)} |")
    print(f"| ratio | {spread(ratios, 3)} |")
    write_json(args.json, seconds)


if __name__ == "__main__":
    main()
