"""What scripts/demo shows: three questions answered in sight, then numbers in a table. Everything goes through a
Supervisor and its engine, as in a program of one's own (docs/embedding.md). Knows which model speaks only by its file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from luce.supervisor import (
    FinishedEvent,
    GenerateRequest,
    StartError,
    Supervisor,
    SupervisorConfig,
    TokenEvent,
    packaged_model,
)

ROOT = Path(__file__).resolve().parent.parent
CODE = ROOT / "supervisor" / "scheduling" / "multiplexer.py"
CTX = 6144
N_CODE = 4000  # tokens of it that are read
N_EDITED = 700  # of those that an edit begins with
N_EDIT = 160  # and that are written
OLD, NEW = "in_flight", "running"
N_ROUNDS = 2  # of either; the faster one counts
N_BEFORE_KILL = 20
SYSTEM = "You are a helpful assistant."
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
)
TINY_QUESTIONS = (
    "Who are you?",
    "What is 7 + 5?",
    "The access code of the green owl is 73105. It rained all day. What is the access code of the green owl?",
)


@dataclass
class Answer:
    """When its tokens came, in seconds from the request."""

    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    final: FinishedEvent | None = None

    @property
    def end(self) -> FinishedEvent:
        assert self.final is not None
        return self.final

    @property
    def n_read(self) -> int:
        return self.end.n_prompt - self.end.n_reused

    @property
    def tokens_per_s(self) -> float:
        return self.end.decode_tokens_per_s


@dataclass(frozen=True)
class Row:
    what: str
    n_read: str
    first_token: str
    speed: str
    note: str


class Tour:
    """Over one supervisor."""

    def __init__(self, supervisor: Supervisor, config: SupervisorConfig, questions: Sequence[str], n_code: int) -> None:
        self.supervisor = supervisor
        self.config = config
        self.questions = questions
        self.n_code = n_code
        self.rows: list[Row] = []

    async def run(self) -> None:
        self.text = await self.supervisor.text()
        for question in self.questions:
            await self.show(question)
        await self.read_code()
        await self.edit_code()
        await self.kill_the_engine()

    def asked(self, *turns: str) -> GenerateRequest:
        """`turns`: user and assistant alternate."""
        roles = ("user", "assistant")
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}] if self.questions is QUESTIONS else []
        messages += [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
        chat = self.text.render(messages)
        boundaries = [mark.token for mark in chat.marks]
        return GenerateRequest(prompt_ids=chat.tokens, boundaries=boundaries, max_tokens=64, temperature=0)

    async def show(self, question: str) -> None:
        print(f"\n> {question}", flush=True)
        words = self.text.detokenizer()
        await ask(self.supervisor, self.asked(question), lambda token: print(words.feed(token), end="", flush=True))
        print()

    def code(self, n_tokens: int) -> str:
        """The file's first lines."""
        begin = self.text.tokenize(CODE.read_text())[:n_tokens]
        lines, newline, _ = self.text.detokenize(begin).decode(errors="replace").rpartition("\n")
        return lines + newline

    async def read_code(self) -> None:
        say(f"reading {self.n_code:,} tokens of {CODE.relative_to(ROOT)}")
        first = f"```python\n{self.code(self.n_code)}```\nWhat does this code do? Answer in one sentence."
        cold = await ask(self.supervisor, self.asked(first))
        answer = self.text.detokenize(cold.tokens).decode(errors="replace")
        warm = await ask(self.supervisor, self.asked(first, answer, "Which class matters most?"))
        times = cold.times_s[0] / warm.times_s[0]
        self.rows.append(measured(f"{self.n_code:,} tokens of code", cold, "read for the first time"))
        self.rows.append(measured("the next turn about them", warm, f"first token {times:.0f} times sooner"))

    async def edit_code(self) -> None:
        code = self.code(min(N_EDITED, self.n_code))
        lines = code.replace(OLD, NEW).splitlines(keepends=True)
        prompt = f"```python\n{code}```\n\nThe same code with `{OLD}` renamed to `{NEW}`:\n```python\n{lines[0]}"
        request = GenerateRequest(prompt=prompt, max_tokens=N_EDIT, temperature=0, ignore_eos=True)
        say("writing an edit of that code without drafts, and with them")
        async with Supervisor(replace(self.config, draft_max=0)) as without_drafts:
            sides = (without_drafts, self.supervisor)
            answers = [[await ask(side, request) for side in sides] for _ in range(N_ROUNDS)]
        plain, drafted = answers[0]
        plain_speed, drafted_speed = (max(one.tokens_per_s for one in side) for side in zip(*answers, strict=True))
        same = compare(drafted.tokens, plain.tokens)
        note = f"with drafts: {drafted_speed / plain_speed:.2f} times as fast, {same}"
        self.rows.append(measured("an edit of that code", plain, "without drafts", plain_speed))
        self.rows.append(measured("the same edit", drafted, note, drafted_speed))

    async def kill_the_engine(self) -> None:
        say("kill -9 in the middle of an answer")
        request = self.asked(self.questions[1])
        request = GenerateRequest(prompt_ids=request.prompt_ids, max_tokens=48, temperature=0, ignore_eos=True)
        undisturbed = await ask(self.supervisor, request)
        n_tokens = 0

        def kill(_: int) -> None:
            nonlocal n_tokens
            n_tokens += 1
            if n_tokens == N_BEFORE_KILL:
                for pid in self.supervisor.engine_pids():
                    os.kill(pid, signal.SIGKILL)

        killed = await ask(self.supervisor, request, kill)
        gap_s = max(later - sooner for sooner, later in zip(killed.times_s, killed.times_s[1:], strict=False))
        same = compare(killed.tokens, undisturbed.tokens)
        note = f"kill -9 at token {N_BEFORE_KILL}: goes on after {gap_s:.1f} s, {same}"
        self.rows.append(measured("an answer", killed, note))


