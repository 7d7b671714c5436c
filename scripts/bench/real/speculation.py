"""Speculation by kind of text: whole greedy answers by luced with its n-grams, by luced without drafts, and by
llama-server of the same build as it comes and with its own n-grams.

On a CPU the time is processor time from the first token to the last, which other programs on the machine hardly touch;
on a GPU it is each side's own clock. Texts that part from plain decoding's are held against a plain reading of the same
tokens: a step that left something wrong behind would show there.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader

from luce.protocol import End, GenerateOk, Speculation, Token
from scripts.bench.harness import in_turns, llama_server_arguments, luced_arguments
from scripts.bench.real.answer_kinds import COPYING, KINDS, Prompt, load_prompts
from scripts.bench.real.cut_layers import cut, layers_of
from scripts.bench.real.rows import Row, Setup
from scripts.bench.servers import LlamaServer, processor_s
from tests.daemon_driver import DaemonDriver, gen_line

N_CTX = 2048
PLAIN, OURS, CUT, SERVER = "plain", "luced", "cut", "llama-server"
SERVER_NGRAMS = {
    "ngram-mod": ("--spec-type", "ngram-mod"),
    "ngram-simple": ("--spec-type", "ngram-simple"),
    "ngram-map-k4v": ("--spec-type", "ngram-map-k4v"),
}
AIM_PLAIN, AIM_SERVER = 0.98, 1.5


@dataclass(frozen=True)
class Volume:
    n_each: int
    """Prompts of each kind."""
    n_tokens: int
    """Of an answer, at most."""
    server_ngrams: tuple[str, ...]
    cuts_drafter: bool = False
    """Drafts by the model's own first quarter, too: nobody has trained it to end there."""


FULL = Volume(2, 320, tuple(SERVER_NGRAMS), cuts_drafter=True)
QUICK = Volume(1, 160, tuple(SERVER_NGRAMS)[:1])


@dataclass(frozen=True)
class Answer:
    tokens: tuple[int, ...]
    seconds: float
    """From the first token to the last: of the processors on a CPU, by the side's own clock on a GPU."""
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True)
class Total:
    """All answers of one side to one kind of question."""

    n_tokens: int
    seconds: float
    n_drafted: int
    n_accepted: int

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Total:
        return cls(
            sum(max(len(answer.tokens) - 1, 0) for answer in answers), sum(answer.seconds for answer in answers),
            sum(answer.n_drafted for answer in answers), sum(answer.n_accepted for answer in answers),
        )  # fmt: skip

    @property
    def rate(self) -> float:
        return self.n_tokens / max(self.seconds, 1e-9)

    @property
    def acceptance(self) -> float:
        """Percent of what was drafted."""
        return 100 * self.n_accepted / max(self.n_drafted, 1)

    @property
    def share(self) -> float:
        """Percent of all tokens."""
        return 100 * self.n_accepted / max(self.n_tokens, 1)


Ask = Callable[[Prompt, int], Answer]
"""One greedy answer of at most so many tokens."""


@contextmanager
def luced(setup: Setup, *more: str) -> Iterator[DaemonDriver]:
    arguments = luced_arguments(setup.engine, 1, N_CTX, N_CTX)
    with DaemonDriver(setup.luced, setup.model, *arguments, "--flash-attn", "on", *more) as daemon:
        yield daemon


def ask_luced(daemon: DaemonDriver, prompt: Prompt, n_tokens: int, on_gpu: bool) -> Answer:
    daemon.send(gen_line(1, n_tokens, prompt.ids, "reuse=0"))
    tokens: list[int] = []
    first = daemon.next_token()
    started_s = processor_s(daemon.child.pid)
    if isinstance(first, Token):
        tokens = [first.value, *daemon.tokens_until_end()]
    assert isinstance(first, Token | End)
    reply = daemon.next_ok()
    seconds = reply.decode_s if on_gpu else processor_s(daemon.child.pid) - started_s
    drafts = reply.speculation or Speculation()  # without drafts nothing is said of them
    return Answer(tuple(tokens), seconds, drafts.n_drafted, drafts.n_accepted)


