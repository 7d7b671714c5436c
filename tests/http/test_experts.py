"""What clients and watchers are told of a mixture whose experts lie in two memories.

Only an engine with a GPU has one. So a program stands in for luced: it runs the real one, and says in its lines what
such an engine says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.http.serving import Server
from tests.http.test_app_metrics import HELLO, samples

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": HELLO,
}
STATUS = {
    "experts": 64,
    "experts_resident": 48,
    "experts_least": 40,
    "experts_most": 56,
    "experts_device_bytes": 9000,
    "experts_host_bytes": 3000,
    "expert_hits": 700,
    "expert_misses": 300,
    "expert_exchanges": 5,
    "expert_moved_bytes": 1000,
    "expert_wait_s": 0.25,
}
"""In the order of docs/metrics.md."""
CACHE = {"cache_cells": 4096, "cache_bytes": 5000}
PLAN = {"plan_gpus": 1, "plan_ctx": 8192, "plan_cache_type_k": "q8_0"}
SAID = " ".join(f"{name}={value}" for name, value in {**STATUS, **CACHE, **PLAN}.items())
PROGRAM = f"""#!/bin/sh
"{{luced}}" "$@" | sed -u 's/ stop=/ expert_hits=30 expert_misses=10 stop=/; s/^.status. .*/& {SAID}/'
"""


@pytest.fixture(scope="module")
def mixture(tiny_model: Path, luced: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = tmp_path_factory.mktemp("engine") / "luced"
    program.write_text(PROGRAM.format(luced=luced))
    program.chmod(0o755)
    running = Server(tiny_model, {"binary": program})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(mixture: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=mixture.url, timeout=120) as connected:
        yield connected


@pytest.mark.parametrize("path", DIALECTS)
def test_each_dialect_tells_it_in_its_usage(client: httpx.Client, path: str) -> None:
    before = samples(client)
    answer = client.post(path, json={"model": "any", **DIALECTS[path]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["luce"]["experts"] == {"hits": 30, "misses": 10, "hit_share": 0.75}
    after = samples(client)
    assert after["luce_http_expert_hit_ratio_count", ()] - before["luce_http_expert_hit_ratio_count", ()] == 1
    assert after["luce_http_expert_hit_ratio_sum", ()] - before["luce_http_expert_hit_ratio_sum", ()] == 0.75


def test_choices_add_up(client: httpx.Client) -> None:
    usage = client.post("/v1/chat/completions", json={**HELLO, "n": 3}).json()["usage"]
    assert usage["luce"]["experts"] == {"hits": 90, "misses": 30, "hit_share": 0.75}


def test_the_engine_tells_what_it_has_done_so_far_and_what_was_planned(client: httpx.Client) -> None:
    engine: dict[str, Any] = {"figures": {}}
    while not engine["figures"]:  # an engine that is busy for long has none
        (engine,) = client.get("/status.json").json()["engines"]
    assert {name: engine["figures"][name] for name in {**STATUS, **CACHE, **PLAN}} == {**STATUS, **CACHE, **PLAN}
    told = {name: value for (name, _), value in samples(client).items()}
    assert [value for name, value in told.items() if name.startswith("luce_engine_expert")] == list(STATUS.values())
    assert [value for name, value in told.items() if name.startswith("luce_engine_cache")] == list(CACHE.values())


def test_of_another_model_nothing_is_told(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=120) as client:
        assert client.post("/v1/chat/completions", json=HELLO).json()["usage"]["luce"]["experts"] is None
        told = {name: value for (name, _), value in samples(client).items() if "expert" in name}
        (engine,) = client.get("/status.json").json()["engines"]
    assert told.pop("luce_http_expert_hit_ratio_count") == 0
    assert [name for name in told if not name.startswith("luce_http_expert_hit_ratio")] == []
    assert [name for name in engine["figures"] if name.startswith(("expert", "plan_"))] == []
