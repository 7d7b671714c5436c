#!/usr/bin/env python3
"""Measure speculation: luced with it against luced without, against fixed settings, and against llama-server's own.

Each prompt of each set (tests/data/speculation) is answered by all sides one after the other, another one first each
time: luced without a draft ("plain"), with one as it comes ("gate"), with the gate off and a fixed number of drafted
tokens ("fixed N", with and without the n-gram source), and with --vs llama-server of the same llama.cpp, plain and with
--spec-type draft-dflash over a sweep of --spec-draft-n-max ("server N"). All are loaded at once and never run at the
same time. Each set has fresh processes: its first pass is the cold one, --pairs further ones count. Processes that do
the same differ by some percent for as long as they run: --processes N does all of it N times, with new ones each time,
and the pairs of all of them count.

Only decoding counts, from the first token to the last, by each side's own clock (luced's decode_s, llama-server's
predicted_ms). With several lanes so many prompts of a set run at once, those with answers of like length together; each
has been read just before and is reused, and the mean of their times counts. Tokens a second of a set is the sum of its
tokens by the sum of these times. --context N puts a conversation before each prompt, so long that the longest one comes
to N tokens with its answer; it is read once and reused.

Greedy answers are compared with plain decoding's, by the margin rule (tests/daemon/same_tokens.py); a difference at a
clear step ends the program with status 1. Aims: gate / plain at least 0.98 in every set, at every number of lanes and
context; gate / best fixed at least 0.95; gate / best of llama-server at least 1.0 in every set, 1.1 overall.

  speculation.py --quick      does it work at all?
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.supervisor.config import engine_environment
from scripts.bench.harness import (
    TINY,
    in_turns,
    make_quick,
    options_of,
    parser_of,
    write_json,
)
from scripts.bench.speculation.prompts import SET_NAMES, RenderedPrompt, load_rendered
from scripts.bench.speculation.report import (
    FIXED,
    GATE,
    PLAIN,
    SERVER,
    Cell,
    Group,
    Sameness,
    show_group,
    verdicts,
)
from scripts.bench.speculation.sides import EngineSettings, LucedSide, ServerSide, Side, Wave
from tests.daemon.same_tokens import NOISE_BATCHING

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 15)
PARTS = (GATE, FIXED, SERVER)
NEVER = ["--draft-max", "0"]
SPARE = 32
"""Cells beyond a text's tokens: a step of the widest draft fits."""
SHORTEST_CONVERSATION = 256
QUICK = {"prompts": 4, "tokens": 64, "pairs": 2, "fixed": [4], "fixed_ngram": ["on"], "server_widths": [4]}


def waves_of(
    prompts: Sequence[RenderedPrompt], n_lanes: int, n_answers: Mapping[str, int]
) -> list[list[RenderedPrompt]]:
    """As many at once as there are lanes. Once it is known how long their answers are, those of like length together,
    so that the lanes stay busy; what is left over is filled up from the start."""
    ordered = sorted(prompts, key=lambda prompt: n_answers.get(prompt.name, 0)) if n_lanes > 1 else list(prompts)
    if len(ordered) >= n_lanes:
        ordered += ordered[: -len(ordered) % n_lanes]
    return [ordered[i : i + n_lanes] for i in range(0, len(ordered), n_lanes)]


class Comparer:
    """Compares a wave's answers with plain decoding's."""

    def __init__(
        self, plain: LucedSide, prompts: Sequence[RenderedPrompt], n_tokens: int, noise: float = NOISE_BATCHING
    ) -> None:
        self._plain = plain
        self._prompts = {prompt.name: prompt for prompt in prompts}
        self._n_tokens = n_tokens
        self._noise = noise
        self._margins: dict[str, list[float]] = {}

    def compare(self, side: str, wave: Wave, plain: Wave, same: Sameness) -> None:
        for answer, reference in zip(wave.answers, plain.answers, strict=True):
            same.n_answers += 1
            step = first_difference(answer.tokens, reference.tokens)
            if step is None:
                continue
            # Where one just ends before the other no tie explains it: an end token is a token too.
            is_cut = step == min(len(answer.tokens), len(reference.tokens))
            margin = float("inf") if is_cut else self._margins_of(answer.name)[step]
            text = f"{side}, {answer.name}: step {step}, margin {margin:.3f}"
            (same.unclear if margin < self._noise else same.clear).append(text)

    def _margins_of(self, name: str) -> list[float]:
        """Plain decoding's, alone."""
        if name not in self._margins:
            self._margins[name] = self._plain.margins(self._prompts[name], self._n_tokens)
        return self._margins[name]


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """The first step at which they part; the shorter one's end counts."""
    for step, (a, b) in enumerate(zip(tokens, reference, strict=False)):
        if a != b:
            return step
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def count_same_text(wave: Wave, plain: Wave, same: Sameness) -> None:
    """Another program's answers: it is only told how many are the same, because speeds compare on equal texts."""
    for answer, reference in zip(wave.answers, plain.answers, strict=True):
        same.n_answers += 1
        if (step := first_difference(answer.tokens, reference.tokens)) is not None:
            same.unclear.append(f"{answer.name}: another text from step {step} on")


