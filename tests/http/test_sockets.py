"""TLS and Unix sockets: what clients get over them, who gets in, and what becomes of a socket's file."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import subprocess
from pathlib import Path

import httpx2 as httpx
import pytest

from luce.supervisor import ConfigError
from luce.supervisor.cli.server_client import ServerClient, ServerError
from luce.supervisor.http.server import is_exposed
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.sockets import refuse_taken, tls_context, unix_socket
from tests.http.conftest import MakeServer
from tests.http.raw_client import raw_client

CHAT = "/v1/chat/completions"
HELLO = {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One that names localhost and 127.0.0.1, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return certificate, key


async def test_a_handshake_that_never_ends(make_server: MakeServer, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    async with make_server(ssl_cert_file=file, ssl_key_file=key, head_timeout_s=0.2) as server:
        for data in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            async with raw_client(server.url) as client:
                await client.send(data)
                assert await client.read_to_end() == b""


def test_a_head_has_some_time() -> None:
    with pytest.raises(ConfigError, match="head_timeout_s=0: it must be above 0"):
        ServeSettings(head_timeout_s=0)


async def test_answers_come_over_tls(make_server: MakeServer, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    async with make_server(ssl_cert_file=file, ssl_key_file=key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(file))
        async with httpx.AsyncClient(base_url=server.url, verify=trusted, timeout=120) as client:
            whole = await client.post(CHAT, json={**HELLO, "temperature": 0})
            assert whole.status_code == 200
            streamed = await client.post(CHAT, json={**HELLO, "temperature": 0, "stream": True})
            assert streamed.content.endswith(b"data: [DONE]\n\n")
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as distrustful:
            with pytest.raises(httpx.ConnectError):
                await distrustful.get("/health")
        with pytest.raises(ServerError, match=r"is not trusted \(self-signed certificate\)"):
            await asyncio.to_thread(ServerClient(server.url, None).look, "/v1/models", 120.0)
        async with httpx.AsyncClient(timeout=120) as plain:
            with pytest.raises(httpx.RemoteProtocolError):
                await plain.get(server.url.replace("https:", "http:") + "/health")


def test_certificates_that_are_none_are_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    file, key = certificate
    (tmp_path / "other.pem").write_text("no certificate")
    both = tmp_path / "both.pem"
    both.write_text(file.read_text() + key.read_text())
    locked = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert tls_context(ServeSettings()) is None
    assert tls_context(ServeSettings(ssl_cert_file=both)) is not None
    for wrong in (
        ServeSettings(ssl_cert_file=tmp_path / "missing.pem"),
        ServeSettings(ssl_cert_file=file),
        ServeSettings(ssl_cert_file=tmp_path / "other.pem", ssl_key_file=key),
        ServeSettings(ssl_cert_file=file, ssl_key_file=locked),
    ):
        with pytest.raises(ConfigError, match=r"^ssl_"):
            tls_context(wrong)
    with pytest.raises(ConfigError, match="ssl_key_file is of no use"):
        ServeSettings(ssl_key_file=key)
    with pytest.raises(ConfigError, match="a Unix socket needs no TLS"):
        ServeSettings(host="unix:/tmp/a", ssl_cert_file=file)


@pytest.mark.parametrize("form", ["unix:{}/luce", "{}/luce.sock"])
async def test_answers_come_over_a_unix_socket(make_server: MakeServer, tmp_path: Path, form: str) -> None:
    host = form.format(tmp_path)
    path = Path(host.removeprefix("unix:"))
    async with make_server(host=host) as server:
        assert server.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600  # noqa: ASYNC240
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(base_url="http://localhost", transport=transport, timeout=120) as client:
            assert (await client.get("/health")).json()["status"] == "ok"
            streamed = await client.post(CHAT, json={**HELLO, "stream": True})
            assert streamed.content.endswith(b"data: [DONE]\n\n")
    assert not path.exists(), "it goes with the server"  # noqa: ASYNC240


def test_a_socket_has_its_mode_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with unix_socket(path, 0o660):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # its program has died: nobody listens
    assert path.is_socket()
    with unix_socket(path, 0o600) as live:
        with pytest.raises(OSError, match="another program listens"), unix_socket(path, 0o600):
            pass
        assert path.is_socket(), "the one that is in use stays"
        path.unlink()
        with unix_socket(path, 0o600):
            live.close()
            assert path.is_socket()
    assert not path.exists()


def test_an_ending_server_leaves_anothers_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with unix_socket(path, 0o600):
        path.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(path))
    assert path.is_socket()
    other.close()


def test_what_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    file = tmp_path / "precious.sock"
    file.write_text("precious")
    (tmp_path / "link.sock").symlink_to(file)
    for path in (file, tmp_path / "link.sock", tmp_path):
        with pytest.raises(OSError, match="no socket"), unix_socket(path, 0o600):
            pass
    assert file.read_text() == "precious"
    for path in (tmp_path / "no" / "a.sock", tmp_path / ("x" * 120)):
        with pytest.raises(OSError, match=r"no such folder|107 bytes"), unix_socket(path, 0o600):
            pass
    refuse_taken(tmp_path / "free.sock")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.sock", "precious.sock"]


def test_a_socket_for_all_is_open_to_all() -> None:
    assert not is_exposed(ServeSettings(host="unix:/run/a"))
    assert not is_exposed(ServeSettings(host="unix:/run/a", socket_mode="660"))
    assert not is_exposed(ServeSettings(host="unix:/run/a", socket_mode="666", api_keys=("key",)))
    assert is_exposed(ServeSettings(host="unix:/run/a", socket_mode="666"))
    for mode in ("", "rw", "0o600", "999", "6000"):
        with pytest.raises(ConfigError, match="socket_mode"):
            ServeSettings(socket_mode=mode)
