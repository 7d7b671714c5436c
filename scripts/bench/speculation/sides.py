"""The sides of the speculation benchmark: luced and llama-server, each with one setting, answering waves of prompts.

A side says how long its decoding took, what it emitted and what it says of its drafts. It must not know what is
compared with what.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from luce.protocol import End, Speculation, Token
from scripts.bench.harness import llama_server_arguments, luced_arguments
from scripts.bench.servers import LlamaServer
from scripts.bench.speculation.prompts import RenderedPrompt
from tests.daemon_driver import DaemonDriver, DaemonEnded, gen_line

PREPARING_ID = 1_000_000


@dataclass(frozen=True)
class Answered:
    name: str
    """Of the prompt."""
    tokens: tuple[int, ...]
    speculation: Speculation | None
    """None where nothing is said of it. llama-server does not say how many steps it took: 0."""


@dataclass(frozen=True)
class Wave:
    """What one wave of prompts, served at once, took from their first tokens to their last ones: the mean of its
    answers, each of which is somebody's who waits. (Until the last one ended is another question: lanes that drafts
    carry ahead leave the others to calls for fewer lanes, which cost more a token.)"""

    seconds: float
    n_decoded: int
    """Tokens in that time, in all lanes together."""
    wall_s: float
    """By the client's clock, until the last one ended; several from when they were sent, to be reused."""
    answers: tuple[Answered, ...]


class Side(Protocol):
    @property
    def name(self) -> str: ...

    def answer(self, wave: Sequence[RenderedPrompt], n_tokens: int) -> Wave: ...


@dataclass(frozen=True)
class EngineSettings:
    """What all sides have in common."""

    model: Path
    draft: Path | None
    n_ctx: int
    """Of one lane."""
    n_lanes: int
    engine: Namespace
    """Of harness.parser_of."""
    draft_cache_type: str
    """llama-server's; luced has its own default."""

    def luced_arguments(self, *more: str) -> list[str]:
        n_pool = self.n_ctx * self.n_lanes
        return [*luced_arguments(self.engine, self.n_lanes, self.n_ctx, n_pool), "--flash-attn", "on", *more]

    def server_arguments(self, *more: str) -> list[str]:
        return [*llama_server_arguments(self.engine, 1, self.n_ctx), *more]

    def server_draft_arguments(self) -> list[str]:
        return [
            "--spec-type", "draft-dflash", "--spec-draft-model", str(self.draft),
            "--spec-draft-ngl", str(self.engine.gpu_layers),
            "--spec-draft-type-k", self.draft_cache_type, "--spec-draft-type-v", self.draft_cache_type,
        ]  # fmt: skip


