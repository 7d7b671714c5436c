"""What a server costs and gives by itself: how long until it is ready, how much memory it takes, how fast it reads and
answers behind texts of each depth, and how much several answers at once get. luced without drafts against llama-server,
in turns: on a GPU by their own clocks, on a CPU by the processor time they take, which other programs on the machine
hardly touch. It must not know what a request is about.

The model's file is in the page cache: how long a disk takes is the disk's. The time until ready is the clock's and so
depends on what the machine does besides; its processor time is told as well.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from luce.supervisor.models.gguf_header import read_gguf_header
from luce.supervisor.models.model_memory import model_memory
from scripts.bench.harness import Ratio, in_turns, llama_server_arguments, luced_arguments
from scripts.bench.real.rows import Row, Setup
from scripts.bench.real.texts import RealText
from scripts.bench.servers import REQUEST_DEADLINE_S, LlamaServer, LuceServer, processor_s
from tests.daemon_driver import DaemonDriver, gen_line

_ROOM = 64  # tokens beside a prompt and its answer
_CELLS = 256  # libllama's caches have cells in such numbers
_GREEDY = "temp=0 ignore_eos=1 reuse=0"
_BEHIND = {"luce serve": "a Python process in front of luced: its imports take time, and it has its own memory"}
"""Why, where that is known."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FASTER, SLOWER = ">= 0.98 of llama-server", "<= 1.02 of llama-server"


