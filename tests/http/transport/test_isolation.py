"""With --cache-isolation key nobody can tell what another key has sent: not by what an answer says of its prompt, and
not by when its first token comes. --full measures 200 pairs, and as many without isolation, which must be told apart.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import numpy as np
import pytest

from tests.http.serving import Server

N_SHORT, N_FULL = 6, 200
N_WORDS = 250
N_SHUFFLES = 20_000
CHANCE = 0.005  # so often at most two equal distributions are told apart
CHAT = "/v1/chat/completions"
WORDS = ("the", "light", "is", "a", "program", "of", "that", "you", "what", "and", "in", "to", "answer", "it")
SYSTEM = "Be kind to all files, and to those who read them. " * 20
"""Both keys have sent it: that the other one has is no secret, and what comes behind it is."""
TIMEOUT_S = 120.0


@contextmanager
def serving(model: Path, **options: Any) -> Iterator[httpx.Client]:
    server = Server(model, {"api_keys": ("theirs", "mine"), "lanes": 1, "pool": 65536, **options})
    try:
        server.start()
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
            yield client
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


def measured(client: httpx.Client, n_pairs: int) -> tuple[list[float], list[float], list[dict[str, Any]]]:
    """First-token times of texts that another key has sent, and of texts that nobody has; and all usages."""
    rng = random.Random(1)
    ask(client, "mine", "Hello")
    known: list[float] = []
    unknown: list[float] = []
    usages = []
    for _ in range(n_pairs):
        sent, not_sent = (" ".join(rng.choices(WORDS, k=N_WORDS)) for _ in range(2))
        ask(client, "theirs", sent)
        pair = [(sent, known), (not_sent, unknown)]
        rng.shuffle(pair)
        for text, times in pair:
            seconds, usage = ask(client, "mine", text)
            times.append(seconds)
            usages.append(usage)
    return known, unknown, usages


def chance_of(known: list[float], unknown: list[float]) -> float:
    """How often pairs whose sides are swapped at random differ as much: a permutation test of the paired ranks."""
    differences = np.log(known) - np.log(unknown)
    ranks = np.argsort(np.argsort(np.abs(differences))) + 1.0
    seen = abs(np.sum(np.sign(differences) * ranks))
    signs = np.random.default_rng(1).choice((-1.0, 1.0), (N_SHUFFLES, len(ranks)))
    return float(np.mean(np.abs(signs @ ranks) >= seen))


def test_what_another_key_has_sent_cannot_be_told_from_what_nobody_has(tiny_model: Path, full: bool) -> None:
    with serving(tiny_model, cache_isolation="key") as client:
        known, unknown, usages = measured(client, N_FULL if full else N_SHORT)
    said = {(usage["luce"]["cache_miss"], usage["luce"]["cache_tier"]) for usage in usages}
    cached = {usage["prompt_tokens_details"]["cached_tokens"] for usage in usages}
    assert len(said) == 1
    assert max(cached) - min(cached) <= 2, "as far as the texts begin alike by chance"
    assert min(cached) > 100, "the key's own beginning is served from memory all the same"
    if full:
        apart = np.median(known) / np.median(unknown)
        assert 0.97 < apart < 1.03, f"{apart:.4f}, by chance {chance_of(known, unknown):.4f} (docs/security.md)"


def test_without_isolation_it_can(tiny_model: Path, full: bool) -> None:
    """Else the test above would show nothing."""
    with serving(tiny_model) as client:
        known, unknown, usages = measured(client, N_FULL if full else N_SHORT)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert max(cached) - min(cached) >= N_WORDS
    if full:
        assert chance_of(known, unknown) < CHANCE, (np.median(known), np.median(unknown))


@pytest.mark.parametrize(("shift", "is_told"), [(0.0, False), (0.02, True)])
def test_a_difference_of_two_percent_would_be_seen(shift: float, is_told: bool) -> None:
    rng = np.random.default_rng(2)
    unknown = np.exp(rng.normal(-3, 0.05, N_FULL))
    known = np.exp(rng.normal(-3 - shift, 0.05, N_FULL))
    assert (chance_of(list(known), list(unknown)) < CHANCE) == is_told
