"""How long a first token takes of a prompt that no memory has, read whole and read in parts, and what the repair of it
costs a lane that answers. Times: run it where nothing else runs. It must not know how a table looks.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from scripts.bench.harness import in_turns
from scripts.bench.memory.agent_session import random_tokens
from scripts.bench.residency.sides import DEADLINE_S
from tests.daemon_driver import DaemonDriver, gen_line, to_bytes

N_BESIDE = 200  # tokens of the answer beside which a repair goes on


@dataclass(frozen=True)
class FirstToken:
    n_tokens: int
    whole_s: float
    sparse_s: float
    scored_s: float
    """Of the latter, until it was known what is read."""
    n_read: int

    @property
    def ratio(self) -> float:
        return self.whole_s / self.sparse_s


@dataclass(frozen=True)
class Beside:
    """An answer's tokens a second."""

    alone: float
    repairing: float

    @property
    def ratio(self) -> float:
        return self.repairing / self.alone


class Asker:
    """Asks one daemon, prompts by file: a long line takes longer to read than some prompts."""

    def __init__(self, daemon: DaemonDriver, folder: Path) -> None:
        self._daemon = daemon
        self._folder = folder
        self._n = 0

    def first_token_s(self, prompt: Sequence[int], extra: str) -> tuple[float, int]:
        """And how many tokens of the prompt were read."""
        began_s = perf_counter()
        self._daemon.send(gen_line(1, 1, self._file(prompt), f"reuse=0 ignore_eos=1 {extra}"))
        self._daemon.tokens_until_end(DEADLINE_S)
        seconds = perf_counter() - began_s
        ok = self._daemon.next_ok()
        return seconds, ok.n_read if ok.n_read is not None else ok.n_prompt

    def scoring_s(self, prompt: Sequence[int], share: float) -> float:
        began_s = perf_counter()
        self._daemon.send(f"compress id=1 share={share} prompt=@{self._file(prompt)}")
        self._daemon.tokens_until_end(DEADLINE_S)
        self._daemon.next_reply(DEADLINE_S)
        return perf_counter() - began_s

    def decode_rate(self, prompt: Sequence[int]) -> float:
        self._daemon.send(gen_line(1, N_BESIDE, self._file(prompt), "reuse=0 ignore_eos=1"))
        self._daemon.tokens_until_end(DEADLINE_S)
        return self._daemon.next_ok().decode_tokens_per_s

    def leave_to_repair(self, prompt: Sequence[int], share: float) -> None:
        self._daemon.send(gen_line(1, 1, self._file(prompt), f"ignore_eos=1 prefill=sparse prefill_keep={share}"))
        self._daemon.tokens_until_end(DEADLINE_S)
        self._daemon.next_ok()

    def _file(self, prompt: Sequence[int]) -> Path:
        self._n += 1
        path = self._folder / f"prompt-{self._n}.bin"
        path.write_bytes(to_bytes(prompt))
        return path


def measure_first_tokens(
    start: Callable[[int], DaemonDriver], lengths: Sequence[int], share: float, n_pairs: int,
    report: Callable[[FirstToken], None],
) -> list[FirstToken]:  # fmt: skip
    """Both ways in turns, each prompt anew; the first pair of a daemon, which makes its graphs, is left out."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for n_tokens in lengths:
            with start(n_tokens) as daemon:
                asker = Asker(daemon, Path(folder))
                for pair in range(n_pairs + 1):
                    rng = random.Random(f"{n_tokens} {pair}")
                    prompts = [random_tokens(rng, n_tokens if pair > 0 else min(n_tokens, 8192)) for _ in range(3)]
                    whole_s = sparse_s = 0.0
                    n_read = 0
                    for is_sparse in in_turns((False, True), pair):
                        if is_sparse:
                            extra = f"prefill=sparse prefill_keep={share}"
                            sparse_s, n_read = asker.first_token_s(prompts[0], extra)
                        else:
                            whole_s, _ = asker.first_token_s(prompts[1], "prefill=full")
                    scored_s = asker.scoring_s(prompts[2], share)
                    if pair > 0:
                        found.append(FirstToken(n_tokens, whole_s, sparse_s, scored_s, n_read))
                        report(found[-1])
    return found


def measure_beside(
    start: Callable[[int], DaemonDriver], n_tokens: int, share: float, n_pairs: int, report: Callable[[Beside], None]
) -> list[Beside]:
    """An answer alone, and one beside the repair of a long text, in turns."""
    found = []
    with tempfile.TemporaryDirectory() as folder, start(n_tokens) as daemon:
        asker = Asker(daemon, Path(folder))
        for pair in range(n_pairs + 1):
            rng = random.Random(f"beside {pair}")
            rates = {}
            for is_repairing in in_turns((False, True), pair):
                if is_repairing:
                    asker.leave_to_repair(random_tokens(rng, n_tokens), share)
                rates[is_repairing] = asker.decode_rate(random_tokens(rng, 500))
                daemon.send("CLEAR")
                daemon.next_reply(DEADLINE_S)
            if pair > 0:
                found.append(Beside(rates[False], rates[True]))
                report(found[-1])
    return found
