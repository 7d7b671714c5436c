"""Where the server listens, besides plain TCP: at a Unix socket, and with TLS.

A socket's file is this server's from its start to its end: what an earlier one left is replaced, what another program
uses or what is no socket never. Must not know requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiohttp import web

from luce.supervisor.config import ConfigError
from luce.supervisor.http.settings import ServeSettings

BACKLOG = 512


def tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    """None: without TLS. Raises ConfigError."""
    certificate, key = settings.ssl_cert_file, settings.ssl_key_file
    if certificate is None:
        return None
    for name, file in (("ssl_cert_file", certificate), ("ssl_key_file", key)):
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as error:
            raise ConfigError(f"{name} {file}: {error.strerror}") from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An encrypted key would make OpenSSL ask the terminal, and wait.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError) as error:
        files = str(certificate) if key is None else f"{certificate} and {key}"
        why = getattr(error, "reason", None) or error
        raise ConfigError(
            f"ssl_cert_file: {files} are no certificate and its key in PEM, without a password ({why})"
        ) from error
    return context


class TlsSite(web.TCPSite):
    """TCP with TLS, whose handshake has to be complete in time: aiohttp has no argument for that."""

    __slots__ = ("_handshake_timeout_s",)

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, tls: ssl.SSLContext, handshake_timeout_s: float
    ) -> None:
        super().__init__(runner, host, port, backlog=BACKLOG, ssl_context=tls)
        self._handshake_timeout_s = handshake_timeout_s

    async def start(self) -> None:
        await web.BaseSite.start(self)
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=self._handshake_timeout_s,
        )


@contextmanager
def unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    """Listening, with these permissions from its first moment. Its file goes when the block ends. Raises OSError."""
    refuse_taken(path)
    with suppress(FileNotFoundError):
        path.unlink()  # nobody listens there any more
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(_checked(path))
        inode = path.stat().st_ino
        try:
            path.chmod(mode)  # until it listens, nobody gets in
            listener.listen(BACKLOG)
            yield listener
        finally:
            with suppress(OSError):
                if path.lstat().st_ino == inode:  # else it is another server's by now
                    path.unlink()


def refuse_taken(path: Path) -> None:
    """Raises OSError where a socket's file cannot be made: what is there is no socket, or somebody listens."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "it is there already, and is no socket", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.settimeout(1.0)
        try:
            tried.connect(_checked(path))
        except ConnectionRefusedError:
            return
        except OSError:  # a full backlog, say: somebody is there
            pass
    raise OSError(errno.EADDRINUSE, "another program listens there", str(path))


def _checked(path: Path) -> str:
    """The kernel takes 107 bytes."""
    if len(os.fsencode(path)) > 107:
        raise OSError(errno.ENAMETOOLONG, "a socket's path has 107 bytes at most", str(path))
    return str(path)
