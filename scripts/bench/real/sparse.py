"""What sparse prefill and `compress` keep of a real text, with real models as scorers, of the same and of another
vocabulary: questions about the text, and what the first token costs, against the whole prompt. It must not know how
parts are chosen.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from luce.protocol import GenerateOk, Token
from luce.supervisor.text import TextModel
from scripts.bench.real.readings import N_ANSWER, Question, holds, reading
from scripts.bench.real.rows import NAMES, Row, Setup, model_of
from scripts.bench.residency.sides import DEADLINE_S, RefusedError, whole_pages
from tests.daemon_driver import DaemonDriver, gen_line

SCORERS = ("smollm", "qwen")
SHARE = 0.2  # --prefill-keep's default


@dataclass(frozen=True)
class Volume:
    length: int
    n_texts: int
    n_questions: int
    """Of each kind, about each text."""


def volume_of(setup: Setup) -> Volume:
    if setup.quick:
        return Volume(2048, 1, 2)
    return Volume(7680, 4, 6) if setup.gpu_layers else Volume(4096, 2, 4)


@dataclass
class Answered:
    are_right: list[bool] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """Until the first token, by the daemon's own clock."""
    processor_s: list[float] = field(default_factory=list)
    """What the processor computed for it."""


def measure(setup: Setup) -> list[Row]:
    scorers = SCORERS[:1] if setup.quick else SCORERS
    return measure_volume(setup, volume_of(setup), {NAMES[name]: model_of(name) for name in scorers})


def measure_volume(setup: Setup, volume: Volume, scorers: dict[str, Path]) -> list[Row]:
    rows: list[Row] = []
    with closing(TextModel(setup.model)) as model:
        texts = [reading(model, volume.length, volume.n_questions, 1, seed) for seed in range(volume.n_texts)]
        questions = [question for text in texts for question in text.questions]
        n_ctx = whole_pages(max(len(question.ids) for question in questions) + 512)
        for name, scorer in scorers.items():
            options = (
                "--lanes", "1", "--ctx", str(n_ctx), "--pool", str(2 * n_ctx), "--threads", str(setup.threads),
                "--gpu-layers", str(setup.gpu_layers), "--ubatch", str(setup.ubatch), "--draft-max", "0",
                "--cache-type-k", setup.cache_type, "--cache-type-v", setup.cache_type,
                "--prefill-scorer", str(scorer), "--prefill-repair", "off",
            )  # fmt: skip
            with DaemonDriver(setup.luced, setup.model, *options) as daemon:
                rows += _rows_of(daemon, model, questions, f"scorer {name}", is_on_gpu=setup.gpu_layers > 0)
    return rows


def _rows_of(
    daemon: DaemonDriver, model: TextModel, questions: Sequence[Question], what: str, *, is_on_gpu: bool
) -> Iterator[Row]:
    """Of the questions only those that the whole prompt answers."""
    whole, sparse, short = Answered(), Answered(), Answered()
    for question in questions:
        _ask(daemon, model, question, question.ids, whole, "")
        if not whole.are_right[-1]:
            continue
        _ask(daemon, model, question, question.ids, sparse, f"prefill=sparse prefill_keep={SHARE}")
        _ask(daemon, model, question, compressed(daemon, question.ids), short, "")
    yield Row(f"questions, whole prompt, {what}", sum(whole.are_right), unit=f"of {len(questions)}")
    if not sparse.are_right:
        return
    for name, side in (("sparse prefill", sparse), ("compress", short)):
        n_right, n_all = sum(side.are_right), len(side.are_right)
        yield Row(f"questions of the whole prompt's, {name}, {what}", n_right / n_all, note=f"{n_right} of {n_all}")
    of_whole = statistics.median(sparse.first_s) / statistics.median(whole.first_s)
    yield Row(f"first token of the whole prompt's, {what}", of_whole, note="the daemon's clock")
    if not is_on_gpu:
        computed = statistics.median(sparse.processor_s) / statistics.median(whole.processor_s)
        yield Row(f"processor time up to it, {what}", computed)


def _ask(
    daemon: DaemonDriver, model: TextModel, question: Question, ids: Sequence[int], answered: Answered, keys: str
) -> None:
    began_s = processor_s(daemon.child.pid)
    daemon.send(gen_line(1, N_ANSWER, ids, f"reuse=0 {keys}"))
    first = daemon.next_token(DEADLINE_S)
    answered.processor_s.append(processor_s(daemon.child.pid) - began_s)
    tokens = [first.value, *daemon.tokens_until_end(DEADLINE_S)] if isinstance(first, Token) else []
    reply = daemon.next_reply()
    if not isinstance(reply, GenerateOk):
        raise RefusedError(reply)
    answered.first_s.append(reply.prefill_s)
    answered.are_right.append(holds(model, tokens, question))


def processor_s(pid: int) -> float:
    """What a process has computed so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def compressed(daemon: DaemonDriver, ids: Sequence[int]) -> list[int]:
    """Of a prompt what `compress` keeps."""
    daemon.send(f"compress id=1 share={SHARE} prompt={','.join(map(str, ids))}")
    kept = daemon.tokens_until_end(DEADLINE_S)
    daemon.next_reply(DEADLINE_S)
    return kept
