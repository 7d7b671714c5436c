#!/usr/bin/env python3
"""What a swap of two models costs that have one place on the device between them: how long until the other one is
there, how long until its conversation of --conversation tokens has its next token, and how many tokens of it are read
anew. Beside it stands what copying the bytes of its file from the page cache takes, measured in the same run.

    swaps.py --luced L --models 27b.gguf 35b-a3b.gguf --gpu-memory 24G --json OUT

Each model gets a conversation. Then they are asked in turns, --rounds times: whoever is asked has to come, the other
one has to go first. The last round asks without the memory of the conversation. Both files lie in the page cache. Ids
of tokens are sent, so the models need no vocabulary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from rich.console import Console
from rich.table import Table

from luce.supervisor import FinishedEvent, GenerateRequest, Supervisor, SupervisorConfig, TokenEvent
from luce.supervisor.config.values import byte_count
from luce.supervisor.fleet.fleet import Fleet, FleetConfig, Member
from luce.supervisor.fleet.turns import TurnRules
from scripts.bench.harness import options_of, parser_of, write_json

MOST_SWAP = 1.3
MOST_BEHIND_LOAD_S = 0.5
REFERENCE = "pinned 1"


@dataclass(frozen=True)
class Visit:
    """One request to one model. Seconds from the request on."""

    model: str
    kind: (
        str  # start: its process was started; swap: it came back; forgotten: it came back, and was to remember nothing
    )
    left_s: float | None  # until the other one had gone; None: nobody had to
    came_s: float
    first_s: float
    n_prompt: int
    n_new: int  # tokens of the prompt that its model had not computed before
    n_read: int
    gpu_mib: int | None  # used when its answer had ended


@dataclass
class Talk:
    """A conversation with one model."""

    tokens: list[int] = field(default_factory=list)


class Bench:
    def __init__(self, args: argparse.Namespace, fleet: Fleet) -> None:
        self._args = args
        self._fleet = fleet
        self._drawn = random.Random(args.seed)
        self._talks = {member.name: Talk() for member in fleet.config.members}
        self.visits: list[Visit] = []

    async def run(self) -> None:
        names = list(self._talks)
        for name in names:
            await self._visit(name, self._args.conversation, "start")
        for _ in range(self._args.rounds):
            for name in names:
                await self._visit(name, self._args.turn, "swap")
        for name in names:
            await self._visit(name, self._args.turn, "forgotten", reuse=False)

    async def _visit(self, name: str, n_new: int, kind: str, *, reuse: bool = True) -> None:
        await asyncio.sleep(self._args.pause)
        supervisor = self._fleet.supervisors[name]
        others = [other for known, other in self._fleet.supervisors.items() if known != name]
        text = self._talks[name].tokens
        text += [self._drawn.randrange(self._args.ids) for _ in range(n_new)]
        n_prompt = len(text)
        asked = GenerateRequest(prompt_ids=tuple(text), max_tokens=self._args.answer, ignore_eos=True, reuse=reuse)
        began_s = monotonic()
        first_s, n_reused = 0.0, 0
        async with aclosing(supervisor.generate(asked)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    first_s = first_s or monotonic() - began_s
                    text.append(event.token)
                elif isinstance(event, FinishedEvent):
                    n_reused = event.n_reused
        gone = [other.presence.since_s - began_s for other in others if other.presence.since_s > began_s]
        visit = Visit(
            model=name,
            kind=kind,
            left_s=max(gone, default=None),
            came_s=supervisor.presence.since_s - began_s,
            first_s=first_s,
            n_prompt=n_prompt,
            n_new=n_new + (kind != "start"),  # the last token of an answer is sampled, and not computed
            n_read=n_prompt - n_reused,
            gpu_mib=gpu_mib(),
        )
        self.visits.append(visit)
        print(json.dumps(asdict(visit)), file=sys.stderr, flush=True)


def gpu_mib() -> int | None:
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True, timeout=10,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return int(told.split()[0])


def copies(file: Path, n_times: int) -> dict[str, list[float]]:
    """In a process of its own, whose memory of the GPU is free again behind it."""
    program = [sys.executable, str(Path(__file__).with_name("page_cache_copy.py"))]
    told = subprocess.run([*program, str(file), "--times", str(n_times)], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise SystemExit(f"page_cache_copy.py {file} failed:\n{told.stderr}")
    return json.loads(told.stdout)  # type: ignore[no-any-return]


async def start_alone(config: SupervisorConfig) -> float:
    """From the start of the process until it is ready."""
    began_s = monotonic()
    async with Supervisor(config):
        return monotonic() - began_s


def member(args: argparse.Namespace, file: Path) -> Member:
    n_ctx = args.conversation + (args.rounds + 2) * (args.turn + args.answer)
    config = SupervisorConfig(
        model=file,
        binary=args.luced,
        ctx=-(-n_ctx // 64) * 64,
        lanes=1,
        threads=args.threads,
        gpu_layers=args.gpu_layers or None,
        gpu_memory=args.gpu_memory,
        host_cache=args.host_cache,
        cache_type_k=args.cache_type,
        cache_type_v=args.cache_type,
        no_mmap=args.no_mmap,
        log_level=args.log_level,
    )
    return Member(name=file.stem, config=config)


async def measure(args: argparse.Namespace) -> tuple[dict[str, float], list[Visit]]:
    began_s = monotonic()

    def on_log(line: str) -> None:
        if args.engine_log is not None:
            args.engine_log.write(f"{monotonic() - began_s:9.3f} {line}\n")
            args.engine_log.flush()

    members = [member(args, file) for file in args.models]
    alone = {one.name: await start_alone(one.config) for one in members}
    async with Fleet(FleetConfig(members=members, rules=TurnRules(turn_s=0, linger_s=0)), on_log=on_log) as fleet:
        bench = Bench(args, fleet)
        await bench.run()
    return alone, bench.visits


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(
            *("" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row)
        )
    return table


def report(
    console: Console, args: argparse.Namespace, of_file: dict[str, dict[str, list[float]]],
    alone: dict[str, float], visits: Sequence[Visit],
) -> None:  # fmt: skip
    console.print(
        table_of(
            "Seconds to copy the file from the page cache",
            ["model", "GiB", *next(iter(of_file.values())), "luced alone, from its start"],
            [
                [file.stem, file.stat().st_size / 2**30, *map(statistics.median, of_file[file.stem].values()),
                 alone[file.stem]]
                for file in args.models
            ],
        )
    )  # fmt: skip
    console.print(
        table_of(
            "Seconds from the request on",
            ["model", "kind", "other gone", "here", "first token", "prompt", "new", "read", "GPU MiB"],
            [
                [visit.model, visit.kind, visit.left_s, visit.came_s, visit.first_s, visit.n_prompt, visit.n_new,
                 visit.n_read, visit.gpu_mib]
                for visit in visits
            ],
        )
    )  # fmt: skip
    rows = []
    for file in args.models:
        swaps = [visit for visit in visits if visit.model == file.stem and visit.kind == "swap"]
        copy_s = statistics.median(of_file[file.stem][REFERENCE])
        ratios = [visit.came_s / copy_s for visit in swaps]
        behind = [visit.first_s - visit.came_s for visit in swaps]
        anew = max((visit.n_read - visit.n_new) / visit.n_prompt for visit in swaps)
        rows.append(
            [file.stem, f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})",
             f"{statistics.median(behind):.2f} ({min(behind):.2f} .. {max(behind):.2f})", f"{anew:.1%}"]
        )  # fmt: skip
    columns = [
        "model", f"swap, of the copy by one thread (aim {MOST_SWAP})",
        f"first token behind the load, s (aim {MOST_BEHIND_LOAD_S})", "read anew, at most (aim 5 %)",
    ]  # fmt: skip
    console.print(table_of("Swaps back", columns, rows))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, model=None)
    parser.add_argument("--models", type=Path, nargs=2, required=True, metavar="FILE")
    parser.add_argument("--conversation", type=int, default=32768, metavar="TOKENS")
    parser.add_argument("--turn", type=int, default=200, metavar="TOKENS", help="that a further request brings")
    parser.add_argument("--answer", type=int, default=16, metavar="TOKENS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pause", type=float, default=2.0, metavar="S", help="before each request; default: 2")
    parser.add_argument("--ids", type=int, default=1000, help="prompts are drawn from the first so many; default: 1000")
    parser.add_argument("--gpu-memory", type=byte_count, metavar="BYTES", help="the budget, which holds one of them")
    parser.add_argument("--host-cache", type=byte_count, metavar="BYTES")
    parser.add_argument("--no-mmap", action="store_true")
    parser.add_argument("--copies", type=int, default=3, metavar="TIMES")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--engine-log", type=argparse.FileType("w"), metavar="FILE")
    args = parser.parse_args(arguments)
    of_file = {file.stem: copies(file, args.copies) for file in args.models}
    alone, visits = asyncio.run(measure(args))
    report(Console(width=160), args, of_file, alone, visits)
    write_json(
        args.json,
        {"options": options_of(args), "copies": of_file, "alone": alone, "visits": [asdict(visit) for visit in visits]},
    )


if __name__ == "__main__":
    main()
