"""Under which names the server answers, and who reaches it without a key."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from luce.supervisor.http.server import is_exposed
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.transport.served_hosts import ServedHosts, is_loopback
from tests.http.raw_client import raw_client
from tests.http.serving import Server

ANY_LOOPBACK = ("localhost", "localhost:8080", "LOCALHOST.", "luce.localhost", "127.0.0.1:1", "127.9.9.9", "[::1]:8080")
FOREIGN = (
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "evil.example#localhost",
    "localhost:8080:80",
    "localhost:port",
    "[::1",
    "2130706433",
    "",
    " ",
    "lоcalhost",  # noqa: RUF001  a letter that only looks like one
)


def hosts(**settings: object) -> ServedHosts:
    return ServedHosts.of(ServeSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ANY_LOOPBACK)
def test_names_of_this_machine_alone(name: str) -> None:
    assert hosts().serves(name)
    assert hosts(host="::1").serves(name)
    assert hosts(host="0.0.0.0", api_keys=("key",)).serves(name)  # noqa: S104


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_names(name: str) -> None:
    assert not hosts().serves(name)
    assert not hosts(host="0.0.0.0").serves(name)  # noqa: S104


def test_what_others_reach_is_served_under_its_own_names() -> None:
    assert not hosts().serves("10.1.1.1")
    assert not hosts().serves("box.example")
    exposed = hosts(host="box.example")
    for name in ("box.example", "BOX.example:8080", "10.1.1.1:80", "[fe80::1]", socket.gethostname()):
        assert exposed.serves(name), name
    assert hosts(host="10.1.1.2").serves("192.168.0.1"), "no address can be pointed elsewhere"


def test_names_that_are_allowed() -> None:
    assert hosts(allowed_hosts=("luce.example",)).serves("luce.example:443")
    assert not hosts(allowed_hosts=("luce.example",)).serves("a.luce.example")
    assert hosts(allowed_hosts=("*",)).serves("any.example")
    assert not hosts(allowed_hosts=("*",)).serves("any@example")
    assert hosts(host="unix:/run/luce.sock").serves("any.example"), "no browser reaches a Unix socket"


async def test_a_name_is_looked_for_wherever_a_request_has_one(server: Server) -> None:
    async def status(request: str) -> int:
        async with raw_client(server.url) as client:
            await client.send(request.replace("\n", "\r\n").encode("latin-1"))
            return (await client.read_answer()).status

    assert await status("GET /health HTTP/1.1\nHost: localhost\n\n") == 200
    assert await status("GET /health HTTP/1.0\n\n") == 200
    assert await status("GET /health HTTP/1.0\nHost: evil.example\n\n") == 403
    assert await status("GET /health HTTP/1.1\n\n") == 400
    assert await status("GET /health HTTP/1.1\nHost: evil.example\n\n") == 403
    assert await status("GET http://evil.example/health HTTP/1.1\nHost: localhost\n\n") == 403
    assert await status("GET http://localhost/health HTTP/1.1\nHost: evil.example\n\n") == 403
    assert await status("GET http://localhost/health HTTP/1.1\nHost: localhost\n\n") == 200
    assert await status("GET /health HTTP/1.1\nHost: localhost\nHost: evil.example\n\n") == 400
    assert await status("GET /health HTTP/1.1\nHost: evil.example\nX-Forwarded-Host: localhost\n\n") == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_only_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert not is_exposed(ServeSettings(host=host))


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "example.com", "localhost.evil.example", "fe80::1%lo"],  # noqa: S104
)
def test_an_address_that_others_reach_without_a_key(host: str) -> None:
    assert not is_loopback(host)
    assert is_exposed(ServeSettings(host=host))
    assert not is_exposed(ServeSettings(host=host, api_keys=("key",)))
    assert not is_exposed(ServeSettings(host=host, key_file=Path("keys.toml")))