def run_set(
    args: argparse.Namespace, group: Group, sides: Sequence[Side], name: str, prompts: Sequence[RenderedPrompt]
) -> None:
    """All passes over this set, into the group's cells. REQUIRES: the first side is plain."""
    plain = sides[0]
    assert isinstance(plain, LucedSide)
    comparer = Comparer(plain, prompts, args.tokens)
    n_answers: dict[str, int] = {}
    turn = 0
    for i in range(args.pairs + 1):
        found: dict[str, list[Wave]] = {}
        for wave in waves_of(prompts, group.n_lanes, n_answers):
            answers = {side.name: side.answer(wave, args.tokens) for side in in_turns(sides, turn)}
            turn += 1
            if i == 0:
                n_answers |= {answer.name: len(answer.tokens) for answer in answers[PLAIN].answers}
            for side in sides:
                found.setdefault(side.name, []).append(answers[side.name])
                if side is plain:
                    continue
                same = group.same.setdefault(SERVER if isinstance(side, ServerSide) else side.name, Sameness())
                if isinstance(side, ServerSide):
                    count_same_text(answers[side.name], answers[PLAIN], same)
                else:
                    comparer.compare(side.name, answers[side.name], answers[PLAIN], same)
        for side_name, waves in found.items():
            group.cells.setdefault((name, side_name), []).append(Cell.of(waves))


def side_arguments(args: argparse.Namespace, n_lanes: int) -> dict[str, list[str]]:
    """The sides by name, plain first, with what each program gets beyond what all of them get."""
    draft = ["--draft", str(args.draft)] if args.draft is not None else []  # without: what needs no model, n-grams
    draft += shlex.split(args.draft_arguments)
    sides: dict[str, list[str]] = {PLAIN: NEVER}
    if GATE in args.only:
        sides[GATE] = draft
    if FIXED in args.only:
        for ngram in args.fixed_ngram:
            for width in args.fixed:
                name = f"{FIXED} {width}{' ngram' if ngram == 'on' else ''}"
                sides[name] = [*draft, "--draft-adaptive", "off", "--draft-max", str(width), "--draft-ngram", ngram]
    if SERVER in args.only and args.vs is not None and n_lanes == 1:
        sides[SERVER] = []
        for width in args.server_widths if args.draft is not None else ():
            sides[f"{SERVER} {width}"] = ["--spec-draft-n-max", str(width)]
    return sides


def start_side(
    stack: ExitStack, args: argparse.Namespace, settings: EngineSettings, name: str, more: Sequence[str]
) -> Side:
    if name.partition(" ")[0] != SERVER:
        return stack.enter_context(LucedSide.start(name, args.luced, settings, *more))
    arguments = [*settings.server_draft_arguments(), *more] if more else []
    side = ServerSide(name, args.vs, settings, *arguments)
    stack.enter_context(side)
    return side


def load_prompts(args: argparse.Namespace, n_context: int, console: Console) -> dict[str, list[RenderedPrompt]]:
    """The sets that are asked for, the longest prompt with its conversation and answer n_context tokens long."""
    prompts = load_rendered(args.model, args.sets, n_prompts=args.prompts, report=console.log)
    if n_context == 0:
        return prompts
    n_before = n_context - longest_of(prompts) - args.tokens - SPARE
    if n_before < SHORTEST_CONVERSATION:
        sys.exit(
            f"--context {n_context} leaves no room for a conversation: prompts of {longest_of(prompts)} tokens and "
            f"answers of {args.tokens} come after it; use at least {n_context - n_before + SHORTEST_CONVERSATION}"
        )
    return load_rendered(
        args.model, args.sets, n_context=n_before, n_prompts=args.prompts, seed=args.seed, report=console.log
    )


