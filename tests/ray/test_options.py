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
from luce.ray.link import SECRET_BYTES, GuardedLink
from luce.ray.options import RayOptions, read_serving
from luce.supervisor.config import ConfigError
from tests.ray.conftest import Site


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"replica": 2}, "did you mean replicas"),
        ({"replicas": "many"}, "replicas: 'many' is not a whole number"),
        ({"replicas": 0}, "replicas=0"),
        ({"replicas": True}, "replicas: True is not a whole number"),
        ({"replicas": 2, "autoscaling": {}}, "replicas and autoscaling: name one"),
        ({"autoscaling": 3}, "autoscaling: 3 is not a table"),
        ({"stride": 100}, "multiple of 64"),
        ({"stride": 0}, "multiple of 64"),
        ({"router": "random"}, "router: 'random' is not one of price, two_choices"),
        ({"router_seed": [1]}, "router_seed"),
        ({"drain_s": -1}, "drain_s: it must be 0 or more"),
        ({"drain_s": float("inf")}, "drain_s: inf is not a number"),
        ({"stats_period_s": 0}, "stats_period_s=0: it must be above 0"),
        ({"ray_actor_options": "num_gpus"}, "ray_actor_options: 'num_gpus' is not JSON"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RayOptions.of(arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"ray_actor_options": {"num_gpu": 1}}, "ray_actor_options: .*num_gpu"),
        ({"ray_actor_options": {"num_gpus": 1.5}}, "num_gpus=1.5: above 1 it must be a whole number"),
        ({"ingress_actor_options": {"num_cpus": "x"}}, "ingress_actor_options: .*num_cpus"),
        ({"autoscaling": {"max_replica": 3}}, "autoscaling: .*did you mean max_replicas"),
        ({"autoscaling": {"min_replicas": 5, "max_replicas": 2}}, "autoscaling: .*max_replicas"),
        ({"autoscaling": {"min_replicas": 0, "max_replicas": 2}}, "min_replicas=0: it must be 1 or more"),
        ({"autoscaling": {"waiting_tokens": 0}}, "waiting_tokens=0"),
    ],
)
def test_what_ray_does_not_take_is_named(arguments: dict[str, Any], told: str) -> None:
    pytest.importorskip("ray.serve", reason="left out: Ray is not installed", exc_type=ImportError)
    from luce.ray import build_app

    with pytest.raises(ConfigError, match=told):
        build_app(arguments)


def test_the_command_line_gives_text() -> None:
    options = RayOptions.of({"replicas": "3", "drain_s": "2.5"})
    assert (options.replicas, options.drain_s) == (3, 2.5)
    assert RayOptions.of({"ray_actor_options": '{"num_gpus": 0.5}'}).ray_actor_options == {"num_gpus": 0.5}


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
        ([1], r"luce: \[1\] is not a table"),
        ("ctx=5", "luce: 'ctx=5' is not JSON"),
        ({"model": __file__}, "cannot read model"),
        ({"chat_template": "/there/is/none"}, "/there/is/none: No such file"),
        ({"ssl_cert_file": __file__}, "ssl_cert_file"),
        ({"api_keys": "/there/is/none"}, "/there/is/none: No such file"),
    ],
)
def test_what_is_wrong_with_the_servers_options_is_named(table: object, told: str) -> None:
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


async def test_who_shows_nothing_is_turned_away() -> None:
    lost = asyncio.Event()

    def made() -> GuardedLink:
        return GuardedLink(lambda _: None, lost.set, secret=b"x" * SECRET_BYTES, within_s=0.01)

    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            await lost.wait()
        writer.close()
