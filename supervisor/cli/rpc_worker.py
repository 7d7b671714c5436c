"""`luce rpc-worker`: becomes luced, which lends this machine's devices to engines elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import click

from luce.supervisor.cli.entry import EXIT_BAD_ARGS, Failure, say
from luce.supervisor.cli.options import read_binary
from luce.supervisor.http.transport.served_hosts import is_loopback
from luce.supervisor.models.cache_folder import cache_folder

_EPILOG = """\b
Examples:
  luce rpc-worker                                                    on the other machine
  ssh -N -L 50052:127.0.0.1:50052 other-machine                      a tunnel to it
  luce serve --model m.gguf --rpc 127.0.0.1:50052                    here
"""


@click.command("rpc-worker", epilog=_EPILOG)
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="HOST",
    help="Address to listen at. Default: 127.0.0.1, for use with a tunnel.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=50052, metavar="N", help="Port. Default: 50052.")
@click.option(
    "--device",
    metavar="NAME,…",
    help="Devices to lend, by the names that luce doctor shows. Default: all GPUs, or the CPU where there is none.",
)
@click.option("--threads", type=click.IntRange(1, 512), metavar="N", help="CPU threads. Default: half of all.")
@click.option(
    "--keep-weights/--no-keep-weights",
    default=True,
    help="Keep large weights in the cache folder, so that they are not sent again. Default: enabled.",
)
def command(*, host: str, port: int, device: str | None, threads: int | None, keep_weights: bool) -> None:
    """Lend this machine's devices to a model served on another machine (`luce serve --rpc HOST:PORT`).

    ggml's RPC has no keys and no encryption: everyone who reaches the port can compute here and read data. It therefore
    listens at this machine only; use a tunnel or a private network.
    """
    if not is_loopback(host):
        say(f"luce rpc-worker: whoever reaches {host}:{port} may compute here, without a key: prefer a tunnel")
    arguments = ["--rpc-worker", f"{host}:{port}"]
    for name, value in {"--device": device, "--threads": threads}.items():
        arguments += [] if value is None else [name, str(value)]
    folder = cache_folder() if keep_weights else None
    if folder is not None:
        arguments += ["--rpc-tensor-cache", str(_made(folder / "rpc"))]
    binary = read_binary()
    os.execv(binary, [str(binary), *arguments])


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror} (--no-keep-weights does without)", EXIT_BAD_ARGS) from error
    return folder