def longest_of(prompts: Mapping[str, Sequence[RenderedPrompt]]) -> int:
    return max(len(prompt.ids) for rows in prompts.values() for prompt in rows)


def run_group(args: argparse.Namespace, n_lanes: int, n_context: int, console: Console) -> Group:
    prompts = load_prompts(args, n_context, console)
    n_ctx = -(-(longest_of(prompts) + args.tokens + SPARE) // 256) * 256
    settings = EngineSettings(args.model, args.draft, n_ctx, n_lanes, args, args.draft_cache_type)
    arguments = side_arguments(args, n_lanes)
    rounds = []
    for i in range(args.processes):
        rounds.append(Group(n_lanes, n_context, tuple(args.sets), tuple(arguments)))
        for name in args.sets:
            with ExitStack() as stack:
                sides = [start_side(stack, args, settings, *side) for side in arguments.items()]
                run_set(args, rounds[-1], sides, name, prompts[name])
            console.log(f"lanes {n_lanes}, context {n_context}: {name} done ({i + 1} of {args.processes})")
    return functools.reduce(Group.joined, rounds)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, has_peer=True, has_quick=True)
    parser.add_argument("--draft", type=lambda text: None if text == "none" else Path(text), metavar="FILE",
                        default=TINY.with_name("luce-tiny-dflash-Q8_0.gguf"),
                        help="the draft model; none: what luced drafts without one")  # fmt: skip
    parser.add_argument("--draft-arguments", default="", metavar="ARGS",
                        help="further options of every luced that speculates, in one word")  # fmt: skip
    parser.add_argument("--sets", nargs="+", default=list(SET_NAMES), choices=SET_NAMES)
    parser.add_argument("--prompts", type=int, default=None, help="so many of each set (default: all)")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1], metavar="N",
                        help="1 2 4 8; llama-server takes part with one lane only")  # fmt: skip
    parser.add_argument("--context", type=int, nargs="+", default=[0], metavar="N",
                        help="text of so many tokens, answer included; 0: the prompts alone")  # fmt: skip
    parser.add_argument("--pairs", type=int, default=5, help="passes that count, after the cold one")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of each side, one after the other")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS, help="what is compared with plain")
    parser.add_argument("--fixed", type=int, nargs="+", default=list(WIDTHS), metavar="N",
                        help="widths of luced with the gate off")  # fmt: skip
    parser.add_argument("--fixed-ngram", nargs="+", default=["on", "off"], choices=("on", "off"))
    parser.add_argument("--server-widths", type=int, nargs="+", default=list(WIDTHS), metavar="N",
                        help="llama-server's --spec-draft-n-max")  # fmt: skip
    parser.add_argument("--draft-cache-type", default="f16", help="the drafter's in llama-server")
    parser.add_argument("--seed", type=int, default=0, help="of the conversation before the prompts")
    args = parser.parse_args(arguments)
    make_quick(parser, args, QUICK)
    if args.pairs < 1 or args.processes < 1:
        parser.error("--pairs and --processes: at least one, or no pass counts")
    if (args.prompts is not None and args.prompts < 1) or args.tokens < 2:
        parser.error("--prompts and --tokens: at least one prompt, and a token after the first")
    return args


def write_groups(args: argparse.Namespace, groups: Sequence[Group]) -> None:
    """After each group, should the run not come to its end."""
    write_json(args.json, {"options": options_of(args), "groups": [group.to_json() for group in groups]})


def measure(args: argparse.Namespace, console: Console) -> list[Group]:
    os.environ.update(engine_environment(os.environ))  # what the supervisor starts luced with, for all sides
    if SERVER in args.only and (args.vs is None or max(args.lanes) > 1):
        console.print("llama-server takes part only with --vs PATH, and only with one lane")
    groups: list[Group] = []
    for n_lanes in args.lanes:
        for n_context in args.context:
            groups.append(run_group(args, n_lanes, n_context, console))
            show_group(console, groups[-1])
            write_groups(args, groups)
    return groups


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 200)
    groups = measure(args, console)
    for verdict in verdicts(groups):
        console.print(str(verdict), highlight=False)
    wrong = [text for group in groups for side, same in group.same.items() if side != SERVER for text in same.clear]
    if wrong:
        console.print(f"{len(wrong)} answers are not plain decoding's", style="red")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
