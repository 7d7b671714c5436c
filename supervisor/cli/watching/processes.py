"""Servers and engines among this machine's processes: which they are, where they listen, what they take.

Every engine is a process `luced`, whoever runs it; what runs engines is their parent. Knows processes and command
lines; asks nobody anything. Of other users' processes less can be seen.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from luce.supervisor.cli.output import safe

_ENGINE = "luced"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: int
    command: tuple[str, ...]
    uptime_s: float
    memory_bytes: int
    """That lies in memory, what it shares with others included."""
    is_ours: bool
    """Run by this user."""

    def option(self, name: str) -> str | None:
        """What its command line gives for an option."""
        for word, value in zip(self.command, (*self.command[1:], ""), strict=True):
            if word == name:
                return value
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner(Process):
    """What runs engines: a server, another command of ours, somebody's program."""

    urls: tuple[str, ...]
    """Where it listens; none: it does not, or nobody says."""
    engines: tuple[Process, ...]

    @property
    def title(self) -> str:
        """Its command in two words, or its program."""
        if _is_private_server(self.command):
            return "luce serve, private"
        words = [Path(word).name for word in self.command]
        if "luce" in words[:2]:
            return " ".join(["luce", *words[words.index("luce") + 1 :][:1]])
        return words[0] if words else "?"

    @property
    def is_server(self) -> bool:
        return _is_server(self.command)

    @property
    def is_private(self) -> bool:
        """A server of one command, which alone has its key."""
        return _is_private_server(self.command)


def runners_running() -> list[Runner]:
    """The oldest first."""
    engines: dict[int, list[psutil.Process]] = defaultdict(list)
    parents: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["name", "cmdline", "ppid"]):
        if process.info["name"] == _ENGINE:
            engines[process.info["ppid"]].append(process)
        elif _is_server(process.info["cmdline"] or ()):
            parents[process.pid] = process  # also while it has no engine
    found = []
    for pid, of_it in engines.items():
        try:
            parents.setdefault(pid, psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue  # ended a moment ago, and its engines are about to
        found += of_it
    runners = [_runner(process, engines[pid]) for pid, process in parents.items()]
    return sorted((runner for runner in runners if runner is not None), key=lambda runner: -runner.uptime_s)


def _runner(process: psutil.Process, engines: Sequence[psutil.Process]) -> Runner | None:
    seen = _seen(process)
    if seen is None:
        return None
    its = [engine for engine in map(_seen, engines) if engine is not None]
    return Runner(
        pid=seen.pid,
        command=seen.command,
        uptime_s=seen.uptime_s,
        memory_bytes=seen.memory_bytes,
        is_ours=seen.is_ours,
        urls=tuple(_urls(process, seen)),
        engines=tuple(its),
    )


def _seen(process: psutil.Process) -> Process | None:
    """None: it is gone."""
    try:
        with process.oneshot():
            return Process(
                pid=process.pid,
                command=tuple(map(safe, process.cmdline())),
                uptime_s=max(time.time() - process.create_time(), 0.0),
                memory_bytes=process.memory_info().rss,
                is_ours=process.uids().real == os.getuid(),
            )
    except psutil.Error:
        return None


def _is_server(command: Sequence[str]) -> bool:
    words = [Path(word).name for word in command[:3]]
    return ("luce" in words[:2] and "serve" in words[1:]) or _is_private_server(command)


def _is_private_server(command: Sequence[str]) -> bool:
    """As cli/servers starts it."""
    return len(command) > 4 and command[1] == "-c" and "luce" in command[2] and command[4] == "serve"


def _urls(process: psutil.Process, seen: Process) -> Iterator[str]:
    try:
        connections = process.net_connections("all")
    except psutil.Error:
        return  # somebody else's, or gone
    scheme = "http" if seen.option("--ssl-cert-file") is None else "https"
    for address in sorted({one.laddr for one in connections if one.status == psutil.CONN_LISTEN}):
        host = _ANY_ADDRESS.get(address.ip, address.ip)
        yield f"{scheme}://[{host}]:{address.port}" if ":" in host else f"{scheme}://{host}:{address.port}"
    host = seen.option("--host") or ""
    if _is_server(seen.command) and (host.startswith("unix:") or host.endswith(".sock")):
        yield f"unix:{Path(process.cwd()) / host.removeprefix('unix:')}"
