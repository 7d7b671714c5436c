"""The cell `noise` of docs/benchmarks/real.md: how far the log-probabilities of one real text move.

llama.cpp's own move with the width of its calls, threads and texts at once (llama-perplexity). Ours are taken in every
way back into memory, in lanes and with drafts. All are held against one reading by llama.cpp, 512 tokens a call. The
aim: none of ours is farther from it than llama.cpp is from itself.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from luce.protocol import GenerateOk, StatusLine, percent_encode
from luce.supervisor.text import TextModel
from scripts.bench.harness import llama_server_arguments, luced_arguments
from scripts.bench.real.perplexity import RESOLUTION, Window, run_perplexity
from scripts.bench.real.rows import Row, Setup
from scripts.bench.real.texts import RealText, real_text
from scripts.bench.servers import LlamaServer
from tests.daemon_driver import Answer, DaemonDriver, gen_line

WIDTH = 512  # tokens of a call, in the reading that all others are held against
DEADLINE_S = 1800.0
N_LANES = 4
SLOT = 0


@dataclass(frozen=True)
class Volume:
    n_text: int = 2048
    """Tokens of the text; log-probabilities are those of its second half."""
    n_decoded: int = 128
    """Of these the first so many are computed as an answer's, one by one or as drafts."""
    widths: tuple[int, ...] = (128, 32, 1)
    """Tokens a call."""
    n_prompts: int = 16
    n_prompt: int = 64
    n_answer: int = 64
    cache_types: tuple[str, ...] = ("f16", "q8_0")


QUICK = Volume(n_text=512, n_decoded=32, widths=(32, 1), n_prompts=4, n_answer=16)


@dataclass(frozen=True)
class Text:
    """The ids that llama-perplexity has read, and the first of them that has a log-probability."""

    ids: tuple[int, ...]
    first: int
    passages: Sequence[list[int]]


@dataclass
class Moves:
    """How far each way's log-probabilities are from the reference's, by the way's name."""

    reference: Sequence[float | None]
    """None: llama-perplexity's file has no number for such an unlikely token."""
    found: dict[str, list[float]] = field(default_factory=dict)

    def add(self, way: str, logprobs: Sequence[float]) -> None:
        """Of all tokens that the reference has, or of the first ones."""
        pairs = zip(logprobs, self.reference, strict=False)
        self.found[way] = [abs(logprob - expected) for logprob, expected in pairs if expected is not None]

    @property
    def largest(self) -> float:
        return max((max(moves) for moves in self.found.values()), default=0.0)


def measure(setup: Setup, volume: Volume | None = None) -> list[Row]:
    volume = volume or (QUICK if setup.quick else Volume())
    rows: list[Row] = []
    for cache_type in volume.cache_types:
        of_type = replace(setup, cache_type=cache_type, ubatch=WIDTH)
        rows += _rows_of_type(of_type, volume)
    return rows