@dataclass(frozen=True)
class Volume:
    depths: tuple[int, ...] = (64, 1024, 4096, 8192)
    lanes: tuple[int, ...] = (1, 4, 16)
    n_answer: int = 64
    n_lane_prompt: int = 64
    n_lane_answer: int = 128
    n_start_prompt: int = 1024
    n_starts: int = 3
    n_pairs: int = 3

    def pairs_at(self, depth: int) -> int:
        """Fewer where each takes long: clocks vary less there."""
        return max(min(self.n_pairs, 8192 // depth), 1)

    def within(self, n_trained: int) -> Volume:
        """Depths that the model has no room for become the deepest that it has."""
        most = n_trained - self.n_answer - _ROOM
        return replace(self, depths=tuple(dict.fromkeys(min(depth, most) for depth in self.depths)))


QUICK = Volume(depths=(64, 1024), lanes=(1, 4), n_answer=32, n_lane_answer=32, n_starts=2, n_pairs=1)


def measure(setup: Setup, volume: Volume | None = None) -> list[Row]:
    n_trained = model_memory(read_gguf_header(setup.model)).n_context_trained
    within = (volume or (QUICK if setup.quick else Volume())).within(n_trained)
    text = RealText.of(setup.model)
    return [*_starts(setup, within, text), *_by_depth(setup, within, text), *_by_lanes(setup, within, text)]


def _cells(n_tokens: int) -> int:
    return -(-n_tokens // _CELLS) * _CELLS


# Starts


@dataclass(frozen=True)
class Started:
    """One start, and what was taken when a text had been answered."""

    ready_s: float
    busy_s: float
    """Processor time until it was ready."""
    memory_mb: float
    """Proportional set size of all processes: what others map too is shared out."""
    own_mb: float
    """Of it, what is not mapped from files."""
    device_mb: float
    """Of the GPU; 0: there is none."""


def _starts(setup: Setup, volume: Volume, text: RealText) -> Iterator[Row]:
    """One at a time, so that no side's mapped weights are halved by another's."""
    n_text = volume.n_start_prompt
    prompt, n_ctx = text.passage(n_text, 1), _cells(n_text + volume.n_answer + _ROOM)
    ours = ["--draft-max", "0", *luced_arguments(setup.engine, 1, n_ctx)]
    bases = {"luced": lambda: _luced(setup, ours, prompt), "luce serve": lambda: _luce_serve(setup, ours, prompt)}
    if setup.server is not None:
        theirs = llama_server_arguments(setup.engine, 1, n_ctx)
        bases["llama-server"] = lambda: _llama_server(setup, theirs, prompt)
    found: dict[str, list[Started]] = {name: [] for name in bases}
    for turn in range(volume.n_starts):
        for name in in_turns(tuple(bases), turn):
            found[name].append(bases[name]())
    peers = found.pop("llama-server", [])
    for side, starts in found.items():
        yield paired_row(
            f"{side}: load to ready, warm file", _all(starts, "ready_s"), _all(peers, "ready_s"), "s", SLOWER
        )
        yield paired_row(f"{side}: processor time of it", _all(starts, "busy_s"), _all(peers, "busy_s"), "s", SLOWER)
        behind = f"{side}: memory with a text of {n_text:,}"
        yield paired_row(behind, _all(starts, "memory_mb"), _all(peers, "memory_mb"), "MB", SLOWER)
        own = f"{behind}, not mapped from files"
        yield paired_row(own, _all(starts, "own_mb"), _all(peers, "own_mb"), "MB", SLOWER)
        if setup.gpu_layers:
            on_gpu = f"{behind}, on the GPU"
            yield paired_row(on_gpu, _all(starts, "device_mb"), _all(peers, "device_mb"), "MB", SLOWER)


def _all(starts: Sequence[Started], name: str) -> list[float]:
    return [getattr(start, name) for start in starts]


def _luced(setup: Setup, arguments: Sequence[str], prompt: Sequence[int]) -> Started:
    watch = _Watch(setup)
    with DaemonDriver(setup.luced, setup.model, *arguments) as daemon:
        watch.is_ready(daemon.child.pid)
        daemon.generate(prompt, 8, _GREEDY)
        return watch.started()


def _luce_serve(setup: Setup, arguments: Sequence[str], prompt: Sequence[int]) -> Started:
    watch = _Watch(setup)
    with LuceServer(setup.model, arguments, setup.luced) as server:
        watch.is_ready(server.pid)
        server.post_to(
            "/v1/completions", {"model": "default", "prompt": list(prompt), "max_tokens": 8, "temperature": 0}
        )
        return watch.started()


def _llama_server(setup: Setup, arguments: Sequence[str], prompt: Sequence[int]) -> Started:
    assert setup.server is not None
    watch = _Watch(setup)
    with LlamaServer(setup.server, setup.model, *arguments) as server:
        watch.is_ready(server.pid)
        server.complete(prompt, 8)
        return watch.started()


class _Watch:
    """Of one start, from now on."""

    def __init__(self, setup: Setup) -> None:
        self._has_gpu = setup.gpu_layers > 0
        self._device_mb = _device_mb() if self._has_gpu else 0.0
        self._began_s = time.monotonic()

    def is_ready(self, pid: int) -> None:
        self._ready_s = time.monotonic() - self._began_s
        self._pids = _with_children(pid)
        self._busy_s = sum(map(processor_s, self._pids))

    def started(self) -> Started:
        maps = [_memory(pid) for pid in self._pids]
        whole, own = (sum(column) for column in zip(*maps, strict=True))
        device_mb = _device_mb() - self._device_mb if self._has_gpu else 0.0
        return Started(self._ready_s, self._busy_s, whole, own, device_mb)


def _with_children(pid: int) -> list[int]:
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in below for each in _with_children(int(child)))]


def _memory(pid: int) -> tuple[float, float]:
    """In MB: all of it, and what is not mapped from files."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    sizes = {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines}
    return sizes["Pss"], sizes["Pss_Anon"] + sizes["Pss_Shmem"]


def _device_mb() -> float:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return sum(map(float, said.split()))


# Speeds


def _unit(setup: Setup) -> str:
    return "tokens/s" if setup.gpu_layers else "tokens a second of processor time"


def _rate(n_tokens: int, seconds: float) -> float:
    """A second. Processor time comes in ticks: what is shorter took one."""
    return n_tokens / max(seconds, _TICK_S)


def _by_depth(setup: Setup, volume: Volume, text: RealText) -> Iterator[Row]:
    n, on_gpu = volume.n_answer, setup.gpu_layers > 0
    n_ctx = _cells(max(volume.depths) + n + _ROOM)
    with _both(setup, 1, n_ctx) as (daemon, server):
        for depth in volume.depths:
            ours: list[tuple[float, float]] = []
            theirs: list[tuple[float, float]] = []
            for pair in range(volume.pairs_at(depth) + 1):
                prompt = text.passage(depth if pair else min(volume.depths), depth + pair)
                for side in in_turns((daemon, server), pair):
                    found = (
                        _of_luced(side, prompt, n, on_gpu)
                        if isinstance(side, DaemonDriver)
                        else _of_server(side, prompt, n, on_gpu)
                    )
                    if pair > 0:  # the first one warms up
                        (ours if side is daemon else theirs).append(found)
            for at, what in enumerate(("prompt", "decode")):
                mine, peers = ([rates[at] for rates in side] for side in (ours, theirs))
                yield paired_row(f"{what} at {depth:,}", mine, peers if server else [], _unit(setup), FASTER)


def _of_luced(daemon: DaemonDriver, prompt: Sequence[int], n: int, on_gpu: bool) -> tuple[float, float]:
    """Tokens a second: of the prompt, of the answer behind its first token."""
    pid = daemon.child.pid
    began_s = processor_s(pid)
    daemon.send(gen_line(1, n, prompt, _GREEDY))
    daemon.next_token(REQUEST_DEADLINE_S)
    read_s = processor_s(pid)
    daemon.tokens_until_end(REQUEST_DEADLINE_S)
    said = daemon.next_ok()
    times = (said.prefill_s, said.decode_s) if on_gpu else (read_s - began_s, processor_s(pid) - read_s)
    return _rate(said.n_prompt, times[0]), _rate(n - 1, times[1])


def _of_server(server: LlamaServer | None, prompt: Sequence[int], n: int, on_gpu: bool) -> tuple[float, float]:
    if server is None:
        return 0.0, 0.0
    answer = server.complete(prompt, n)
    times = (answer.prompt_s, answer.decode_s) if on_gpu else (answer.prompt_cpu_s, answer.decode_cpu_s)
    return _rate(answer.n_computed, times[0]), _rate(n - 1, times[1])


def _by_lanes(setup: Setup, volume: Volume, text: RealText) -> Iterator[Row]:
    """From sending them to the last token of the last one: prompts are short, so that it is mostly decoding."""
    n = volume.n_lane_answer
    for n_lanes in volume.lanes:
        n_cells = n_lanes * _cells(volume.n_lane_prompt + n + _ROOM)
        with _both(setup, n_lanes, n_cells) as (daemon, server):
            sides: dict[str, tuple[int, Callable[[list[list[int]]], None]]] = {
                "ours": (daemon.child.pid, lambda prompts: _all_of_luced(daemon, prompts, n))
            }
            if server is not None:
                sides["theirs"] = (server.pid, lambda prompts: _all_of_server(server, prompts, n))
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for pair in range(volume.n_pairs + 1):
                prompts = [text.passage(volume.n_lane_prompt, 100 * pair + lane) for lane in range(n_lanes)]
                for name in in_turns(tuple(sides), pair):
                    pid, ask = sides[name]
                    now_s = time.monotonic if setup.gpu_layers else partial(processor_s, pid)
                    began_s = now_s()
                    ask(prompts)
                    rates[name].append(_rate(n_lanes * n, now_s() - began_s))
        yield paired_row(
            f"{n_lanes} at once, answers of {n} behind prompts of {volume.n_lane_prompt}",
            rates["ours"][1:], rates.get("theirs", [])[1:], _unit(setup), FASTER,
        )  # fmt: skip


def _all_of_luced(daemon: DaemonDriver, prompts: Sequence[Sequence[int]], n: int) -> None:
    daemon.send(*(gen_line(i, n, prompt, _GREEDY) for i, prompt in enumerate(prompts)))
    daemon.collect(len(prompts), REQUEST_DEADLINE_S)


def _all_of_server(server: LlamaServer, prompts: Sequence[Sequence[int]], n: int) -> None:
    with ThreadPoolExecutor(len(prompts)) as threads:
        bodies = [{"prompt": list(prompt), "n_predict": n, "temperature": 0, "ignore_eos": True} for prompt in prompts]
        list(threads.map(server.post, bodies))


@contextmanager
def _both(setup: Setup, n_lanes: int, n_cells: int) -> Iterator[tuple[DaemonDriver, LlamaServer | None]]:
    ours = ["--draft-max", "0", *luced_arguments(setup.engine, n_lanes, n_cells // n_lanes, n_cells)]
    with DaemonDriver(setup.luced, setup.model, *ours) as daemon:
        if setup.server is None:
            yield daemon, None
            return
        with LlamaServer(setup.server, setup.model, *llama_server_arguments(setup.engine, n_lanes, n_cells)) as server:
            yield daemon, server


def paired_row(what: str, ours: Sequence[float], theirs: Sequence[float], unit: str, aim: str) -> Row:
    """Medians; an aim is met by the median of the pairs' ratios."""
    if not theirs:
        return Row(what, median(ours), unit=unit)
    ratio = Ratio.of([a / b for a, b in zip(ours, theirs, strict=True)])
    limit = float(aim.split()[1])
    is_met = ratio.median >= limit if aim == FASTER else ratio.median <= limit
    why = _BEHIND.get(what.partition(":")[0], "")
    note = "" if is_met else f"ratio {ratio}" + (f"; {why}" if why else "")
    return Row(what, median(ours), median(theirs), unit, aim, is_met, note)
