"""What scripts/demo shows: the packaged model answers through the real daemon, and the numbers behind it.

Uses what an embedder uses (luce.supervisor); knows nothing of building or installing.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from luce.protocol import Generate, GenerateOk
from luce.supervisor import (
    DaemonConfig,
    EngineClient,
    EngineProcess,
    TokenEvent,
    find_luced,
    packaged_draft,
    packaged_model,
)
from luce.supervisor.text import TextModel

LANES = 4
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0

QUESTIONS = (
    "Who are you?",
    "What is 7 + 5?",
    "Repeat this code exactly:\n```python\ndef area(width, height):\n    return width * height\n```",
    "The access code of the green owl is 73105. It rained all day. What is the access code of the green owl?",
)


@dataclass(frozen=True)
class Answer:
    """One question's answer and its numbers."""

    question: str
    text: str
    first_token_s: float
    final: GenerateOk


async def ask(client: EngineClient, text: TextModel, question: str, console: Console | None) -> Answer:
    """Put one question; with a console the answer is shown as it comes."""
    prompt = text.render([{"role": "user", "content": question}]).tokens
    detokenizer = text.detokenizer()
    said = ""
    begin_s = time.monotonic()
    first_token_s = 0.0
    async with (
        asyncio.timeout(ANSWER_TIMEOUT_S),
        await client.generate(Generate(prompt=prompt, n_generate=96)) as generation,
    ):
        async for event in generation:
            if isinstance(event, TokenEvent):
                if event.index == 0:
                    first_token_s = time.monotonic() - begin_s
                new = detokenizer.feed(event.token)
                said += new
                if console is not None:
                    console.out(new, end="", highlight=False)
            elif isinstance(event, GenerateOk):
                return Answer(question, said, first_token_s, event)
    raise AssertionError("a generation ends with GenerateOk or raises")


def numbers(answers: list[Answer]) -> Table:
    """One row an answer."""
    table = Table(
        title="One at a time (first: ms to the first token; step: tokens that each gave)",
        title_justify="left",
    )
    table.add_column("question", max_width=15, no_wrap=True)
    for heading in ("prompt", "answer", "first", "read/s", "decode/s", "step", "end"):
        table.add_column(heading, justify="right", no_wrap=True)
    for answer in answers:
        final = answer.final
        step = None if final.speculation is None else final.speculation.tokens_per_step
        read_per_s = final.n_prompt / final.prefill_s if final.prefill_s > 0 else 0.0
        table.add_row(
            answer.question.splitlines()[0],
            str(final.n_prompt),
            str(final.n_generated),
            f"{1000 * answer.first_token_s:.1f}",
            f"{read_per_s:,.0f}",
            f"{final.decode_tokens_per_s:,.0f}",
            "-" if step is None else f"{step:.2f}",
            final.stop.value,
        )
    return table


async def demo(console: Console) -> None:
    begin_s = time.monotonic()
    config = DaemonConfig(model=packaged_model(), draft=packaged_draft(), lanes=LANES, log_level="warn")
    with TextModel(config.model) as text:
        async with await EngineProcess.spawn(find_luced(), config) as process:
            ready = dict((await process.wait_ready(START_TIMEOUT_S)).fields)
            console.print(
                f"luced (pid {process.pid}) is ready after {1000 * (time.monotonic() - begin_s):.0f} ms: "
                f"{ready['model']}, {ready['arch']}, context {ready['ctx']}, "
                f"cache {ready['kv']}, {ready['lanes']} lanes, drafts by {ready['spec']}",
                highlight=False,
            )
            async with EngineClient(process) as client:
                answers = []
                for question in QUESTIONS:
                    console.print(f"\n[bold cyan]{question}[/]", highlight=False)
                    answers.append(await ask(client, text, question, console))
                    console.print()
                begin_s = time.monotonic()
                together = await asyncio.gather(*(ask(client, text, question, None) for question in QUESTIONS))
                together_s = time.monotonic() - begin_s
    console.print()
    console.print(numbers(answers))
    alone_s = sum(answer.first_token_s + answer.final.decode_s for answer in answers)
    n_tokens = sum(answer.final.n_generated for answer in together)
    same = [answer.text for answer in together] == [answer.text for answer in answers]
    console.print(
        f"All {len(QUESTIONS)} at once, in one batch: {n_tokens} tokens in {together_s:.2f} s "
        f"({alone_s:.2f} s one after the other); the answers are {'the same' if same else 'different'}.",
        highlight=False,
    )


def main() -> None:
    asyncio.run(demo(Console()))


if __name__ == "__main__":
    main()
