"""What build_app's arguments mean, how many replicas there are to be, and who may speak to a replica."""

from __future__ import annotations

import asyncio
import pickle
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from luce.ray.autoscaling import WaitingTokensPolicy
from luce.ray.options import RayOptions, read_serving
from luce.supervisor.config import ConfigError
from tests.ray.conftest import Site


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"replica": 2}, "did you mean replicas"),
        ({"replicas": "many"}, "replicas=many: it must be a number"),
        ({"replicas": 0}, "replicas=0"),
        ({"stride": 100}, "multiple of 64"),
        ({"router": "random"}, "price or two_choices"),
        ({"drain_s": -1}, "drain_s=-1"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RayOptions.of(arguments)


def test_the_command_line_gives_text() -> None:
    options = RayOptions.of({"replicas": "3", "drain_s": "2.5"})
    assert (options.replicas, options.drain_s) == (3, 2.5)


def test_options_of_the_server_come_before_the_environment(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCE_CTX", "1024")
    monkeypatch.setenv("LUCE_LANES", "3")
    config, settings = read_serving({"model": str(tiny_model), "ctx": 2048, "host-cache": "1G", "port": 81})
    assert (config.ctx, config.lanes, config.host_cache, settings.port) == (2048, 3, 1 << 30, 81)
    assert config.draft is None
    packaged, _ = read_serving({})
    assert packaged.draft is not None


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"cxt": 5}, "did you mean ctx"),
        ({"embedding_model": "x.gguf"}, "embedding_model is not served by replicas"),
        ({"model": "/there/is/none.gguf"}, "none.gguf"),
        ({"lanes": "x"}, "lanes"),
    ],
)
def test_what_is_wrong_with_the_servers_options_is_named(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_serving(table)


@pytest.mark.parametrize(
    ("reported", "wanted"),
    [
        ({}, 2),
        ({"waiting_tokens": {"a": 0.0, "b": 0.0}, "open_requests": {"a": 0.0}, "lanes": {"a": 4.0, "b": 4.0}}, 0),
        ({"waiting_tokens": {"a": 9000.0, "b": 3000.0}, "open_requests": {"a": 1.0}, "lanes": {"a": 4.0}}, 3),
        ({"waiting_tokens": {"a": 10.0}, "open_requests": {"a": 8.0, "b": 8.0}, "lanes": {"a": 4.0, "b": 4.0}}, 4),
    ],
)
def test_replicas_follow_what_waits(reported: dict[str, dict[str, float]], wanted: int) -> None:
    context = SimpleNamespace(aggregated_metrics=reported, target_num_replicas=2)
    assert WaitingTokensPolicy(waiting_tokens=4000)(context)[0] == wanted


class _Code:
    ran = False

    def __reduce__(self) -> Any:
        return (setattr, (_Code, "ran", True))


async def test_who_does_not_show_the_secret_is_turned_away_unheard(site: Site) -> None:
    frame = pickle.dumps([_Code()])
    reader, writer = await asyncio.open_connection("127.0.0.1", site.replicas["a"].replica_metadata["port"])
    writer.write(b"x" * 32 + len(frame).to_bytes(4, "little") + frame)
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    assert (_Code.ran, site.replicas["a"].door.visits) == (False, set())
