"""What number formats of the attention cache change on real text: the next token's distributions and the answers to
questions, against a cache of f16. A format outside the device is measured on a text that has been there. Counts, no
times. It must not know a format's arithmetic.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from luce.protocol import GenerateOk
from luce.supervisor.checking.divergence import SHARE_UNSAID, kl_divergence, most_mean_kl
from luce.supervisor.text import TextModel
from scripts.bench.memory.number_formats import Format
from scripts.bench.real.readings import Reading, ask, force, is_right, reading
from scripts.bench.real.rows import Row, Setup
from scripts.bench.residency.sides import whole_pages
from tests.daemon_driver import DaemonDriver, gen_line

EXACT = "f16"
FORMATS = ("q8_0", "q8_0/q4_0", "q4_0", "f16>tq3")
N_LIKELIEST = 100
N_BEHIND = 16  # tokens of a text that are read after it has come back

Distribution = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Volume:
    lengths: tuple[int, ...]
    n_texts: int
    n_questions: int
    """Of each kind, about each text."""
    n_going_on: int
    """Places where distributions are compared."""


def volume_of(setup: Setup) -> Volume:
    if setup.quick:
        return Volume((1024,), 1, 3, 48)
    if not setup.gpu_layers:
        return Volume((1024, 4096), 1, 6, 128)
    longest = (32256,) if setup.name != "smollm" else ()
    return Volume((1024, 7680, *longest), 2, 6, 256)


@dataclass
class Found:
    """What one format makes of all texts of a length."""

    distributions: list[Distribution] = field(default_factory=list)
    are_right: list[bool] = field(default_factory=list)


def measure(setup: Setup) -> list[Row]:
    return measure_volume(setup, volume_of(setup))


def measure_volume(setup: Setup, volume: Volume) -> list[Row]:
    rows: list[Row] = []
    with closing(TextModel(setup.model)) as model:
        for length in volume.lengths:
            texts = [
                reading(model, length, volume.n_questions, volume.n_going_on, seed) for seed in range(volume.n_texts)
            ]
            exact = _found(setup, model, texts, EXACT)
            for name in FORMATS:
                rows += _compared(f"{name}, {length:,} tokens", name, exact, _found(setup, model, texts, name))
    return rows


def _found(setup: Setup, model: TextModel, texts: Sequence[Reading], name: str) -> Found:
    form, found = Format(name), Found()
    n_pool = whole_pages(max(len(text.ids) + len(text.going_on) for text in texts) + 512)
    options = (
        "--lanes", "1", "--ctx", str(n_pool), "--pool", str(n_pool), "--fit", "off", "--threads", str(setup.threads),
        "--gpu-layers", str(setup.gpu_layers), "--ubatch", str(setup.ubatch), "--draft-max", "0", *form.arguments,
    )  # fmt: skip
    with DaemonDriver(setup.luced, setup.model, *options) as daemon:
        for text in texts:
            if form.outside is not None:
                _send_out(daemon, text)
            found.distributions += [step[1:] for step in force(daemon, text.ids, text.going_on, N_LIKELIEST)]
            for question in text.questions:
                found.are_right.append(is_right(daemon, model, question, len(text.ids)))
    return found


def _send_out(daemon: DaemonDriver, text: Reading) -> None:
    """What has been read of it comes back in the format that it had outside."""
    ask(daemon, gen_line(1, 1, text.ids[:-N_BEHIND], "reuse=0"))
    for command in ("park", "unpark"):
        daemon.send(command)
        daemon.next_reply()
    reply = ask(daemon, gen_line(1, 1, text.ids)).reply
    assert isinstance(reply, GenerateOk)
    assert reply.tier == "host", "it has not been outside"


def _compared(what: str, name: str, exact: Found, found: Found) -> Iterator[Row]:
    apart = [kl_divergence(a, b) for a, b in zip(exact.distributions, found.distributions, strict=True)]
    same = [a[0][0] == b[0][0] for a, b in zip(exact.distributions, found.distributions, strict=True)]
    limit = most_mean_kl(name)
    mean, share = statistics.fmean(apart), statistics.fmean(same)
    yield Row(
        f"KL, {what}", mean, unit="nats", aim=f"<= {limit}", is_met=limit is not None and mean <= limit,
        note=f"the limit of luce check; largest {max(apart):.3f}",
    )  # fmt: skip
    yield Row(
        f"likeliest token the same, {what}", share, aim=f">= {1 - SHARE_UNSAID}", is_met=share >= 1 - SHARE_UNSAID,
        note="luce check says that answers change" if share < 1 - SHARE_UNSAID else "",
    )  # fmt: skip
    both = [there for here, there in zip(exact.are_right, found.are_right, strict=True) if here]
    if both:
        yield Row(f"questions of f16's, {what}", sum(both) / len(both), note=f"{sum(both)} of {len(both)}")
