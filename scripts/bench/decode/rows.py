#!/usr/bin/env python3
"""How fast luced reads and writes, row by row, against llama.cpp's own programs on the same libllama or against itself,
in turns in one run. Chosen with --rows:

  decode    an answer behind each of --depths, against llama-bench
  prefill   prompts of these lengths, against llama-bench with the best of --peer-ubatches
  lanes     each of --lanes, against llama-batched-bench (lanes of one length) or the bare loop (others): the better of
            its two modes, cells that all lanes share and cells for each
  bare      each of --lanes against the bare loop with shared cells; with one lane the first token; memory
  server    each of --lanes, of one lane, against llama-server's own timing (--vs)
  sampled   each of --lanes, sampled (temperature 0.7, top-k 40, top-p 0.95) against greedy
  constrained  the same with what requests with tools bring along, a grammar that waits for a call and a thinking budget
  cached    a request beside each of --cached cells of idle texts, against the same beside none
  beside    a running lane's gaps beside a long prompt, in slices; that prompt beside it against alone

The figures are tokens a second, as ratios, pair by pair: the whole answer, its first --early tokens and the rest. The
longest gap after the third token is in medians of a gap. The aims are in docs/benchmarks. The model needs no vocabulary
but in `server` and `constrained`. Nothing but Python's own library is needed: it runs on a GPU machine as it is:

    rows.py --luced L --llama-bench B --llama-batched-bench C --model M --gpu-layers 99 --rows decode,prefill --json OUT
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from luce.protocol import StatusLine

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from scripts.bench.decode.answers import CONSTRAINED, GREEDY, SAMPLED, Answers, ask, ask_beside
from scripts.bench.decode.bare_loop import BareLoop
from scripts.bench.decode.peers import (
    Rate,
    llama_batched_bench,
    llama_bench,
    read_llama_batched_bench,
    read_llama_bench,
)
from scripts.bench.harness import (
    BUILD,
    Ratio,
    llama_server_arguments,
    luced_arguments,
    measure_pairs,
    options_of,
    parser_of,
    write_json,
)
from scripts.bench.servers import LlamaServer
from tests.daemon_driver import DaemonDriver, random_prompt

Group = tuple[int, ...]
"""The lengths of the prompts that start together."""


@dataclass(frozen=True)
class Figure:
    """One line of the table: `ours` against `theirs`, pair by pair; or what stands by itself."""

    row: str
    case: str
    name: str
    against: str
    ours: Sequence[float]
    theirs: Sequence[float] = ()

    def __str__(self) -> str:
        if not self.theirs:
            return f"| {self.row} | {self.case} | {self.name} | | | | {Ratio.of(self.ours)} |"
        ratio = Ratio.of([a / b if b else 0.0 for a, b in zip(self.ours, self.theirs, strict=True)])
        ours, theirs = (f"{statistics.median(side):.1f}" for side in (self.ours, self.theirs))
        return f"| {self.row} | {self.case} | {self.name} | {self.against} | {ours} | {theirs} | {ratio} |"


Figures = Iterator[Figure]
HEAD = "| row | case | figure | against | luced | it | ratio, median (range) |\n|---|---|---|---|---|---|---|"


def group_of(text: str) -> Group:
    """`1x65536+7x1024`: one lane of so many tokens beside seven of fewer."""
    pairs = [part.split("x") for part in text.split("+")]
    return tuple(int(length) for n, length in pairs for _ in range(int(n)))


def name_of(group: Group) -> str:
    return "+".join(f"{group.count(length)}x{length}" for length in dict.fromkeys(group))


def cells_of(group: Group, n: int) -> int:
    """For all lanes, in the multiples of 256 that libllama uses."""
    return -(-sum(length + n + 64 for length in group) // 256) * 256


def prompts_of(group: Group, seed: int) -> list[list[int]]:
    return [random_prompt(length, 1000 * seed + i) for i, length in enumerate(group)]


def luced(args: argparse.Namespace, groups: Sequence[Group], *more: str, n_pool: int = 0) -> DaemonDriver:
    """Warm: it has answered."""
    n_ctx = -(-max(max(group) + args.tokens + 64 for group in groups) // 256) * 256
    n_pool = n_pool or max(n_ctx, *(cells_of(group, args.tokens) for group in groups))
    arguments = [*luced_arguments(args, max(map(len, groups)), n_ctx, n_pool), "--flash-attn", "on", "--draft-max", "0"]
    return DaemonDriver(args.luced, args.model, *arguments, *more)


def warm_up(daemon: DaemonDriver, args: argparse.Namespace, group: Group) -> None:
    for _ in range(2):
        ask(daemon, prompts_of(tuple(min(length, 1024) for length in group), 0), min(args.tokens, 32))


def answer_figures(
    row: str, case: str, against: str, args: argparse.Namespace, ours: Sequence[Answers], theirs: Sequence[Rate]
) -> Figures:
    if all(rate.prefill for rate in theirs):
        yield Figure(row, case, "prefill", against, [a.prefill for a in ours], [rate.prefill for rate in theirs])
    rates = [rate.decode for rate in theirs]
    if all(rates) and args.tokens > 2:
        yield Figure(row, case, "decode", against, [a.decode for a in ours], rates)
        if args.tokens > args.early:
            yield Figure(row, case, f"first {args.early}", against, [a.early(args.early) for a in ours], rates)
            yield Figure(row, case, "the rest", against, [a.rest(args.early) for a in ours], rates)
        yield Figure(row, case, "longest gap", "", [a.worst_gap for a in ours])


def by_depth(args: argparse.Namespace, row: str) -> Figures:
    """`decode` and `prefill`."""
    n = args.tokens if row == "decode" else 2

    def of_luced(pair: int) -> list[Answers]:
        return [ask(daemon, prompts_of((depth,), pair), n) for depth in args.depths]

    def of_peer(_: int) -> list[Rate]:
        if row == "decode":
            rates = read_llama_bench(llama_bench(args, [0], n, args.depths))
            return [Rate(0.0, rates[0, depth]) for depth in args.depths]
        rates = read_llama_bench(llama_bench(args, args.depths, 0, [0]))
        return [Rate(rates[depth, 0], 0.0) for depth in args.depths]

    with luced(args, [(depth,) for depth in args.depths]) as daemon:
        warm_up(daemon, args, (max(args.depths),))
        ours, theirs = measure_pairs(of_luced, of_peer, args.pairs)
    for depth, answers, rates in zip(args.depths, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
        yield from answer_figures(row, f"{depth}", "llama-bench", args, answers, rates)


def better(rates: Sequence[Rate]) -> Rate:
    return Rate(max(rate.prefill for rate in rates), max(rate.decode for rate in rates))


def batched_rate(args: argparse.Namespace, group: Group, *, is_unified: bool) -> Rate:
    text = llama_batched_bench(args, len(group), group[0], args.tokens, is_unified=is_unified)
    return read_llama_batched_bench(text)[len(group)]


def bare_rate(bare: BareLoop, group: Group, n: int, pair: int) -> Rate:
    filled_s = [bare.fill(text, 0, len(text), lane) for lane, text in enumerate(prompts_of(group, pair))]
    return Rate(sum(group) / sum(filled_s), (n - 1) * len(group) / bare.generate(n - 1))


def by_lanes(args: argparse.Namespace, group: Group) -> Figures:
    is_equal = len(set(group)) == 1

    def of_mode(pair: int, *, is_unified: bool) -> Rate:
        if is_equal:
            return batched_rate(args, group, is_unified=is_unified)
        n_cells = cells_of(group if is_unified else (max(group),) * len(group), args.tokens)
        with BareLoop(args, args.model, len(group), n_cells, is_unified=is_unified) as bare:
            return bare_rate(bare, group, args.tokens, pair)

    with luced(args, [group]) as daemon:
        warm_up(daemon, args, group)
        ours, theirs = measure_pairs(
            lambda pair: ask(daemon, prompts_of(group, pair), args.tokens),
            lambda pair: better([of_mode(pair, is_unified=mode) for mode in (False, True)]),
            args.pairs,
        )
    peer = "llama-batched-bench" if is_equal else "bare loop"
    yield from answer_figures("lanes", name_of(group), peer, args, ours, theirs)
    # luced's first lanes answer while it reads the last ones' prompts, which the peers do one after the other.
    n_made = args.tokens * len(group)
    their_s = [sum(group) / rate.prefill + n_made / rate.decode for rate in theirs]
    yield Figure("lanes", name_of(group), "all tokens", peer, [(sum(group) + n_made) / a.whole_s for a in ours],
                 [(sum(group) + n_made) / s for s in their_s])  # fmt: skip


def against_bare(args: argparse.Namespace, group: Group) -> Figures:
    with luced(args, [group]) as daemon, BareLoop(args, args.model, len(group), cells_of(group, args.tokens)) as bare:
        warm_up(daemon, args, group)
        bare_rate(bare, group, 32, 0)
        ours, theirs = measure_pairs(
            lambda pair: ask(daemon, prompts_of(group, pair), args.tokens),
            lambda pair: bare_rate(bare, group, args.tokens, pair),
            args.pairs,
        )
        grown_kb = daemon.resident_kb() - bare.resident_kb()
    case = name_of(group)
    yield from answer_figures("bare", case, "bare loop", args, ours, theirs)
    if len(group) == 1:
        later_ms = [1e3 * (a.begin_s - a.n_prompt / rate.prefill) for a, rate in zip(ours, theirs, strict=True)]
        yield Figure("bare", case, "first token, ms later", "", later_ms)
    yield Figure("bare", case, "memory, MB more", "", [grown_kb / 1024])


def against_server(args: argparse.Namespace, group: Group) -> Figures:
    """Of one lane, by its own clock. Several over HTTP: http/cost.py."""

    def of_server(pair: int) -> Rate:
        answer = server.complete(prompts_of(group, pair)[0], args.tokens)
        return Rate(answer.n_computed / answer.prompt_s, (args.tokens - 1) / answer.decode_s)

    arguments = llama_server_arguments(args, 1, cells_of(group, args.tokens))
    with luced(args, [group]) as daemon, LlamaServer(args.vs, args.model, *arguments) as server:
        warm_up(daemon, args, group)
        of_server(0)
        ours, theirs = measure_pairs(
            lambda pair: ask(daemon, prompts_of(group, pair), args.tokens), of_server, args.pairs
        )
    yield from answer_figures("server", name_of(group), "llama-server", args, ours, theirs)


def sampled(args: argparse.Namespace, group: Group, row: str, sampling: str) -> Figures:
    with luced(args, [group]) as daemon:
        warm_up(daemon, args, group)
        ours, theirs = measure_pairs(
            lambda pair: ask(daemon, prompts_of(group, pair), args.tokens, sampling),
            lambda pair: ask(daemon, prompts_of(group, pair), args.tokens, GREEDY),
            args.pairs,
        )
    yield Figure(row, name_of(group), "decode", "greedy", [a.decode for a in ours], [a.decode for a in theirs])


def cached(args: argparse.Namespace) -> Figures:
    """From few cells to many, since filling takes longest; a second measurement beside none, at the end, says how much
    the machine itself has changed."""
    length, volumes = args.cached_prompt, [*sorted(args.cached), 0]
    n_pool = -(-(max(volumes) + len(volumes) * (length + args.tokens + 64) + args.cached_text) // 256) * 256
    group = (max(length, args.cached_text),)
    seen: list[list[Answers]] = [[] for _ in volumes]
    spanned = [0] * len(volumes)
    with luced(args, [group], "--host-cache", args.host_cache, n_pool=n_pool) as daemon:
        warm_up(daemon, args, group)
        for pair in range(args.pairs):
            n_idle = 0
            for i, volume in enumerate(volumes):
                if volume == 0:
                    daemon.send("CLEAR")
                    daemon.next_reply()
                for at in range(n_idle, volume, args.cached_text):
                    ask(daemon, [random_prompt(args.cached_text, 7 + at + pair)], 1)
                n_idle = max(n_idle, volume)
                seen[i].append(ask(daemon, prompts_of((length,), 100 * pair + i + 1), args.tokens))
                spanned[i] = max(spanned[i], spanned_cells(daemon))
    none = [Rate(a.prefill, a.decode) for a in seen[0]]
    for volume, answers, n_spanned in zip(volumes[1:], seen[1:], spanned[1:], strict=True):
        case = f"{length} beside {volume}" if volume else f"{length} alone again"
        yield from answer_figures("cached", case, "beside none", args, answers, none)
        yield Figure("cached", case, "cells spanned", "beside none", [n_spanned], [spanned[0]])


def spanned_cells(daemon: DaemonDriver) -> int:
    daemon.send("status")
    reply = daemon.next_reply()
    assert isinstance(reply, StatusLine), reply
    return int(dict(reply.fields)["cells_spanned"])


def beside(args: argparse.Namespace) -> Figures:
    """Each slice lets the running lane have one token: what a slice and its step take together is the mean gap."""
    length = args.beside
    alone, together = [], []
    with luced(args, [(16, length)], n_pool=4 * length) as daemon:
        warm_up(daemon, args, (16, length))
        for pair in range(args.pairs):
            alone.append(ask(daemon, prompts_of((length,), pair + 1), 1).begin_s)
            together.append(ask_beside(daemon, random_prompt(16), random_prompt(length, pair + 1)))
    yield Figure("beside", f"{length}", "longest gap, slices", "", [t.longest_gap_s / t.slice_s for t in together])
    yield Figure("beside", f"{length}", "prompt's time", "alone", [t.prompt_s for t in together], alone)


def each_of(measure: Callable[[argparse.Namespace, Group], Figures]) -> Callable[[argparse.Namespace], Figures]:
    return lambda args: (figure for group in args.lanes for figure in measure(args, group))


ROWS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "decode": partial(by_depth, row="decode"), "prefill": partial(by_depth, row="prefill"),
    "lanes": each_of(by_lanes), "bare": each_of(against_bare), "server": each_of(against_server),
    "sampled": each_of(partial(sampled, row="sampled", sampling=SAMPLED)),
    "constrained": each_of(partial(sampled, row="constrained", sampling=CONSTRAINED)),
    "cached": cached, "beside": beside,
}  # fmt: skip


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, bare="bare", has_peer=True)
    llama = BUILD / "bin"
    parser.add_argument("--llama-bench", type=Path, default=llama / "llama-bench")
    parser.add_argument("--llama-batched-bench", type=Path, default=llama / "llama-batched-bench")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=["decode", "prefill"], metavar="ROW,…")
    parser.add_argument("--depths", type=numbers, default=[64, 1024, 8192, 32768], metavar="N,…")
    parser.add_argument("--lanes", type=lambda text: [group_of(group) for group in text.split(",")], metavar="GROUP,…",
                        default=[(512,) * n for n in (1, 4, 8, 16)], help="such as 8x8192,1x65536+7x1024")  # fmt: skip
    parser.add_argument("--cached", type=numbers, default=[0, 65536], metavar="N,…", help="cells of idle texts")
    parser.add_argument("--cached-text", type=int, default=8192, help="tokens of each of these texts")
    parser.add_argument("--cached-prompt", type=int, default=8192, help="tokens of the request beside them")
    parser.add_argument("--beside", type=int, default=4000, help="tokens of the prompt that a running lane notices")
    parser.add_argument("--host-cache", default="0", help="as luced's option; 0: all that stays is in the pool")
    parser.add_argument("--peer-ubatches", type=numbers, default=[512, 2048], metavar="N,…")
    parser.add_argument("--tokens", type=int, default=300, help="of each answer")
    parser.add_argument("--early", type=int, default=150, help="of these, the first ones")
    parser.add_argument("--pairs", type=int, default=1)
    args = parser.parse_args(arguments)
    if unknown := set(args.rows) - ROWS.keys():
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(ROWS)}")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    print(HEAD)
    figures = []
    for row in args.rows:
        for figure in ROWS[row](args):
            print(figure, flush=True)
            figures.append(figure)
            write_json(args.json, {"options": options_of(args), "figures": list(map(asdict, figures))})


if __name__ == "__main__":
    main()
