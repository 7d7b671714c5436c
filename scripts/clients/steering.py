"""Steering: leaves a model one answer to a request, so that one that is too small for a task performs it all the same.

A grammar of that one answer goes with the request, in the model's own format of calls: the client runs the tools, and
the server and its engine do all that they do for any other answer. What is to be said stands in a file of JSON
(scripts/clients/answers): after which words of the user's come which answers, one after the other. A request in which
the user says none of them is left alone, and so is one without tools whose answer would be a call: a title.

Must not know which client asks. An argument `FOLDER` is the client's folder; a `found` name of an answer is what its
pattern finds in the latest result of a tool: ids that the client makes up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Body = Mapping[str, Any]
Render = Callable[[list[dict[str, Any]], bool], Awaitable[str]]
"""Messages, and whether an answer is opened behind them -> the prompt that the model's template makes of them."""

_WORD = "luce"
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


@dataclass(frozen=True)
class Answer:
    written: str
    """As the model writes it."""
    calls: bool
    found: Mapping[str, str]
    """Words of it, and the pattern whose group stands in their place."""


@dataclass(frozen=True)
class Steering:
    """Answers by the user's words that they follow."""

    answers: Mapping[str, Sequence[Answer]]

    def steer(self, body: Body) -> dict[str, Any]:
        """The request with the grammar of its answer."""
        turns = list(_turns(body.get("messages", body.get("input")) or ()))
        answer = self._answer(turns)
        if answer is None or (answer.calls and not body.get("tools")):
            return dict(body)
        written = answer.written
        for word, pattern in answer.found.items():
            results = (match[1] for _, text in reversed(turns) for match in re.finditer(pattern, text))
            written = written.replace(word, next(results, word))
        return {**body, "grammar": f"root ::= {literal(written)}"}

    def _answer(self, turns: Sequence[tuple[str, str]]) -> Answer | None:
        places = [
            (number, text.rindex(words), words)
            for words in self.answers
            for number, (role, text) in enumerate(turns)
            if role == "user" and words in text
        ]
        if not places:
            return None
        number, _, words = max(places)
        n_said = sum(role == "assistant" for role, _ in turns[number:])
        answers = self.answers[words]
        return answers[min(n_said, len(answers) - 1)]


async def read_steering(script: str, folder: Path, render: Render) -> Steering:
    """Of the text of such a file."""
    spoken = json.loads(script.replace("FOLDER", str(folder)))
    return Steering({words: [await _answer(answer, render) for answer in said] for words, said in spoken.items()})


def literal(text: str) -> str:
    """As GBNF."""
    return '"' + "".join(_ESCAPED.get(character, character) for character in text) + '"'


async def _answer(said: Mapping[str, Any], render: Render) -> Answer:
    """What the template shows of it behind what opens it, without the end of its turn."""
    calls = [
        {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(said.get("calls", ()))
    ]
    asked = {"role": "user", "content": "?"}
    opened = await render([asked], True)
    end = (await render([asked, {"role": "assistant", "content": _WORD}], False)).rpartition(_WORD)[2]
    message = {"role": "assistant", "content": said.get("text", ""), **({"tool_calls": calls} if calls else {})}
    whole = await render([asked, message], False)
    if not (whole.startswith(opened) and whole.endswith(end)):
        raise ValueError(f"the model's template shows an answer otherwise than it opens and ends one: {whole!r}")
    return Answer(whole[len(opened) : len(whole) - len(end)], bool(calls), said.get("found", {}))


def _turns(items: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    """Role and text of each; what an assistant says in several items is one turn, results of tools are `tool`."""
    last = ""
    for item in items:
        kind = item.get("type", "message")
        role = str(item.get("role") or ("tool" if kind.endswith("_output") else "assistant"))
        if role == "assistant":
            if last != role:
                yield role, ""
            last = role
            continue
        last = role
        content = item.get("content", item.get("output")) or ""
        for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            is_result = part.get("type") == "tool_result"
            text = part.get("content") if is_result else part.get("text")
            yield "tool" if is_result else role, text if isinstance(text, str) else json.dumps(text)