async def ask(
    supervisor: Supervisor, request: GenerateRequest, on_token: Callable[[int], None] = lambda _: None
) -> Answer:
    answer = Answer()
    started_s = time.monotonic()
    async for event in supervisor.generate(request):
        if isinstance(event, TokenEvent):
            answer.tokens.append(event.token)
            answer.times_s.append(time.monotonic() - started_s)
            on_token(event.token)
        elif isinstance(event, FinishedEvent):
            answer.final = event
    return answer


def compare(got: Sequence[int], expected: Sequence[int]) -> str:
    step = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    return "the same text" if step is None else f"the same text up to token {step}"


def measured(what: str, answer: Answer, note: str, tokens_per_s: float | None = None) -> Row:
    """With the answer's own speed where none is given."""
    speed = answer.tokens_per_s if tokens_per_s is None else tokens_per_s
    return Row(what, f"{answer.n_read:,}", f"{answer.times_s[0]:.2f} s", f"{speed:.1f}", note)


def say(text: str) -> None:
    print(f"\n== {text}", file=sys.stderr, flush=True)


def show_table(rows: Sequence[Row], model: str) -> None:
    table = Table(title=f"{model}, {os.cpu_count()} cores", title_justify="left")
    table.add_column("what")
    for column in ("tokens read", "first token", "tokens/s"):
        table.add_column(column, justify="right")
    table.add_column("note")
    for row in rows:
        table.add_row(row.what, row.n_read, row.first_token, row.speed, row.note)
    Console().print(table)


async def run(model: Path | None, threads: int | None, n_code: int) -> None:
    config = SupervisorConfig(
        model=model or packaged_model(), ctx=CTX, lanes=1, threads=threads, log_level="warn", restart_delay_s=0.01
    )
    async with Supervisor(config) as supervisor:
        tour = Tour(supervisor, config, QUESTIONS if model else TINY_QUESTIONS, n_code)
        await tour.run()
    show_table(tour.rows, config.model.stem)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE", help="GGUF file (default: the packaged model)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads that compute (default: a core each)")
    parser.add_argument(
        "--code", type=int, choices=range(256, N_CODE + 1), default=N_CODE, metavar="N", help="tokens of code to read"
    )
    arguments = parser.parse_args()
    try:
        asyncio.run(run(arguments.model, arguments.threads, arguments.code))
    except StartError as error:
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
