#!/usr/bin/env python3
"""Measure luced's prefix cache against llama-server of the same llama.cpp and against libllama itself.

An agent's session: 20 turns with tool results that grow to 8K tokens, a second conversation with the same system
prompt, an edit in the middle, and back to the first one. Each request goes to luced, to llama-server (--vs; its default
checkpoints) and, as "bare", to a plain llama_decode loop that holds exactly what the request has in common with what
was computed before and reads the rest in calls of --ubatch: what a cache that costs nothing and forgets nothing needs.
The three take turns request by request; each pair is another session with other tokens, in the same processes.

Reported: time to the first token (from writing the request to having the token, medians over the pairs), its ratio to
bare and to llama-server pair by pair, and how many tokens each side read. Aims: warm first token at most 1.1 of bare;
no turn worse than llama-server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

from luce.protocol import GenerateOk, Token

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.decode.bare_loop import BareLoop
from scripts.bench.harness import (
    in_turns,
    llama_server_arguments,
    luced_arguments,
    model_path,
    parser_of,
    write_json,
)
from scripts.bench.memory.agent_session import AgentSession, Conversation, SessionShape, Step
from scripts.bench.servers import Completion, LlamaServer
from tests.daemon_driver import DaemonDriver, gen_line

MODELS = ("luce-tiny", "bench-window-small", "bench-attention-small")  # hybrid, sliding windows, attention alone


@dataclass(frozen=True)
class Sample:
    """One request, as each side served it. Times to the first token in seconds."""

    step: str
    is_warm: bool
    n_prompt: int
    n_new: int
    """Tokens that were in no earlier request."""
    luced_s: float
    luced_inside_s: float
    luced_read: int
    tier: str
    miss: str
    bare_s: float | None = None
    server_s: float | None = None
    server_inside_s: float | None = None
    server_read: int | None = None


@dataclass
class Sides:
    luced: DaemonDriver
    bare: BareLoop | None
    server: LlamaServer | None
    n_answer: int


def ask_luced(daemon: DaemonDriver, conversation: Conversation, n: int) -> tuple[float, GenerateOk, list[int]]:
    marks = ",".join(map(str, conversation.ends))
    line = gen_line(1, n, conversation.tokens, f"ignore_eos=1 marks={marks}")
    started_s = monotonic()
    daemon.send(line)
    first = daemon.next_token()
    first_token_s = monotonic() - started_s
    assert isinstance(first, Token), first
    tokens = [first.value, *daemon.tokens_until_end()]
    return first_token_s, daemon.next_ok(), tokens


def ask_bare(bare: BareLoop, sent: Sequence[int], n_known: int, *, goes_on: bool) -> float:
    bare.fill_to(sent, n_known, is_extended=goes_on)
    return bare.fill(sent, n_known, len(sent))


def run_step(sides: Sides, ours: AgentSession, theirs: AgentSession, step: Step, *, goes_on: bool, turn: int) -> Sample:
    conversation, n_known = ours.prepare(step)
    sent = list(conversation.tokens)
    other, _ = theirs.prepare(step)
    completion: Completion | None = None
    bare_s: float | None = None
    luced_s = 0.0
    reply, tokens = GenerateOk(), list[int]()
    for side in in_turns(("luced", "bare", "server"), turn):
        if side == "luced":
            luced_s, reply, tokens = ask_luced(sides.luced, conversation, sides.n_answer)
        elif side == "bare" and sides.bare is not None:
            bare_s = ask_bare(sides.bare, sent, n_known, goes_on=goes_on)
        elif side == "server" and sides.server is not None:
            completion = sides.server.complete(other.tokens, sides.n_answer)
    conversation.answer(tokens)
    other.answer(completion.tokens if completion else tokens)
    return Sample(
        step.name, step.is_warm, len(sent), len(sent) - n_known, luced_s, reply.prefill_s,
        reply.n_prompt - reply.n_reused, reply.tier, reply.miss, bare_s,
        completion.first_token_s if completion else None,
        completion.prompt_s if completion else None,
        completion.n_computed if completion else None,
    )  # fmt: skip


def run_session(sides: Sides, shape: SessionShape, seed: int) -> list[Sample]:
    ours, theirs = AgentSession(shape, seed), AgentSession(shape, seed)
    samples = []
    before: Step | None = None
    for i, step in enumerate(ours.steps):
        goes_on = before is not None and before.conversation == step.conversation
        samples.append(run_step(sides, ours, theirs, step, goes_on=goes_on, turn=i + seed))
        before = step
    return samples


def run_model(args: argparse.Namespace, model: Path, console: Console) -> list[list[Sample]]:
    shape = SessionShape(args.turns, args.tokens, args.system, args.answer)
    n_ctx = -(-(args.tokens * 5 // 4) // 256) * 256
    arguments = luced_arguments(args, 4, n_ctx, max(args.pool, n_ctx))
    with ExitStack() as stack:
        more = ("--flash-attn", "on", "--host-cache", "4G")
        daemon = stack.enter_context(DaemonDriver(args.luced, model, *arguments, *more))
        bare = None
        if args.bare.exists():
            bare = stack.enter_context(BareLoop(args, model, 1, n_ctx))
        server = None
        if args.vs is not None:
            server = stack.enter_context(LlamaServer(args.vs, model, *llama_server_arguments(args, 4, args.pool)))
        sides = Sides(daemon, bare, server, args.answer)
        warm_up = SessionShape(2, min(args.tokens, 1024), min(args.system, 256), args.answer)
        run_session(sides, warm_up, 0)
        pairs = []
        for i in range(args.pairs):
            pairs.append(run_session(sides, shape, i + 1))
            console.log(f"{model.stem}: session {i + 1} of {args.pairs}")
            if args.json:  # what there is, should the run not come to its end
                samples = [[asdict(sample) for sample in pair] for pair in pairs]
                args.json.with_suffix(f".{model.stem}.part").write_text(json.dumps(samples))
    return pairs


def median(values: Iterable[float | None]) -> float:
    """Of those that were measured; 0 if none was."""
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else 0.0


def whole(values: Iterable[float | None]) -> str:
    return f"{median(values):.0f}"


def ms(values: Iterable[float | None]) -> str:
    return f"{median(values) * 1e3:.1f}"


def ratio(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def show_model(console: Console, model: str, pairs: list[list[Sample]]) -> dict[str, Any]:
    """A row for each request; what all of them come to."""
    has_bare, has_server = pairs[0][0].bare_s is not None, pairs[0][0].server_s is not None
    table = Table(title=f"{model}: time to the first token, ms; tokens read; medians of {len(pairs)} pairs")
    names = ["request", "tokens", "new", "luced", "it read", "tier, miss"]
    names += ["bare", "luced / bare"] if has_bare else []
    names += ["llama-server", "it read", "llama-server / luced"] if has_server else []
    for name in names:
        table.add_column(name, justify="left" if name == "request" else "right")
    figures = []
    for rows in zip(*pairs, strict=True):
        to_bare = [row.luced_s / row.bare_s for row in rows if row.bare_s is not None]
        to_server = [row.server_s / row.luced_s for row in rows if row.server_s is not None]
        cells = [
            rows[0].step, whole(r.n_prompt for r in rows), whole(r.n_new for r in rows), ms(r.luced_s for r in rows),
            whole(r.luced_read for r in rows), f"{rows[0].tier} {rows[0].miss}",
        ]  # fmt: skip
        if has_bare:
            cells += [ms(r.bare_s for r in rows), ratio(to_bare)]
        if has_server:
            cells += [ms(r.server_s for r in rows), whole(r.server_read for r in rows), ratio(to_server)]
        table.add_row(*cells)
        figures.append({
            "step": rows[0].step, "is_warm_turn": rows[0].is_warm and rows[0].step.startswith("turn"),
            "to_bare": median(to_bare), "server_to_luced": median(to_server),
        })  # fmt: skip
    console.print(table)
    summary: dict[str, Any] = {"steps": figures}
    if has_bare:
        turns = [f["to_bare"] for f in figures if f["is_warm_turn"]]
        summary["warm_turns_to_bare"] = median(turns)
        summary["worst_warm_turn_to_bare"] = max(turns)
        sums = [sum(s.luced_s for s in pair) / sum(s.bare_s or 0 for s in pair) for pair in pairs]
        summary["session_to_bare"] = median(sums)
    if has_server:
        summary["least_server_to_luced"] = min(f["server_to_luced"] for f in figures)
        sums = [sum(s.server_s or 0 for s in pair) / sum(s.luced_s for s in pair) for pair in pairs]
        summary["session_server_to_luced"] = median(sums)
    for name, value in summary.items():
        if name != "steps":
            console.print(f"{name}: {value:.3f}")
    return summary


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, model=None, bare="bare", has_peer=True)
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="MODEL",
                        help="GGUF files, luce-tiny, or shapes of make_test_models.py")  # fmt: skip
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8192, help="length of the conversation's last turn")
    parser.add_argument("--system", type=int, default=1200, help="tokens of the system prompt with its tools")
    parser.add_argument("--answer", type=int, default=24, help="tokens of each answer")
    parser.add_argument("--pool", type=int, default=16384, help="cells of all conversations, on both sides")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if args.vs is None:
        console.print("luced alone: without --vs PATH nothing is compared with llama-server")
    if not args.bare.exists():
        console.print(f"no {args.bare.name} (cmake --preset release builds it): nothing is compared with libllama")
    results: dict[str, Any] = {}
    for name in args.models:
        model = model_path(name)
        pairs = run_model(args, model, console)
        results[model.stem] = show_model(console, model.stem, pairs)
        results[model.stem]["samples"] = [[asdict(sample) for sample in pair] for pair in pairs]
        write_json(args.json, results)


if __name__ == "__main__":
    main()