def _rows_of_type(setup: Setup, volume: Volume) -> list[Row]:
    with TextModel(setup.model) as model:
        real = RealText(tuple(model.tokenize(_words(volume))))
    passages = [real.passage(volume.n_prompt, number) for number in range(volume.n_prompts)]
    ids = tuple(real.passage(volume.n_text, 1))
    theirs = None
    if setup.server is None:
        text = Text(ids, volume.n_text // 2 + 1, passages)
        with _luced(setup, text) as daemon:
            ours = Moves(_read(daemon, text, "reuse=0"))
    else:
        text, theirs = _llama_cpps(setup, volume, passages)
        ours = Moves(theirs.reference)
    _read_again(setup, text, ours)
    _decode(setup, text, volume, ours)
    most = None if theirs is None else theirs.largest
    return [*_move_rows(setup.cache_type, ours, theirs), *_greedy_rows(setup, text, volume, most)]


def _words(volume: Volume) -> str:
    """Enough for all windows. A grammar takes no token that ends within a character: the text has none of several
    bytes."""
    return real_text().encode("ascii", "ignore").decode()[: (N_LANES + 1) * volume.n_text * 8]


def _move_rows(cache_type: str, ours: Moves, theirs: Moves | None) -> Iterator[Row]:
    for name, moves in () if theirs is None else theirs.found.items():
        yield Row(f"{cache_type}, llama.cpp {name}: largest", max(moves), unit="nats")
    for name, moves in ours.found.items():
        what = f"{cache_type}, {name}: largest"
        if theirs is None:
            yield Row(what, max(moves), unit="nats")
            continue
        is_met = max(moves) <= theirs.largest + RESOLUTION
        note = "" if is_met else "farther from llama.cpp than llama.cpp is from itself"
        yield Row(what, max(moves), theirs.largest, "nats", "<= llama.cpp's own", is_met, note)
    for part, of in (("median", median), ("99 %", _percentile)):
        all_ours = of([move for moves in ours.found.values() for move in moves])
        all_theirs = None if theirs is None else of([move for moves in theirs.found.values() for move in moves])
        yield Row(f"{cache_type}, all ways: {part}", all_ours, all_theirs, "nats")


def _percentile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


# llama.cpp by itself


def _llama_cpps(setup: Setup, volume: Volume, passages: Sequence[list[int]]) -> tuple[Text, Moves]:
    assert setup.server is not None
    program = setup.server.with_name("llama-perplexity")
    n_text = volume.n_text

    def read(n_at_once: int = 1, n_batch: int | None = None, **changes: int) -> Window:
        options = {"ubatch-size": WIDTH, "threads": setup.threads, "gpu-layers": setup.gpu_layers} | changes
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        types = ("--cache-type-k", setup.cache_type, "--cache-type-v", setup.cache_type, "-fa", "on")
        batch = ("--batch-size", str(n_batch or n_at_once * n_text), "--chunks", str(n_at_once))
        return run_perplexity(program, setup.model, Path(file.name), n_text, *batch, *words, *types)[0]

    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(_words(volume))
        file.flush()
        base = read()
        theirs = Moves([None if cut else told for told, cut in zip(base.logprobs, base.are_floor, strict=True)])
        for width in volume.widths:
            theirs.add(f"{width} tokens a call", read(**{"ubatch-size": width}).logprobs)
        theirs.add("64 and 36 tokens a call, in turns", read(n_batch=100, **{"ubatch-size": 64}).logprobs)
        theirs.add(f"{N_LANES} texts at once", read(N_LANES).logprobs)
        if setup.threads > 1:
            theirs.add("one thread", read(threads=1).logprobs)
    with TextModel(setup.model) as model:
        beginning = model.tokenize("", add_special=True)  # what takes the first tokens' place
    return Text((*beginning, *base.tokens[len(beginning) :]), base.first, passages), theirs


# luced: readings, each of which takes the text's first half from elsewhere


@contextmanager
def _luced(setup: Setup, text: Text, *options: str, ubatch: int = WIDTH) -> Iterator[DaemonDriver]:
    n_pool = 2 * len(text.ids) + N_LANES * 512
    arguments = luced_arguments(replace(setup, ubatch=ubatch).engine, N_LANES, len(text.ids) + 512, n_pool)
    plain = () if "--draft-gate" in options else ("--draft-max", "0")
    with DaemonDriver(setup.luced, setup.model, *arguments, *plain, *options) as daemon:
        yield daemon


def _ask(daemon: DaemonDriver, *lines: str) -> list[Answer]:
    """Their answers, in the order of their ids."""
    daemon.send(*lines)
    answers = daemon.collect(len(lines), DEADLINE_S)
    for answer in answers.values():
        assert isinstance(answer.reply, GenerateOk), answer.reply
    return [answers[number] for number in sorted(answers)]


def _read(daemon: DaemonDriver, text: Text, keys: str) -> list[float]:
    line = gen_line(1, 1, text.ids, f"prompt_logprobs=0 prompt_logprobs_from={text.first} {keys}")
    return [row.entries[0][1] for row in _ask(daemon, line)[0].prompt_logprobs]


def _read_first_half(daemon: DaemonDriver, text: Text, keys: str = "") -> None:
    """Cut at another place than the whole text is."""
    _ask(daemon, gen_line(1, 1, text.ids[: text.first - 7], f"reuse=0 {keys}"))


def _read_again(setup: Setup, text: Text, ours: Moves) -> None:
    with _luced(setup, text) as daemon:
        ours.add("fresh", _read(daemon, text, "reuse=0"))
        daemon.send("clear")
        daemon.next_reply()
        _read_first_half(daemon, text)
        ours.add("reused", _read(daemon, text, "reuse=1"))
        for command in ("park", "unpark"):
            daemon.send(command)
            daemon.next_reply()
        ours.add("back from the host", _read(daemon, text, "reuse=1"))
    with _luced(setup, text, ubatch=32) as daemon:
        ours.add("read 32 tokens a call", _read(daemon, text, "reuse=0"))
    with tempfile.TemporaryDirectory() as folder:
        with _luced(setup, text, "--disk-cache", folder) as daemon:
            _read_first_half(daemon, text)
            _until_written(daemon)
            os.kill(daemon.child.pid, signal.SIGKILL)
            daemon.wait()
        with _luced(setup, text, "--disk-cache", folder) as daemon:
            ours.add("back from disk after kill -9", _read(daemon, text, "reuse=1"))


def _until_written(daemon: DaemonDriver) -> None:
    """All that is to be on disk is: an engine that has nothing else to do writes at once."""
    until_s, before = time.monotonic() + DEADLINE_S, -1
    while True:
        daemon.send("status")
        status = daemon.next_reply()
        assert isinstance(status, StatusLine), status
        written = int(dict(status.fields)["disk_written"])
        if 0 < written == before:
            return
        if time.monotonic() > until_s:
            raise TimeoutError("luced has not written its pages to disk in time")
        before = written
        time.sleep(1)


# luced: the text's next tokens as those of an answer


def _decode(setup: Setup, text: Text, volume: Volume, ours: Moves) -> None:
    prompt = text.ids[: text.first]
    going_on = text.ids[text.first :][: volume.n_decoded]
    grammar = percent_encode("root ::= " + " ".join(f"<[{token}]>" for token in going_on))

    def force(daemon: DaemonDriver, keys: str, *beside: str) -> Answer:
        """The first answer's tokens can only be those of the text."""
        line = gen_line(1, len(going_on), prompt, f"ignore_eos=1 logprobs=1 grammar={grammar} {keys}")
        answer = _ask(daemon, line, *beside)[0]
        assert answer.tokens == list(going_on)
        return answer

    with _luced(setup, text) as daemon:
        place = text.first - 7
        ours.add("decoded", _told(force(daemon, f"reuse=0 snap={place}:{SLOT}")))
        ours.add("decoded, back from a slot", _told(force(daemon, f"restore={SLOT}")))
        beside = [
            gen_line(number + 2, len(going_on), passage, "ignore_eos=1")
            for number, passage in enumerate(text.passages[: N_LANES - 1])
        ]
        ours.add(f"decoded, {N_LANES} lanes", _told(force(daemon, "reuse=1", *beside)))
    with _luced(setup, text, "--draft-gate", "off") as daemon:
        answer = force(daemon, "reuse=0")
        assert isinstance(answer.reply, GenerateOk)
        if answer.reply.speculation is not None and answer.reply.speculation.n_drafted > 0:
            ours.add("decoded with drafts", _told(answer))


def _told(answer: Answer) -> list[float]:
    return [line.entries[0][1] for line in answer.logprobs]


# Greedy answers


@dataclass(frozen=True)
class Greedy:
    tokens: list[int]
    margins: list[float]
    """By how much each token leads the next best one."""


def partings(answers: Sequence[Greedy], references: Sequence[Greedy]) -> list[float]:
    """The margins at which answers part from the references."""
    found = []
    for answer, reference in zip(answers, references, strict=True):
        pairs = zip(answer.tokens, reference.tokens, strict=True)
        step = next((i for i, (token, expected) in enumerate(pairs) if token != expected), None)
        if step is not None:
            found.append(reference.margins[step])
    return found


def _greedy_rows(setup: Setup, text: Text, volume: Volume, most: float | None) -> Iterator[Row]:
    def ours(daemon: DaemonDriver, keys: str, *, at_once: bool = False) -> list[Greedy]:
        lines = [
            gen_line(number, volume.n_answer, passage, f"ignore_eos=1 logprobs=2 {keys}")
            for number, passage in enumerate(text.passages, 1)
        ]
        answers = _ask(daemon, *lines) if at_once else [_ask(daemon, line)[0] for line in lines]
        return [_greedy(answer) for answer in answers]

    with _luced(setup, text) as daemon:
        alone = ours(daemon, "reuse=0")
        found = {
            "again": partings(ours(daemon, "reuse=1"), alone),
            f"{N_LANES} lanes": partings(ours(daemon, "reuse=0", at_once=True), alone),
        }
    with _luced(setup, text, "--draft-gate", "off") as daemon:
        found["with drafts"] = partings(ours(daemon, "reuse=0"), alone)
    own: list[float] | None = None
    if setup.server is not None:
        theirs, together = _llama_servers(setup, text, volume)
        own = partings(together, theirs)
        found["against llama-server"] = partings(alone, theirs)
    # Two log-probabilities that move by so much each turn a margin of twice as much.
    allowed = max([0.0, *(own or ())]) if most is None else max([2 * most, *(own or ())])
    for way, margins in found.items():
        what = f"{setup.cache_type}, greedy, {way}: parted, of {len(text.passages)}"
        if own is None:
            yield Row(what, len(margins), unit="texts")
            continue
        is_met = max(margins, default=0.0) <= allowed + RESOLUTION
        note = "" if is_met else f"at a margin of {max(margins):.3f}, llama.cpp's own noise is {allowed:.3f}"
        yield Row(what, len(margins), len(own), "texts", "at margins within llama.cpp's own noise", is_met, note)


def _greedy(answer: Answer) -> Greedy:
    return Greedy(answer.tokens, [line.entries[1][1] - line.entries[2][1] for line in answer.logprobs])


def _llama_servers(setup: Setup, text: Text, volume: Volume) -> tuple[list[Greedy], list[Greedy]]:
    """One by one, and with all of its slots."""
    assert setup.server is not None
    n_cells = N_LANES * (volume.n_prompt + volume.n_answer + 64)
    arguments = llama_server_arguments(setup.engine, N_LANES, n_cells)
    with LlamaServer(setup.server, setup.model, *arguments) as server, ThreadPoolExecutor(N_LANES) as pool:

        def ask(passage: list[int]) -> Greedy:
            body = {"prompt": passage, "n_predict": volume.n_answer, "temperature": 0, "n_probs": 2,
                    "cache_prompt": False, "ignore_eos": True}  # fmt: skip
            steps = server.post(body)["completion_probabilities"]
            best = [[entry["logprob"] for entry in step["top_logprobs"]] for step in steps]
            return Greedy([step["id"] for step in steps], [first - second for first, second in best])

        alone = [ask(passage) for passage in text.passages]
        return alone, list(pool.map(ask, text.passages))
