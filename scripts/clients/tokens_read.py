#!/usr/bin/env python3
"""Say what a client's task made the server read, from what recording_proxy.py wrote down (session.sh): a table by step.

*Ideal* is what lies behind the longest beginning that a prompt shares with an earlier prompt of the run and its answer,
as the template shows a client that changes nothing; of a first prompt it is all. Exit code 1: a step read more than 1.1
of it, or the client did otherwise than it should.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from luce.supervisor.http.prompts.answer_request import ChatPrompt
from luce.supervisor.http.prompts.answer_spellings import AnswerSpellings
from luce.supervisor.http.prompts.rendering import Renderer
from luce.supervisor.text import TextModel
from scripts.bench.harness import TINY
from scripts.bench.replay.dialects import prompt_of
from scripts.bench.replay.http_effects import n_shared

MOST = 1.1
ANYTHING = {"role": "user", "content": "?"}
SPELLINGS_BYTES = 64 << 20

Record = dict[str, Any]


@dataclass
class Step:
    name: str
    cannot: str = ""
    """Why the client has no such step."""
    records: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    step: str
    n_requests: int
    n_prompt: int
    n_read: int
    n_ideal: int

    @property
    def ratio(self) -> float:
        return self.n_read / max(self.n_ideal, 1)


def read_steps(path: Path) -> list[Step]:
    steps: list[Step] = []
    for line in path.read_text().splitlines():
        value = json.loads(line)
        if "step" in value:
            steps.append(Step(value["step"], value.get("cannot", "")))
        else:
            steps[-1].records.append(value)
    for step in steps:
        step.records.sort(key=lambda record: float(record["started_s"]))
    return steps


class Known:
    """The texts that a run has had so far."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._renderer = Renderer(model, spellings=AnswerSpellings(SPELLINGS_BYTES))
        self._texts: list[tuple[int, ...]] = []

    def add(self, record: Record) -> int:
        """How much of the prompt no text before had. Its answer is known from then on."""
        path, body = record["path"], record["body"]
        prompt = prompt_of(path, body, self._model)
        ids = self._ids(prompt)
        n_known = max((n_shared(ids, text) for text in self._texts), default=0)
        self._texts.append(ids)
        if record["answer"]:
            name = "input" if "input" in body else "messages"
            # Calls may not come last.
            longer = prompt_of(path, {**body, name: [*body[name], *record["answer"], ANYTHING]}, self._model)
            whole = replace(longer, messages=longer.messages[:-1], opens_answer=False)
            self._texts.append(self._up_to_end(self._ids(whole)))
        return len(ids) - n_known

    def _up_to_end(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Behind the token that ends a turn there may be white space of the template's."""
        end = next((at for at in reversed(range(len(ids))) if ids[at] in self._model.info.eog), len(ids) - 1)
        return ids[: end + 1]

    def _ids(self, prompt: ChatPrompt) -> tuple[int, ...]:
        rendered = self._renderer.render(prompt)
        rendered.close()
        return tuple(rendered.ids)


def rows(steps: Sequence[Step], model: TextModel) -> Iterator[Row]:
    known = Known(model)
    for step in steps:
        served = [record for record in step.records if record["finish"]]
        n_ideal = sum(known.add(record) for record in served)
        n_prompt = sum(record["n_prompt"] for record in served)
        n_read = n_prompt - sum(record["n_cached"] for record in served)
        yield Row(step.name, len(served), n_prompt, n_read, n_ideal)


def complaints(steps: Sequence[Step], told: Sequence[Row]) -> list[str]:
    found = []
    for step, row in zip(steps, told, strict=True):
        bad = [record for record in step.records if record["status"] != 200 or record["error"]]
        found += [f"{step.name}: status {record['status']} {record['error']}" for record in bad]
        if step.cannot:
            continue
        if not any(record["is_steered"] and record["finish"] for record in step.records):
            found.append(f"{step.name}: nothing was asked that has an answer in the script")
        if row.ratio > MOST:
            found.append(f"{step.name}: {row.n_read} tokens read, {row.n_ideal} are new")
    return found


def show(client: str, steps: Sequence[Step], told: Sequence[Row]) -> list[str]:
    lines = ["| client | step | requests | prompt tokens | read anew | ideal | read / ideal |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for step, row in zip(steps, told, strict=True):
        figures = f"{row.n_requests} | {row.n_prompt:,} | {row.n_read:,} | {row.n_ideal:,} | **{row.ratio:.2f}**"
        lines.append(f"| {client} | {step.name} | {'- | - | - | - | -' if step.cannot else figures} |")
    for step in steps:
        broken_off = sum(not record["finish"] for record in step.records)
        lines += [f"{client}, {step.name}: {step.cannot}"] if step.cannot else []
        lines += [f"{client}, {step.name}: {broken_off} requests came to no end"] if broken_off else []
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--client", default="", help="its name, for the table")
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--chat-template", type=Path, metavar="FILE")
    args = parser.parse_args()
    steps = read_steps(args.records)
    template = None if args.chat_template is None else args.chat_template.read_text()
    with TextModel(args.model, chat_template=template) as model:
        told = list(rows(steps, model))
    print("\n".join(show(args.client, steps, told)))
    wrong = complaints(steps, told)
    for complaint in wrong:
        print(f"wrong: {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
