#!/usr/bin/env python3
"""Measure prompts of which only parts are read (--prefill sparse), against the same prompts read whole.

Recall: prompts with a needle, a code that the end asks for, in four surroundings at eight depths, read whole and read
in parts (--shares). Two hops: a fact that names another one; counted is whether both are among the parts, since the
packaged model does not put two facts together. Counts, so a busy machine does no harm.

Tools: sessions that read long files with a tool and are told to read another one, and recorded sessions of agents
(--transcripts: files of Claude Code or Codex, or folders of such) whose every answer is asked for again; what comes of
the call.

First token: random prompts that no memory has (--lengths), the time to the first token, whole over parts; and the time
in which the scorer chooses.

Beside: tokens a second of an answer while a long text is repaired, over the same without.

Session: an agent's session of twenty turns, half of it in the first prompt, with the prefix cache, with sparse reading
and with both.

Aims: recall at a share of 25 percent at least 97 percent of whole reading's, at 12 percent 90; the first token of 32K,
64K and 128K at a share of 20 percent 3, 3.5 and 4 times sooner on a GPU; an answer beside a repair at most 5 percent
slower; both together never slower than the better of the two.

  prefill.py --quick                                   does it work at all? some minutes on two cores
  prefill.py --only recall --needles 20                the full volumes
  prefill.py --only first beside --model 27B.gguf --scorer SMALL.gguf --gpu-layers 99 --lengths 32768 65536 131072
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.supervisor.evaluating.transcripts import find_transcripts, read_transcript
from scripts.bench.harness import ROOT, Ratio, make_quick, options_of, parser_of, write_json
from scripts.bench.memory.agent_session import SessionShape
from scripts.bench.prefill.first_token import measure_beside, measure_first_tokens
from scripts.bench.prefill.recall import RecallSample, measure_recall
from scripts.bench.prefill.session import SIDES, measure_session
from scripts.bench.prefill.tool_calls import measure_tool_calls, measure_transcripts
from tests.daemon_driver import DaemonDriver

PARTS = ("recall", "tools", "first", "beside", "session")
TRANSCRIPTS = ROOT / "tests" / "data" / "transcripts"
SCORER = ROOT / "tests" / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"
QUICK = {"needles": 1, "recall_lengths": [2048], "lengths": [4096], "pairs": 1, "turns": 5, "sessions": 1}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, has_quick=True, ubatch=0)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--scorer", type=Path, default=SCORER, metavar="GGUF")
    parser.add_argument("--transcripts", type=Path, nargs="+", default=[TRANSCRIPTS], metavar="PATH")
    parser.add_argument("--transcript-ctx", type=int, default=16384, metavar="N", help="a longer prompt is left out")
    parser.add_argument("--needles", type=int, default=4, metavar="N", help="of each kind at each depth and length")
    parser.add_argument("--first-needle", type=int, default=0, metavar="N", help="where several runs share the work")
    parser.add_argument("--recall-lengths", type=int, nargs="+", default=[2048, 3072, 4096, 6144], metavar="N")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.12], metavar="SHARE", help="of recall")
    parser.add_argument("--share", type=float, default=0.2, help="of everything else")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4096, 8192, 16384], metavar="N")
    parser.add_argument("--pairs", type=int, default=3, metavar="N")
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="of a session")
    parser.add_argument("--session-tokens", type=int, default=16384, metavar="N", help="of its last turn")
    parser.add_argument("--sessions", type=int, default=3, metavar="N")
    parser.add_argument("--think", type=float, default=2.0, metavar="SECONDS", help="between two turns of a session")
    args = parser.parse_args(arguments)
    make_quick(parser, args, QUICK)
    return args


class Run:
    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args = args
        self.console = console
        self.found: dict[str, list[object]] = {}

    def start(self, n_tokens: int, *more: str) -> DaemonDriver:
        """Room for one text of so many tokens in each of two lanes, and for no drafts."""
        n_ctx = -(-int(n_tokens * 1.1 + 512) // 64) * 64
        args = self.args
        return DaemonDriver(
            args.luced, args.model, "--lanes", "2", "--ctx", str(n_ctx), "--pool", str(2 * n_ctx),
            *(["--ubatch", str(args.ubatch)] if args.ubatch else []), "--threads", str(args.threads),
            "--gpu-layers", str(args.gpu_layers), "--cache-type-k", args.cache_type, "--cache-type-v", args.cache_type,
            "--draft-max", "0", "--prefill-scorer", str(args.scorer), *more,
        )  # fmt: skip

    def without_repair(self, n_tokens: int) -> DaemonDriver:
        return self.start(n_tokens, "--prefill-repair", "off")

    def note(self, part: str, sample: object) -> None:
        self.found.setdefault(part, []).append(sample)
        self.console.log(f"{part}: {sample}", highlight=False)
        samples = {name: [vars_of(item) for item in items] for name, items in self.found.items()}
        write_json(self.args.json, {"options": options_of(self.args), **samples})

    def recall(self) -> None:
        args = self.args
        samples = measure_recall(
            self.without_repair, args.model, args.recall_lengths, args.shares,
            range(args.first_needle, args.first_needle + args.needles),
            lambda sample: self.note("recall", sample),
        )  # fmt: skip
        table = Table("needles", "n", "whole", *(f"{share:.0%} read" for share in args.shares), "of whole's")
        for kind, rows in grouped(samples):
            table.add_row(
                kind, str(len(rows)), share_of(row.whole for row in rows),
                *(share_of(row.found[share] for row in rows) for share in args.shares),
                " / ".join(share_of(row.found[share] for row in rows if row.whole) for share in args.shares),
            )  # fmt: skip
        self.console.print(table)

    def tools(self) -> None:
        args = self.args
        samples = measure_tool_calls(
            self.without_repair, args.model, args.recall_lengths, args.shares, args.needles,
            lambda sample: self.note("tools", sample),
        )  # fmt: skip
        sessions = [read_transcript(path) for path in find_transcripts(args.transcripts)]
        recorded = measure_transcripts(
            self.without_repair, args.model, sessions, args.transcript_ctx, args.shares,
            lambda sample: self.note("tools", sample),
        )  # fmt: skip
        table = Table("sessions", "a call is", "answers", "read", "right", "another call", "no call", "cut", "broken")
        for name, of_kind in (("made", samples), ("recorded", recorded)):
            for is_required in (False, True):
                rows = [sample for sample in of_kind if sample.is_required == is_required]
                for share in (1.0, *args.shares):
                    told = [sample.whole if share == 1.0 else sample.found[share] for sample in rows]
                    counts = (str(told.count(word)) for word in ("right", "formed", "none", "cut", "broken"))
                    kind = "required" if is_required else "free"
                    table.add_row(name, kind, str(len(rows)), f"{share:.0%}", *counts)
        self.console.print(table)

    def first(self) -> None:
        args = self.args
        found = measure_first_tokens(
            self.without_repair, args.lengths, args.share, args.pairs, lambda sample: self.note("first", sample)
        )
        table = Table("prompt", "read", "whole, s", "parts, s", "chosen in, s", "whole / parts")
        for n_tokens in args.lengths:
            rows = [row for row in found if row.n_tokens == n_tokens]
            middle = [statistics.median(getattr(row, name) for row in rows) for name in
                      ("n_read", "whole_s", "sparse_s", "scored_s")]  # fmt: skip
            table.add_row(
                str(n_tokens), f"{middle[0]:.0f}", *(f"{value:.2f}" for value in middle[1:]),
                str(Ratio.of([row.ratio for row in rows])),
            )  # fmt: skip
        self.console.print(table)

    def beside(self) -> None:
        args = self.args
        found = measure_beside(
            self.start, max(args.lengths), args.share, args.pairs, lambda sample: self.note("beside", sample)
        )
        self.console.print(f"an answer beside a repair: {Ratio.of([row.ratio for row in found])} of its speed alone")

    def session(self) -> None:
        args = self.args
        shape = SessionShape(args.turns, args.session_tokens, n_system=args.session_tokens // 2)
        turns = measure_session(
            self.start, shape, args.share, args.think, args.sessions, lambda turn: self.note("session", turn)
        )
        table = Table("side", "first turn, s", "all turns, s", "tokens read")
        for side in SIDES:
            rows = [turn for turn in turns if turn.side == side]
            n = args.sessions
            table.add_row(
                side, f"{sum(row.seconds for row in rows if row.number == 1) / n:.2f}",
                f"{sum(row.seconds for row in rows) / n:.2f}", f"{sum(row.n_read for row in rows) / n:.0f}",
            )  # fmt: skip
        self.console.print(table)


def vars_of(sample: object) -> dict[str, object]:
    assert hasattr(sample, "__dataclass_fields__")
    return asdict(sample)  # type: ignore[call-overload,no-any-return]


def grouped(samples: Sequence[RecallSample]) -> list[tuple[str, list[RecallSample]]]:
    """By kind, and all but the two hops together, whose answers say nothing."""
    kinds = list(dict.fromkeys(sample.kind for sample in samples))
    rows = [(kind, [sample for sample in samples if sample.kind == kind]) for kind in kinds]
    lengths = sorted({sample.n_tokens for sample in samples})
    by_length = [(f"{n} tokens", [s for s in samples if s.n_tokens == n and s.kind != kinds[-1]]) for n in lengths]
    return [*rows, *by_length, ("all but two hops", [sample for sample in samples if sample.kind != kinds[-1]])]


def share_of(flags: Iterable[bool]) -> str:
    items = list(flags)
    return f"{sum(items) / len(items):.1%}" if items else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    run = Run(args, Console(stderr=False))
    for part in args.only:
        getattr(run, part)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
