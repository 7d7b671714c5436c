"""How long a server takes to load, how much memory it takes, how fast it reads and answers by depth, and several
answers at once. By `luce bench`'s measurements; knows a server, no engine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from luce.supervisor.checking.workload import Work
from luce.supervisor.cli.bench.measure import DepthSample, Side, measure_depths, text_of
from luce.supervisor.cli.bench.report import depth_rows
from luce.supervisor.cli.fieldtest.machine import gpu_bytes_used, process_bytes
from luce.supervisor.cli.fieldtest.report import Depth, Lanes, Service
from luce.supervisor.cli.fieldtest.serving import Serving
from luce.supervisor.cli.fieldtest.step import Step
from luce.supervisor.cli.fieldtest.volume import Volume

PART = "service"
_LANE_WORDS = 48
_N_WARM = 32  # tokens that a further turn adds


class SpeedsPart:
    def __init__(self, serving: Serving, volume: Volume) -> None:
        self._serving = serving
        self._volume = volume
        self._samples: list[DepthSample] = []
        self._lanes: list[Lanes] = []
        self._process_bytes: int | None = None
        self._gpu_bytes: int | None = None
        self.left_out: list[str] = []
        self.engine: dict[str, int | str | None] = {}
        """What it says of itself."""

    def steps(self) -> list[Step]:
        volume, n = self._volume, self._volume.n_answer
        depths = [
            Step(PART, f"a prompt of {depth:,}, {turn + 1} of {volume.n_rounds}", Work(0, depth + _N_WARM, 2 * n),
                 self._depth(depth))
            for depth in volume.depths
            for turn in range(volume.n_rounds)
        ]  # fmt: skip
        lanes = [Step(PART, f"{n_lanes} answers at once", Work(0, 64 * n_lanes, n * n_lanes), self._at_once(n_lanes))
                 for n_lanes in volume.lanes]  # fmt: skip
        return [
            Step(PART, "load to ready", Work(1), self._load),
            *depths,
            *lanes,
            Step(PART, "memory", Work(), self._look),
        ]

    def rows(self) -> Service:
        rows = depth_rows(self._samples)
        return Service(
            load_s=[round(seconds, 3) for seconds in self._serving.load_s],
            process_bytes=self._process_bytes,
            gpu_bytes=self._gpu_bytes,
            depths=[
                Depth(
                    depth=row.depth,
                    n_prompt=row.n_prompt,
                    n_samples=sum(sample.depth == row.depth for sample in self._samples),
                    read_per_s=row.read_per_s,
                    cold_first_token_s=row.cold_first_token_s,
                    warm_first_token_s=row.warm_first_token_s,
                    decoded_per_s=row.decoded_per_s,
                )
                for row in rows
            ],
            lanes=self._lanes,
        )

    def _load(self) -> str:
        before = gpu_bytes_used()
        seconds = self._serving.start()
        said = self._serving.engine()
        self.engine = {name: said[name] for name in ("ctx", "lanes", "speculation")}
        after = gpu_bytes_used()
        if before is not None and after is not None:
            self._gpu_bytes = max(after - before, 0)
        self._side = Side("luce", self._serving.server)
        return f"{seconds:.1f} s"

    def _depth(self, depth: int) -> Callable[[], str]:
        def measure() -> str:
            found = list(measure_depths([self._side], [depth], 1, self._volume.n_answer, self.left_out.append))
            self._samples += found
            return f"{found[0].cold.read_per_s:,.0f} tokens/s read" if found else "left out"

        return measure

    def _at_once(self, n_lanes: int) -> Callable[[], str]:
        n = self._volume.n_answer

        def measure() -> str:
            if n_lanes > int(self.engine["lanes"] or 1):
                self.left_out.append(f"{n_lanes} answers at once: --lanes is {self.engine['lanes']}")
                return "left out"
            rng = random.Random(time.time_ns())  # noqa: S311
            texts = [text_of(_LANE_WORDS, rng) for _ in range(n_lanes)]
            pool = ThreadPoolExecutor(n_lanes)
            try:
                began_s = time.monotonic()
                answers = list(pool.map(lambda text: self._side.ask([text], n)[0].n_answer, texts))
                rate = sum(answers) / (time.monotonic() - began_s)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # who is told to stop does not wait for answers
            self._lanes.append(Lanes(n=n_lanes, n_answer=n, tokens_per_s=rate))
            return f"{rate:,.0f} tokens/s"

        return measure

    def _look(self) -> str:
        self._process_bytes = process_bytes()
        return "not known here" if self._process_bytes is None else f"{self._process_bytes / (1 << 20):,.0f} MiB"
