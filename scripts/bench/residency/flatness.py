"""What a token costs as a text grows far beyond the pool: luced with --kv-offload at each position against itself with
a text that just fits its pool, and against luced with the whole text in its cells. The three take turns. It must not
know how a table looks.

Attention passes over what is in the pool: a text that grows into it costs less a token than the pool's length does. So
the one that fits is decoded in its last page only, again and again, until there are as many tokens as in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from luce.protocol import GenerateOk, StatusLine, Token
from scripts.bench.residency.sides import DEADLINE_S, PAGE, EngineSettings, RefusedError, whole_pages
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

BOUNDED, HOME, WHOLE = SIDES = ("bounded", "home", "whole")


class TooShortError(RuntimeError):
    """Nothing can be said of an answer; the text says why."""


@dataclass(frozen=True)
class FlatnessVolume:
    """What is measured: where, in how many cells, and how often."""

    positions: tuple[int, ...] = (2048, 4096, 8192, 16384)
    n_pool: int = 1024
    n_answer: int = 256
    n_rounds: int = 5
    sides: tuple[str, ...] = SIDES

    @property
    def n_home_answer(self) -> int:
        return min(self.n_answer, PAGE)

    @property
    def n_home(self) -> int:
        """The prompt whose answer ends where the pool is full."""
        return self.n_pool - self.n_home_answer

    @property
    def n_ctx(self) -> int:
        return whole_pages(max(*self.positions, self.n_pool) + self.n_answer + PAGE)


@dataclass(frozen=True)
class FlatnessSample:
    """One answer of one side; of the text that fits several, one behind the other."""

    side: str
    position: int
    n_turn: int
    """0: the first time that this text was read, which is no warm decoding."""
    n_read: int
    prefill_s: float
    n_decoded: int
    """Tokens after the first one, in `decode_s`."""
    decode_s: float
    stall_s: float
    """Of `decode_s`: pages on their way, and what matters looked for."""
    n_pool: int
    n_choices: int
    """Of what to see, while the answer was written."""
    pages_out: int
    """Of the lane's text when its answer began."""
    host_bytes: int
    resident_kb: int

    @property
    def token_s(self) -> float:
        return self.decode_s / self.n_decoded

    @property
    def stall_share(self) -> float:
        return self.stall_s / self.decode_s


def measure_flatness(
    settings: EngineSettings, volume: FlatnessVolume, report: Callable[[FlatnessSample], None] = lambda _: None
) -> list[FlatnessSample]:
    """n_rounds that count at each position, after one that reads what is new of the text."""
    samples = []
    with ExitStack() as stack:
        bounded = stack.enter_context(settings.bounded(volume.n_ctx, volume.n_pool))
        whole = stack.enter_context(settings.whole(volume.n_ctx)) if WHOLE in volume.sides else bounded
        for daemon in (bounded, whole):  # what the first computation costs beyond the others
            daemon.generate(random_prompt(PAGE, seed=3), 8, "reuse=0")
        for position in sorted(volume.positions):
            for turn in range(volume.n_rounds + 1):
                first = turn % len(volume.sides)
                for side in volume.sides[first:] + volume.sides[:first]:
                    daemon = whole if side == WHOLE else bounded
                    measured = _home(bounded, volume) if side == HOME else _decode(daemon, side, position, volume)
                    samples.append(replace(measured, position=position, n_turn=turn))
                    report(samples[-1])
    return samples


def _home(daemon: DaemonDriver, volume: FlatnessVolume) -> FlatnessSample:
    """Another text than the one that grows, and the ends of its answers."""
    prompt = random_prompt(volume.n_home, seed=2)
    before = _status(daemon)
    replies = []
    for _ in range(-(-volume.n_answer // volume.n_home_answer)):
        answer = daemon.generate(prompt, volume.n_home_answer, f"ignore_eos=1 marks={volume.n_home}")
        if not isinstance(answer.reply, GenerateOk):
            assert answer.reply is not None
            raise RefusedError(answer.reply)
        replies.append(answer.reply)
    after = _status(daemon)
    return FlatnessSample(
        HOME, volume.n_home, 0, replies[0].n_prompt - replies[0].n_reused, replies[0].prefill_s,
        sum(reply.n_generated - 1 for reply in replies), sum(reply.decode_s for reply in replies),
        _grown(before, after, "page_stall_s"), int(after["pool"]), int(_grown(before, after, "page_choices")),
        int(after.get("pages_out", "0")), int(after["host_bytes"]), daemon.resident_kb(),
    )  # fmt: skip


def _decode(daemon: DaemonDriver, side: str, n_prompt: int, volume: FlatnessVolume) -> FlatnessSample:
    """Each text begins as the shorter ones do, so that only what is new is read."""
    prompt = random_prompt(n_prompt, seed=1)
    daemon.send(gen_line(1, volume.n_answer, prompt, f"ignore_eos=1 marks={n_prompt}"))
    first = daemon.next_token(DEADLINE_S)
    if not isinstance(first, Token):
        raise RefusedError(daemon.next_reply())
    # What stands here has been waited for before the first token.
    before = _status(daemon)  # the answer has begun
    daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply()
    assert isinstance(reply, GenerateOk), reply
    after = _status(daemon)
    return FlatnessSample(
        side, n_prompt, 0, reply.n_prompt - reply.n_reused, reply.prefill_s, reply.n_generated - 1, reply.decode_s,
        _grown(before, after, "page_stall_s"), int(after["pool"]), int(_grown(before, after, "page_choices")),
        int(before.get("pages_out", "0")), int(after["host_bytes"]), daemon.resident_kb(),
    )  # fmt: skip


def _grown(before: dict[str, str], after: dict[str, str], field: str) -> float:
    """A luced without --kv-offload does not have these fields."""
    return float(after.get(field, "0")) - float(before.get(field, "0"))


def _status(daemon: DaemonDriver) -> dict[str, str]:
    daemon.send("status")
    reply = daemon.next_reply()
    if isinstance(reply, GenerateOk):
        raise TooShortError("the answer ended before luced could be asked how it goes: give a larger --answer")
    assert isinstance(reply, StatusLine), reply
    return dict(reply.fields)
