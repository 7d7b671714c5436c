"""What a token costs as a text grows far beyond the pool: luced with --kvflash at each position against itself with a
text that just fits its pool, and against luced with the whole text in its cells. The three take turns. It must not know
how a table looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from luce.protocol import Err, GenerateOk, Reply, StatusLine, Token
from tests.daemon_driver import DaemonDriver, gen_line, random_prompt

PAGE = 64
BOUNDED, HOME, WHOLE = SIDES = ("bounded", "home", "whole")
DEADLINE_S = 3600.0


class RefusedError(RuntimeError):
    """luced does not want what it was asked; the text is its own."""


@dataclass(frozen=True)
class FlatnessSettings:
    luced: Path
    model: Path
    n_pool: int
    n_ubatch: int
    n_threads: int
    n_gpu_layers: int
    cache_type: str
    tau: int
    n_answer: int
    policy: str = "query"
    more: tuple[str, ...] = ()

    def arguments(self, n_ctx: int, *, is_bounded: bool) -> list[str]:
        pool = ["--kvflash", str(self.n_pool), "--kvflash-policy", self.policy, "--kvflash-tau", str(self.tau)]
        return [
            "--lanes", "1", "--ctx", str(n_ctx), *(pool if is_bounded else ["--pool", str(n_ctx)]),
            "--ubatch", str(self.n_ubatch), "--threads", str(self.n_threads), "--gpu-layers", str(self.n_gpu_layers),
            "--cache-type-k", self.cache_type, "--cache-type-v", self.cache_type, "--draft-max", "0", *self.more,
        ]  # fmt: skip

    @property
    def n_home(self) -> int:
        """The longest prompt whose answer fits the pool too, with a page to spare."""
        return self.n_pool - self.n_answer - PAGE

    def n_ctx(self, positions: Sequence[int]) -> int:
        return -(-(max(*positions, self.n_home) + self.n_answer + PAGE) // PAGE) * PAGE


@dataclass(frozen=True)
class FlatnessSample:
    """One answer of one side."""

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
    pages_out: int
    host_bytes: int
    resident_kb: int

    @property
    def token_s(self) -> float:
        return self.decode_s / self.n_decoded

    @property
    def stall_share(self) -> float:
        return self.stall_s / self.decode_s


def measure_flatness(
    settings: FlatnessSettings,
    positions: Sequence[int],
    n_rounds: int = 5,
    report: Callable[[FlatnessSample], None] = lambda _: None,
) -> list[FlatnessSample]:
    """n_rounds that count at each position, after one that reads what is new of the text."""
    samples = []
    n_ctx = settings.n_ctx(positions)
    with ExitStack() as stack:
        daemons = {}
        for is_bounded in (True, False):
            arguments = settings.arguments(n_ctx, is_bounded=is_bounded)
            daemons[is_bounded] = stack.enter_context(DaemonDriver(settings.luced, settings.model, *arguments))
        for position in sorted(positions):
            for turn in range(n_rounds + 1):
                for side in SIDES[turn % 3 :] + SIDES[: turn % 3]:
                    n = settings.n_home if side == HOME else position
                    sample = _decode(daemons[side != WHOLE], settings, side, position, n, turn)
                    samples.append(sample)
                    report(sample)
    return samples


def _decode(
    daemon: DaemonDriver, settings: FlatnessSettings, side: str, position: int, n_prompt: int, turn: int
) -> FlatnessSample:
    """Each text begins as the shorter ones do, so that only what is new is read; the one that fits is another."""
    prompt = random_prompt(n_prompt, seed=2 if side == HOME else 1)
    daemon.send(gen_line(1, settings.n_answer, prompt, f"ignore_eos=1 marks={n_prompt}"))
    first = daemon.next_token(DEADLINE_S)
    if not isinstance(first, Token):
        raise RefusedError(f"luced: {_error_of(daemon.next_reply())}")
    # What stands here has been waited for before the first token.
    stalled_s = float(_status(daemon).get("page_stall_s", "0"))
    daemon.tokens_until_end(DEADLINE_S)
    reply = daemon.next_reply()
    assert isinstance(reply, GenerateOk), reply
    status = _status(daemon)
    return FlatnessSample(
        side, position, turn, reply.n_prompt - reply.n_reused, reply.prefill_s, reply.n_generated - 1, reply.decode_s,
        float(status.get("page_stall_s", "0")) - stalled_s, int(status["pool"]), int(status.get("pages_out", "0")),
        int(status["host_bytes"]), daemon.resident_kb(),
    )  # fmt: skip


def _error_of(reply: Reply) -> str:
    return f"{reply.code} {reply.text}" if isinstance(reply, Err) else str(reply)


def _status(daemon: DaemonDriver) -> dict[str, str]:
    daemon.send("status")
    reply = daemon.next_reply()
    assert isinstance(reply, StatusLine), reply
    return dict(reply.fields)
