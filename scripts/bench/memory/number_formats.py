#!/usr/bin/env python3
"""What each number format of the attention cache costs: bytes, quality, speed. And the same of formats that pages have
outside the device (--host-cache-type), where every text is sent out and brought back before it is used.

Quality is against a cache of f16: KL divergence of the next token (nats, of the 100 likeliest; a text of --length
tokens, --positions positions at its end, --texts texts), needles found (--needles of each kind at eight depths), calls
of tools that a model is required to make (--calls). Counts, so a busy machine does no harm.

Speed is tokens a second behind --length tokens, each format against f16 in turns (--pairs). With formats outside the
device: the time until a text of --length tokens that was sent out gives its next token, against pages as they are.

  number_formats.py --quick                            does it work at all?
  number_formats.py --only quality --length 16384      the table of docs/benchmarks/number_formats.md
  number_formats.py --only speed return --model 27B.gguf --gpu-layers 99 --length 16384
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from luce.protocol import Token
from luce.supervisor.checking.divergence import kl_divergence
from luce.supervisor.text import TextModel
from scripts.bench.decode.answers import ask
from scripts.bench.harness import Ratio, in_turns, make_quick, options_of, parser_of, write_json
from scripts.bench.prefill.tool_calls import measure_tool_calls
from scripts.bench.residency.prompts import KINDS, depths, needle_prompt, python_text
from scripts.bench.residency.sides import DEADLINE_S
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

N_ANSWER = 24  # tokens: the code and a sentence around it
N_DECODED = 128
N_BEHIND = 16  # tokens of a text that are read after it has come back
PARTS = ("quality", "speed", "return")
QUICK = {
    "length": 2048, "texts": 1, "positions": 8, "needles": 1, "calls": 1, "pairs": 1,
    "formats": ["f16", "q8_0/q4_0", "q8_0>tq3"],
}  # fmt: skip
FORMATS = [
    "f16", "bf16", "q8_0", "q8_0/q5_0", "q8_0/q4_0", "q5_1", "q4_0", "q4_0,3:q8_0",
    "f16>q8_0", "f16>q4_0", "f16>tq3", "q8_0>q4_0", "q8_0>tq3",
]  # fmt: skip


@dataclass(frozen=True)
class Format:
    """KEYS[/VALUES][>OUTSIDE], of rules."""

    text: str

    @property
    def outside(self) -> str | None:
        return self.text.split(">")[1] if ">" in self.text else None

    @property
    def arguments(self) -> list[str]:
        cache = self.text.split(">")[0]
        keys, _, values = cache.partition("/")
        arguments = ["--cache-type-k", keys, "--cache-type-v", values or keys]
        return arguments if self.outside is None else [*arguments, "--host-cache-type", self.outside]


@dataclass
class Quality:
    format: str
    token_bytes: float
    """Where the pages lie: on the device, or outside."""
    kl: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)
    needles: list[bool] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


class Run:
    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.args = args
        self.console = console
        self.formats = [Format(text) for text in args.formats]
        self.found: dict[str, list[object]] = {}

    def start(self, form: Format, n_tokens: int) -> DaemonDriver:
        """Room for one text and a little more, so that another one sends it out."""
        args = self.args
        n_pool = -(-(n_tokens + 768) // 256) * 256
        return DaemonDriver(
            args.luced, args.model, "--lanes", "1", "--ctx", str(n_pool), "--pool", str(n_pool), "--fit", "off",
            "--threads", str(args.threads), "--gpu-layers", str(args.gpu_layers), "--host-cache", args.host_cache,
            *(["--ubatch", str(args.ubatch)] if args.ubatch else []), "--draft-max", "0", *form.arguments,
        )  # fmt: skip

    def send_out(self, daemon: DaemonDriver, prompt: Sequence[int]) -> None:
        """Reads all but the end of it, and then so much else that it has to leave the pool."""
        daemon.generate(prompt[:-N_BEHIND], 1, "ignore_eos=1")
        daemon.generate(random_prompt(len(prompt), seed=len(prompt)), 1, "ignore_eos=1 reuse=0")

    def prepare(self, form: Format, daemon: DaemonDriver, prompt: Sequence[int]) -> str:
        """What the request has to say."""
        if form.outside is None:
            return "reuse=0"
        self.send_out(daemon, prompt)
        return ""

    def note(self, part: str, sample: object) -> None:
        self.found.setdefault(part, []).append(sample)
        samples = {name: [getattr(item, "__dict__", item) for item in items] for name, items in self.found.items()}
        write_json(self.args.json, {"options": options_of(self.args), **samples})

    # Quality

    def quality(self) -> None:
        args = self.args
        with TextModel(args.model) as model:
            texts = [
                list(model.tokenize(python_text(model, args.length, seed)))[: args.length] for seed in range(args.texts)
            ]
            exact: list[list[list[tuple[int, float]]]] = []
            table = Table(
                "format", "bytes a token", "of f16", "KL, mean", "KL, most", "same best", "needles", "calls formed"
            )
            f16_bytes = 0.0
            for form in (Format("f16"), *(form for form in self.formats if form.text != "f16")):
                with self.start(form, args.length) as daemon:
                    quality = Quality(form.text, int(dict(daemon.ready.fields)["page_bytes"]) / 64)
                    distributions = [self.distributions(form, daemon, text) for text in texts]
                    exact = exact or distributions
                    for ours, theirs in zip(distributions, exact, strict=True):
                        quality.kl += [kl_divergence(b, a) for a, b in zip(ours, theirs, strict=True)]
                        quality.same += [a[0][0] == b[0][0] for a, b in zip(ours, theirs, strict=True)]
                    quality.needles = self.needles(form, daemon, model)
                quality.calls = self.calls(form)
                f16_bytes = f16_bytes or quality.token_bytes
                self.note("quality", quality)
                formed = sum(call in {"right", "formed"} for call in quality.calls)
                row = (
                    form.text, f"{quality.token_bytes:.0f}", f"{quality.token_bytes / f16_bytes:.2f}",
                    f"{statistics.fmean(quality.kl):.4f}", f"{max(quality.kl):.3f}",
                    f"{statistics.fmean(quality.same):.0%}",
                    f"{sum(quality.needles)} of {len(quality.needles)}", f"{formed} of {len(quality.calls)}",
                )  # fmt: skip
                table.add_row(*row)
                self.console.log(*row, highlight=False)
        self.console.print(table)

    def distributions(self, form: Format, daemon: DaemonDriver, text: Sequence[int]) -> list[list[tuple[int, float]]]:
        """Of the tokens at positions up to the text's end, the first where it has come back."""
        distance = 7  # no multiple of a page, a word or a sentence
        first = len(text) - (self.args.positions - 1) * distance
        extra = self.prepare(form, daemon, text[:first])
        found = []
        for end in range(first, len(text) + 1, distance):
            answer = daemon.generate(text[:end], 1, f"{extra if end == first else ''} logprobs=100")
            found.append(list(answer.logprobs[0].entries[1:]))
        return found

    def needles(self, form: Format, daemon: DaemonDriver, model: TextModel) -> list[bool]:
        found = []
        for seed in range(self.args.needles):
            for depth in depths(8):
                for kind in KINDS:
                    prompt = needle_prompt(model, kind, self.args.length // 4, depth, seed)
                    extra = self.prepare(form, daemon, prompt.ids)
                    answer = daemon.generate(prompt.ids, N_ANSWER, extra)
                    found.append(prompt.expected in model.detokenize(answer.tokens).decode(errors="replace"))
        return found

    def calls(self, form: Format) -> list[str]:
        before = None if form.outside is None else self.send_out
        samples = measure_tool_calls(
            lambda n_tokens: self.start(form, n_tokens), self.args.model, [self.args.length // 8], (), self.args.calls,
            lambda _: None, before,
        )  # fmt: skip
        return [sample.whole for sample in samples if sample.is_required]

    # Speed

    def speed(self) -> None:
        args = self.args
        prompt = random_prompt(args.length, seed=7)
        forms = [form for form in self.formats if form.outside is None]
        rates: dict[str, list[float]] = {form.text: [] for form in forms}
        prefills: dict[str, list[float]] = {form.text: [] for form in forms}
        for pair in range(args.pairs):
            for form in in_turns(forms, pair):
                with self.start(form, args.length) as daemon:
                    daemon.generate(random_prompt(300, seed=1), 16, "ignore_eos=1")
                    answers = ask(daemon, [prompt], N_DECODED)
                rates[form.text].append(answers.decode)
                prefills[form.text].append(answers.prefill)
                self.note("speed", {"format": form.text, "decode": answers.decode, "prefill": answers.prefill})
        table = Table("format", f"decoding behind {args.length}, of {forms[0].text}", f"prompt, of {forms[0].text}")
        for form in forms:
            pairs = (zip(side[form.text], side[forms[0].text], strict=True) for side in (rates, prefills))
            table.add_row(form.text, *(str(Ratio.of([a / b for a, b in of_side])) for of_side in pairs))
        self.console.print(table)

    # Return

    def return_(self) -> None:
        args = self.args
        prompt = random_prompt(args.length, seed=7)
        outside = [form for form in self.formats if form.outside is not None]
        plain = [Format(text) for text in dict.fromkeys(form.text.split(">")[0] for form in outside)]
        seconds: dict[str, list[float]] = {form.text: [] for form in (*plain, *outside)}
        for pair in range(args.pairs):
            for form in in_turns((*plain, *outside), pair):
                with self.start(form, args.length) as daemon:
                    self.send_out(daemon, prompt)
                    began_s = perf_counter()
                    daemon.send(gen_line(1, 1, prompt, "ignore_eos=1"))
                    assert isinstance(daemon.next_token(DEADLINE_S), Token)
                    seconds[form.text].append(perf_counter() - began_s)
                    daemon.tokens_until_end(DEADLINE_S)
                    assert daemon.next_ok().tier == "host"
                self.note("return", {"format": form.text, "seconds": seconds[form.text][-1]})
        table = Table("format", f"{args.length} tokens back, s", "over pages as they are")
        for form in (*plain, *outside):
            of_plain = seconds[form.text.split(">")[0]]
            ratio = Ratio.of([a / b for a, b in zip(seconds[form.text], of_plain, strict=True)])
            table.add_row(form.text, f"{statistics.median(seconds[form.text]):.3f}", str(ratio))
        self.console.print(table)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, has_quick=True, ubatch=0)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--formats", nargs="+", default=FORMATS, metavar="KEYS[/VALUES][>OUTSIDE]")
    parser.add_argument("--length", type=int, default=16384, metavar="N")
    parser.add_argument("--texts", type=int, default=2, metavar="N")
    parser.add_argument("--positions", type=int, default=64, metavar="N")
    parser.add_argument("--needles", type=int, default=2, metavar="N", help="of each of four kinds at eight depths")
    parser.add_argument("--calls", type=int, default=25, metavar="N")
    parser.add_argument("--pairs", type=int, default=3, metavar="N")
    parser.add_argument("--host-cache", default="4G", metavar="BYTES")
    args = parser.parse_args(arguments)
    make_quick(parser, args, QUICK)
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    run = Run(args, Console())
    for part in args.only:
        {"quality": run.quality, "speed": run.speed, "return": run.return_}[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