def ask_server(server: LlamaServer, prompt: Prompt, n_tokens: int, on_gpu: bool) -> Answer:
    done = server.complete(prompt.ids, n_tokens, is_whole=True)
    seconds = done.decode_s if on_gpu else done.decode_cpu_s
    return Answer(tuple(done.tokens), seconds, done.n_drafted, done.n_accepted)


def measure(setup: Setup, volume: Volume | None = None) -> list[Row]:
    """`volume`: another one than FULL, or QUICK."""
    if volume is None:
        volume = QUICK if setup.quick else FULL
    prompts = load_prompts(setup.model, volume.n_each)
    n_tokens = volume.n_tokens
    answers: dict[tuple[str, str], list[Answer]] = defaultdict(list)
    parted: list[Parting] = []
    on_gpu = setup.gpu_layers > 0
    with ExitStack() as stack:
        plain = stack.enter_context(luced(setup, "--draft-max", "0"))
        drafting = stack.enter_context(luced(setup))
        sides: dict[str, Ask] = {
            PLAIN: lambda prompt, n: ask_luced(plain, prompt, n, on_gpu),
            OURS: lambda prompt, n: ask_luced(drafting, prompt, n, on_gpu),
        }
        if volume.cuts_drafter:
            draft = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "cut.gguf"
            cut(setup.model, max(layers_of(GGUFReader(setup.model))[1] // 4, 1), draft)
            cutting = stack.enter_context(luced(setup, "--draft", str(draft), "--draft-ngram", "off"))
            sides[CUT] = lambda prompt, n: ask_luced(cutting, prompt, n, on_gpu)
        for name, options in server_settings(setup, volume).items():
            arguments = [*llama_server_arguments(setup.engine, 1, N_CTX), *options]
            server = stack.enter_context(LlamaServer(setup.server or Path(), setup.model, *arguments))
            sides[name] = lambda prompt, n, server=server: ask_server(server, prompt, n, on_gpu)  # type: ignore[misc]
        for turn, prompt in enumerate(prompts):
            told = {name: sides[name](prompt, n_tokens) for name in in_turns(list(sides), turn)}
            for name, answer in told.items():
                answers[prompt.kind, name].append(answer)
            if told[OURS].tokens != told[PLAIN].tokens:
                parted.append(parting(plain, drafting, prompt, n_tokens, told[PLAIN].tokens, told[OURS].tokens))
    totals = {key: Total.of(found) for key, found in answers.items()}
    cut_rows = cut_drafter_rows(answers) if volume.cuts_drafter else []
    return [*speed_rows(totals, on_gpu), *cut_rows, *text_rows(len(prompts), parted)]


def server_settings(setup: Setup, volume: Volume) -> dict[str, tuple[str, ...]]:
    if setup.server is None:
        return {}
    return {SERVER: (), **{name: SERVER_NGRAMS[name] for name in volume.server_ngrams}}


def speed_rows(totals: Mapping[tuple[str, str], Total], on_gpu: bool) -> list[Row]:
    """Of each kind: against plain decoding beside llama-server's best n-grams; tokens a second against llama-server as
    it comes; and what was accepted. REQUIRES: each kind has plain's total and ours."""
    unit = "tokens/s" if on_gpu else "tokens a second of processor time"
    rows: list[Row] = []
    for kind in KINDS:
        plain, ours = totals[kind, PLAIN], totals[kind, OURS]
        ratio = ours.rate / plain.rate
        named = {name: totals[kind, name] for name in SERVER_NGRAMS if (kind, name) in totals}
        best = max(named, key=lambda name: named[name].rate, default=None)
        theirs = named[best] if best is not None else None
        default = totals.get((kind, SERVER))
        what = f"{kind}: speed of plain decoding, n-grams (llama-server: its best)"
        faster = theirs.rate / default.rate if theirs and default else None
        note = "" if ratio >= AIM_PLAIN else "drafts that were wrong"
        rows.append(Row(what, ratio, faster, "times", f">= {AIM_PLAIN}", ratio >= AIM_PLAIN, note))
        if default is not None:
            rows.append(against_default(kind, ours, default, unit))
        rows.append(
            Row(f"{kind}: drafted tokens that were right", ours.acceptance, theirs.acceptance if theirs else None, "%")
        )
        rows.append(Row(f"{kind}: tokens from drafts", ours.share, theirs.share if theirs else None, "%"))
    return rows


def cut_drafter_rows(answers: Mapping[tuple[str, str], Sequence[Answer]]) -> list[Row]:
    """Over all kinds. It is seldom right, and the controller has to see that it does not pay."""
    drafted, plain = (
        Total.of([answer for (_, name), found in answers.items() if name == side for answer in found])
        for side in (CUT, PLAIN)
    )
    ratio, what = drafted.rate / plain.rate, "drafts by the model's own first quarter"
    note = "" if ratio >= AIM_PLAIN else "finding out that it does not pay"
    return [
        Row(f"{what}: speed of plain decoding", ratio, None, "times", f">= {AIM_PLAIN}", ratio >= AIM_PLAIN, note),
        Row(f"{what}: drafted tokens that were right", drafted.acceptance, None, "%"),
    ]


def against_default(kind: str, ours: Total, default: Total, unit: str) -> Row:
    what = f"{kind}: against llama-server as it comes"
    if kind not in COPYING:
        return Row(what, ours.rate, default.rate, unit)
    is_met = ours.rate >= AIM_SERVER * default.rate
    note = "" if is_met else "a call for n tokens costs nearly n calls here, or little of the answer is copied"
    return Row(what, ours.rate, default.rate, unit, f">= {AIM_SERVER} times", is_met, note)


@dataclass(frozen=True)
class Parting:
    """Where an answer with drafts left plain decoding's text."""

    name: str
    step: int
    margin: float
    """How far plain decoding's token led there, in logarithms."""
    moved: float
    """How far log-probabilities with drafts are from those of a plain reading of the same text, at most."""
    moved_plain: float
    """The same of plain decoding: what another width of a call does by itself."""

    @property
    def is_near_tie(self) -> bool:
        """No log-probability is farther from a plain reading than twice plain decoding's own, nor was the lead."""
        return self.moved <= 2 * self.moved_plain and self.margin <= 2 * max(self.moved, self.moved_plain)

    def __str__(self) -> str:
        return (
            f"{self.name} at token {self.step}, margin {self.margin:.3f}, {self.moved:.3f} off a plain reading "
            f"(plain decoding {self.moved_plain:.3f})"
        )


def parting(
    plain: DaemonDriver, drafting: DaemonDriver, prompt: Prompt, n_tokens: int, expected: Sequence[int],
    got: Sequence[int],
) -> Parting:  # fmt: skip
    pairs = zip(expected, got, strict=False)
    step = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(got)))
    told = plain.generate(prompt.ids, n_tokens, "reuse=0 logprobs=2").logprobs
    margin = told[step].entries[1][1] - told[step].entries[2][1] if step < len(told) else 0.0
    return Parting(
        prompt.name, step, margin, moved(plain, drafting, prompt, n_tokens), moved(plain, plain, prompt, n_tokens)
    )


def moved(reader: DaemonDriver, writer: DaemonDriver, prompt: Prompt, n_tokens: int) -> float:
    """Between what the writer says of its own tokens and what the reader does that has them as a prompt."""
    written = writer.generate(prompt.ids, n_tokens, "reuse=0 logprobs=1")
    at = len(prompt.ids)
    read = reader.generate(
        [*prompt.ids, *written.tokens], 1, f"reuse=0 prompt_logprobs=0 prompt_logprobs_from={at}"
    ).prompt_logprobs
    assert isinstance(written.reply, GenerateOk)
    by_place = {line.position: line.entries[0][1] for line in read}
    pairs = [
        (line.entries[0][1], by_place[at + line.index]) for line in written.logprobs if at + line.index in by_place
    ]
    return max(abs(a - b) for a, b in pairs)


def text_rows(n_answers: int, parted: Sequence[Parting]) -> list[Row]:
    same = Row("answers with drafts that are plain decoding's", n_answers - len(parted), None, f"of {n_answers}")
    far = [one for one in parted if not one.is_near_tie]
    note = "; ".join(map(str, far))
    return [same, Row("answers with drafts that part at no near tie", len(far), None, "", "0", not far, note)]