class LucedSide:
    """A luced of its own, which computes only while it answers."""

    def __init__(self, name: str, daemon: DaemonDriver) -> None:
        self._name = name
        self._daemon = daemon
        self._prepared: set[tuple[int, ...]] = set()

    @property
    def name(self) -> str:
        return self._name

    @classmethod
    @contextmanager
    def start(cls, name: str, binary: Path, settings: EngineSettings, *more: str) -> Iterator[LucedSide]:
        with DaemonDriver(binary, settings.model, *settings.luced_arguments(*more)) as daemon:
            yield cls(name, daemon)

    def answer(self, wave: Sequence[RenderedPrompt], n_tokens: int) -> Wave:
        """REQUIRES: no more prompts than lanes."""
        try:
            return self._answer(wave, n_tokens)
        except (DaemonEnded, BrokenPipeError) as error:
            names = ", ".join(prompt.name for prompt in wave)
            status = self._daemon.wait()
            raise RuntimeError(f"the luced of {self._name} ended with status {status} at {names}") from error

    def _answer(self, wave: Sequence[RenderedPrompt], n_tokens: int) -> Wave:
        self._prepare(wave)
        is_alone = len(wave) == 1
        tokens: list[list[int]] = [[] for _ in wave]
        n_open = len(wave)
        opened_s = monotonic()
        self._daemon.send(
            *(gen_line(i, n_tokens, prompt.ids, extra_of(prompt, is_alone)) for i, prompt in enumerate(wave))
        )
        if is_alone:
            n_open -= keep(tokens, self._daemon.next_token())
            opened_s = monotonic()
        # The tokens stay in their pipe until all is over, so that reading them takes no processor time from the engine.
        replies = {(reply := self._daemon.next_ok()).id: reply for _ in wave}
        wall_s = monotonic() - opened_s
        while n_open:
            n_open -= keep(tokens, self._daemon.next_token())
        seconds = sum(reply.decode_s for reply in replies.values()) / len(replies)
        n_decoded = sum(map(len, tokens)) - len(tokens)
        answers = tuple(
            Answered(prompt.name, tuple(tokens[i]), replies[i].speculation) for i, prompt in enumerate(wave)
        )
        return Wave(seconds, n_decoded, wall_s, answers)

    def margins(self, prompt: RenderedPrompt, n_tokens: int) -> list[float]:
        """How far the best token led at each step of the answer."""
        answer = self._daemon.generate(prompt.ids, n_tokens, f"{extra_of(prompt, True)} logprobs=2")
        return [line.entries[1][1] - line.entries[2][1] for line in answer.logprobs]

    def _prepare(self, wave: Sequence[RenderedPrompt]) -> None:
        """Have the conversations before the prompts read: once, however many prompts follow; and several prompts to
        their end, so that all answers begin at once."""
        for prompt in wave:
            if len(wave) > 1:
                self._daemon.generate(prompt.ids, 1, extra_of(prompt, False), PREPARING_ID)
                continue
            before = prompt.ids[: prompt.n_shared]
            if not before or before in self._prepared:
                continue
            self._daemon.generate(before, 1, f"marks={prompt.n_shared}", PREPARING_ID)
            self._prepared.add(before)


def extra_of(prompt: RenderedPrompt, is_alone: bool) -> str:
    """What the conversation before it has in common with others is reused; what stands alone is read anew each time, or
    was read just before if others run beside it."""
    if prompt.n_shared:
        return "marks=" + ",".join(map(str, prompt.marks))
    return "reuse=0" if is_alone else ""


def keep(tokens: Sequence[list[int]], event: Token | End) -> int:
    """1 if the event ends its answer."""
    if isinstance(event, End):
        return 1
    tokens[event.id].append(event.value)
    return 0


class ServerSide(LlamaServer):
    """A llama-server of its own with one slot. Use as a context manager."""

    def __init__(self, name: str, binary: Path, settings: EngineSettings, *more: str) -> None:
        super().__init__(binary, settings.model, *settings.server_arguments(*more))
        self._side_name = name

    @property
    def name(self) -> str:
        return self._side_name

    def answer(self, wave: Sequence[RenderedPrompt], n_tokens: int) -> Wave:
        """REQUIRES: one prompt."""
        [prompt] = wave
        body = {
            "prompt": list(prompt.ids), "n_predict": n_tokens, "temperature": 0, "cache_prompt": prompt.n_shared > 0,
            "stream": False, "return_tokens": True,
        }  # fmt: skip
        started_s = monotonic()
        answer = self.post(body)
        whole_s = monotonic() - started_s
        return server_wave(prompt.name, answer, whole_s)


def server_wave(name: str, answer: Mapping[str, Any], whole_s: float) -> Wave:
    """By the server's own clock, which stands still while it reads the prompt and while it writes its answer."""
    timings = answer["timings"]
    speculation = None
    if "draft_n" in timings:
        speculation = Speculation(int(timings["draft_n"]), int(timings["draft_n_accepted"]))
    wall_s = whole_s - float(timings["prompt_ms"]) / 1e3
    answered = Answered(name, tuple(answer["tokens"]), speculation)
    return Wave(float(timings["predicted_ms"]) / 1e3, int(timings["predicted_n"]) - 1, wall_s, (answered,))
