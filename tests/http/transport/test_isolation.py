"""With --cache-isolation key nobody can tell what another key has sent: not by what an answer says of its prompt, not
by what is kept of it, and not by when its first token comes. --full measures 200 pairs, beside as many that differ in
nothing, and as many without isolation, which must be told apart.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from tests.http.serving import Server

N_SHORT, N_FULL = 3, 200
N_WORDS = 250
N_SHUFFLES = 20_000
CHANCE = 0.005  # so often at most two equal distributions are told apart
CHAT = "/v1/chat/completions"
WORDS = ("the", "light", "is", "a", "program", "of", "that", "you", "what", "and", "in", "to", "answer", "it")
SYSTEM = "Be kind to all files, and to those who read them. " * 20
"""Both keys have sent it: that the other one has is no secret, and what comes behind it is."""
TIMEOUT_S = 120.0


@dataclass
class Measured:
    """First-token times, and what the answers said of their prompts."""

    known: list[float] = field(default_factory=list)
    """Of texts that another key has sent."""
    unknown: list[float] = field(default_factory=list)
    """Of texts that nobody has sent, and of others of them: how far equals are apart here."""
    also_unknown: list[float] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)

    def __str__(self) -> str:
        sides = {"known": self.known, "unknown": self.unknown, "also unknown": self.also_unknown}
        times = ", ".join(f"{name} {1000 * np.median(times):.2f} ms" for name, times in sides.items())
        return (
            f"{times}; by chance: known and unknown {chance_of(self.known, self.unknown):.3f},"
            f" known and also unknown {chance_of(self.known, self.also_unknown):.3f},"
            f" unknown and also unknown {chance_of(self.unknown, self.also_unknown):.3f}"
        )


@contextmanager
def serving(model: Path, **options: Any) -> Iterator[Server]:
    server = Server(model, {"api_keys": ("theirs", "mine"), "lanes": 1, "pool": 65536, **options})
    try:
        yield server.start()
    finally:
        server.stop()


def ask(client: httpx.Client, key: str, text: str) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the usage."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    options = {"include_usage": True}
    body = {"messages": messages, "max_tokens": 1, "temperature": 0, "stream": True, "stream_options": options}
    usage: dict[str, Any] = {}
    began_s, first_s = time.perf_counter(), 0.0
    with client.stream("POST", CHAT, json=body, headers={"x-api-key": key}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if first_s == 0 and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first_s = time.perf_counter() - began_s
            usage = chunk.get("usage") or usage
    return first_s, usage


def measure(server: Server, n_rounds: int) -> Measured:
    """One text of each kind a round, in random order."""
    rng, measured = random.Random(1), Measured()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
        ask(client, "mine", "Hello")
        for _ in range(n_rounds):
            texts = [" ".join(rng.choices(WORDS, k=N_WORDS)) for _ in range(3)]
            ask(client, "theirs", texts[0])
            ask(client, "mine", "Hello")  # whose turn it was before is another matter
            kinds = list(zip(texts, (measured.known, measured.unknown, measured.also_unknown), strict=True))
            rng.shuffle(kinds)
            for text, times in kinds:
                seconds, usage = ask(client, "mine", text)
                times.append(seconds)
                measured.usages.append(usage)
    return measured


def chance_of(known: list[float], unknown: list[float]) -> float:
    """How often pairs whose sides are swapped at random differ as much: a permutation test of the paired ranks."""
    differences = np.log(known) - np.log(unknown)
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1.0
    seen = abs(np.sum(np.sign(differences) * ranks))
    signs = np.random.default_rng(1).choice((-1.0, 1.0), (N_SHUFFLES, len(ranks)))
    return float(np.mean(np.abs(signs @ ranks) >= seen))


def test_what_another_key_has_sent_cannot_be_told_from_what_nobody_has(tiny_model: Path, full: bool) -> None:
    with serving(tiny_model, cache_isolation="key") as server:
        measured = measure(server, N_FULL if full else N_SHORT)
    said = {(usage["luce"]["cache_miss"].partition(":")[0], usage["luce"]["cache_tier"]) for usage in measured.usages}
    cached = {usage["prompt_tokens_details"]["cached_tokens"] for usage in measured.usages}
    assert len(said) == 1
    assert max(cached) - min(cached) <= 2, "as far as the texts begin alike by chance"
    assert min(cached) > 100, "the key's own beginning is served from memory all the same"
    print(measured)
    if full:
        assert chance_of(measured.known, measured.unknown) > CHANCE, measured
        assert chance_of(measured.known, measured.also_unknown) > CHANCE, measured


def test_what_two_keys_have_sent_is_kept_for_each(tiny_model: Path) -> None:
    """Not a token is found of the other key's, and not a page is spared."""
    with (
        serving(tiny_model, cache_isolation="key") as server,
        httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client,
    ):

        def n_kept() -> int:
            """Tokens of whole pages, wherever these lie."""
            (engine,) = client.get("/memory.json", headers={"x-api-key": "mine"}).json()["engines"]
            return sum(run["end"] - run["begin"] for run in engine["runs"])

        text = " ".join(random.Random(2).choices(WORDS, k=N_WORDS))
        before, kept = n_kept(), []
        for key in ("theirs", "mine"):
            _, usage = ask(client, key, text)
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
            assert usage["luce"]["cache_tier"] == "none"
            kept.append(n_kept() - before)
            before = n_kept()
        assert kept[0] == kept[1] > N_WORDS


def test_without_isolation_it_can(tiny_model: Path, full: bool) -> None:
    """Else the test above would show nothing."""
    with serving(tiny_model) as server:
        measured = measure(server, N_FULL if full else N_SHORT)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in measured.usages]
    assert max(cached) - min(cached) >= N_WORDS
    print(measured)
    if full:
        assert chance_of(measured.known, measured.unknown) < CHANCE, measured


@pytest.mark.parametrize(("shift", "is_told"), [(0.0, False), (0.02, True)])
def test_a_difference_of_two_percent_would_be_seen(shift: float, is_told: bool) -> None:
    rng = np.random.default_rng(2)
    unknown = np.exp(rng.normal(-3, 0.05, N_FULL))
    known = np.exp(rng.normal(-3 - shift, 0.05, N_FULL))
    assert (chance_of(list(known), list(unknown)) < CHANCE) == is_told
