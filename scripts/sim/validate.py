#!/usr/bin/env python3
"""Is what the simulator says of memory so? Recorded sessions on real replicas of a small model, each request at the
replica that a seeded router draws, against the simulator's memory with the same requests at the same replicas.

TRANSCRIPTS as for simulate.py. The sessions take turns, one request at a time, so that both sides see one order. What
is compared is the share of prompt tokens that was not read anew; no times. Both sides have room for all of it: what is
left is what prefixes are found, with the engine's own rules (checkpoints, pages).

    scripts/sim/validate.py --replicas 1,3
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from luce.supervisor import RequestError, StartError, SupervisorConfig  # noqa: E402
from luce.supervisor.cli.entry import say  # noqa: E402
from scripts.bench.harness import TINY, write_json  # noqa: E402
from scripts.bench.replay.agent_replay import DEFAULT_TRANSCRIPTS, prepare, read_all  # noqa: E402
from scripts.bench.replay.prompts import Prepared, Prompt, Setting  # noqa: E402
from scripts.bench.replay.run import fresh_target  # noqa: E402
from scripts.bench.sessions.distributions import n_common  # noqa: E402
from scripts.sim.chains import Array, Chains  # noqa: E402
from scripts.sim.hashing import uniform  # noqa: E402
from scripts.sim.memory import ReplicaMemory, Tiers  # noqa: E402
from scripts.sim.simulate import Counts  # noqa: E402

N_SLOTS = 256
HOST_BYTES = 512 * 2**20
ENDLESS = Tiers(device=1e12, host=0.0)


@dataclass(frozen=True)
class Asked:
    """A request, and whose it is."""

    session: int
    conversation: str
    prompt: Prompt


def in_order(sessions: Sequence[Prepared]) -> list[Asked]:
    """The sessions' requests in turns."""
    longest = max(len(prepared.prompts) for prepared in sessions)
    return [
        Asked(number, _conversation(prepared, turn), prepared.prompts[turn])
        for turn in range(longest)
        for number, prepared in enumerate(sessions)
        if turn < len(prepared.prompts)
    ]


def _conversation(prepared: Prepared, turn: int) -> str:
    return prepared.session.turns[prepared.prompts[turn].number - 1].conversation


def drawn(router: str, asked: Sequence[Asked], n_replicas: int) -> list[int]:
    """The replica of each."""
    names = np.array([one.session for one in asked])
    at = uniform(names, 3) if router == "sticky" else uniform(names, np.arange(len(asked)), 5)
    return [int(replica) for replica in at * n_replicas]


def simulated(asked: Sequence[Asked], replicas: Sequence[int]) -> list[int]:
    """How many tokens of each prompt the simulator's memory finds."""
    texts = Texts()
    memory = ReplicaMemory(texts.chains, max(replicas) + 1, N_SLOTS, ENDLESS)
    found = []
    for now_s, (one, replica) in enumerate(zip(asked, replicas, strict=True)):
        row, chain, length = np.array([replica]), texts.chain_of(one), np.array([len(one.prompt.ids)])
        found.append(int(memory.find(row, chain, length).tokens[0]))
        memory.keep(row, chain, length, float(now_s))
    return found


class Texts:
    """Recorded prompts as chains: a conversation goes on as its own; a new one forks from the prompt with which it
    shares most, and one that went back forks from itself."""

    def __init__(self) -> None:
        self.chains = Chains()
        self._last: dict[tuple[int, str], tuple[Prompt, int]] = {}
        self._known: list[tuple[Prompt, int]] = []

    def chain_of(self, asked: Asked) -> Array:
        prompt, key = asked.prompt, (asked.session, asked.conversation)
        last = self._last.get(key)
        if last is not None and n_common(last[0].ids, prompt.ids) == len(last[0].ids):
            chain = last[1]
        else:
            near = self._known if last is None else [last]
            n_shared, parent = max(((n_common(other.ids, prompt.ids), at) for other, at in near), default=(0, -1))
            while parent >= 0 and n_shared <= self.chains.forked_at[parent]:
                parent = int(self.chains.parent[parent])
            chain = int(self.chains.begin(np.array([parent]), np.array([n_shared]))[0])
        self._last[key] = prompt, chain
        self._known.append((prompt, chain))
        return np.array([chain])


async def served(config: SupervisorConfig, asked: Sequence[Asked], replicas: Sequence[int]) -> list[int]:
    """How many tokens of each prompt real replicas found. Raises StartError or RequestError."""
    async with AsyncExitStack() as stack:
        targets = [
            await stack.enter_async_context(fresh_target(config, timeout_s=600)) for _ in range(max(replicas) + 1)
        ]
        found = []
        for one, replica in zip(asked, replicas, strict=True):
            answer = await targets[replica].ask(one.prompt, 1)
            if answer.failure:
                raise click.ClickException(f"{one.prompt.session} turn {one.prompt.number}: {answer.failure}")
            found.append(answer.n_reused)
        return found


def share(found: Sequence[int], asked: Sequence[Asked]) -> float:
    return sum(found) / sum(len(one.prompt.ids) for one in asked)


@click.command(help=__doc__, context_settings={"show_default": True, "max_content_width": 110})
@click.argument("transcripts", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--replicas", type=Counts(), default="1,3", help="how many, with commas")
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="GGUF file; default: the packaged model")
@click.option("--ctx", type=click.IntRange(min=64), default=8192, help="context; a conversation ends where it is full")
@click.option("--system-bytes", type=click.IntRange(min=0), default=2048, help="of a made-up system prompt")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="of each replica")
@click.option("--limit", type=click.IntRange(min=1), help="so many sessions at most")
@click.option("--json", type=click.Path(path_type=Path), metavar="FILE", help="every request")
def main(transcripts: tuple[Path, ...], **options: Any) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = 120
    config = SupervisorConfig(
        model=options["model"] or TINY, ctx=options["ctx"], lanes=1, threads=options["threads"], draft_max=0,
        host_cache=HOST_BYTES, log_level="error",
    )  # fmt: skip
    sessions = read_all(transcripts or (DEFAULT_TRANSCRIPTS,), options["limit"], console)
    asked = in_order(prepare(config, sessions, Setting(system_bytes=options["system_bytes"]), 1)) if sessions else []
    if not asked:
        raise click.ClickException(f"no request of these transcripts fits --ctx {options['ctx']}")
    table = Table(title=f"{len(asked)} requests", title_justify="left", box=box.SIMPLE)
    for name in ("replicas", "router", "found, real", "found, simulated", "read anew, real / simulated"):
        table.add_column(name, justify="right")
    rows: list[dict[str, Any]] = []
    for n in options["replicas"]:
        for router in ("random", "sticky")[: 2 if n > 1 else 1]:
            replicas = drawn(router, asked, n)
            try:
                real = asyncio.run(served(config, asked, replicas))
            except (StartError, RequestError, TimeoutError) as error:
                raise click.ClickException(str(error)) from error
            expected = simulated(asked, replicas)
            one, other = share(real, asked), share(expected, asked)
            say(f"{n} replicas, {router}: {one:.3f} found, {other:.3f} simulated")
            table.add_row(str(n), router, f"{one:.1%}", f"{other:.1%}", f"{(1 - one) / (1 - other):.3f}")
            rows.append({"replicas": n, "router": router, "real": real, "simulated": expected, "at": replicas})
    console.print(table)
    write_json(options["json"], {"prompts": [len(one.prompt.ids) for one in asked], "runs": rows})


if __name__ == "__main__":
    main()
