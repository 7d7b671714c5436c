"""What replicas remember, against a list of texts in order of value that is cut where a tier ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from scripts.sim.chains import Chains
from scripts.sim.memory import NEW_TEXT_S, ReplicaMemory, Tiers

TIERS = Tiers(device=10_000, host=15_000, state=100)
HEAD = 1000


def begin(n_texts: int) -> tuple[Chains, np.ndarray]:
    """A head, and texts that begin with it."""
    chains = Chains()
    head = chains.begin(np.array([-1]), np.array([0]))
    return chains, chains.begin(np.repeat(head, n_texts), np.full(n_texts, HEAD))


def keep(memory: ReplicaMemory, row: int, chain: int, length: int, now_s: float) -> None:
    memory.keep(np.array([row]), np.array([chain]), np.array([length]), now_s)


def find(memory: ReplicaMemory, row: int, chain: int, length: int = 10**9) -> tuple[int, float, float]:
    found = memory.find(np.array([row]), np.array([chain]), np.array([length]))
    return int(found.tokens[0]), float(found.host[0]), float(found.disk[0])


@dataclass
class Listed:
    """One replica, text by text."""

    length: int
    value: float


def expected(texts: dict[int, Listed], chain: int) -> tuple[int, float]:
    """Tokens of a text of its own, and how many of them lie in the host's memory."""
    own = HEAD if chain == 0 else texts[chain].length - HEAD
    above = sum(
        (text.length - (0 if other == 0 else HEAD)) + TIERS.state
        for other, text in texts.items() if other != chain and text.value >= texts[chain].value
    )  # fmt: skip
    on_device = min(max(TIERS.device - above, 0), own)
    kept = min(max(TIERS.device + TIERS.host - above, 0), own)
    tokens = int(kept) + (0 if chain == 0 else HEAD)
    return (tokens if kept > 0 else HEAD), kept - on_device


def test_texts_leave_by_value_from_their_ends() -> None:
    rng = np.random.default_rng(3)
    chains, ids = begin(12)
    memory = ReplicaMemory(chains, 2, 32, TIERS)
    listed: list[dict[int, Listed]] = [{}, {}]
    compared = {"device": 0, "host": 0, "gone": 0}
    for now in range(1, 300):
        row, chain, length = int(rng.integers(2)), int(rng.choice(ids)), int(rng.integers(HEAD + 1, 6000))
        texts = listed[row]
        if chain in texts:
            tokens, host = expected(texts, chain)
            found, in_host, on_disk = find(memory, row, chain)
            assert (found, on_disk) == (tokens, 0)
            assert in_host == pytest.approx(host)
            compared["host" if host else "device" if tokens == texts[chain].length else "gone"] += 1
        keep(memory, row, chain, length, float(now))
        for at, n in ((chain, length), (0, HEAD)):
            value = float(now) if at in texts else now - NEW_TEXT_S
            texts[at] = Listed(max(n, texts[at].length if at in texts else 0), value)
    assert min(compared.values()) > 5, compared


def test_more_room_never_finds_less() -> None:
    rng = np.random.default_rng(4)
    chains, ids = begin(30)
    rooms = (Tiers(5_000, 5_000), Tiers(5_000, 20_000), Tiers(20_000, 20_000), Tiers(20_000, 20_000, disk=50_000))
    memories = [ReplicaMemory(chains, 1, 64, room) for room in rooms]
    for now in range(400):
        chain, length = int(rng.choice(ids)), int(rng.integers(HEAD + 1, 4000))
        found = [find(memory, 0, chain)[0] for memory in memories]
        assert found == sorted(found)
        for memory in memories:
            keep(memory, 0, chain, length, float(now))


def test_a_dead_replica_has_its_disk_and_nothing_else() -> None:
    for disk, left in ((0.0, 0), (1e6, 5000)):
        chains, ids = begin(2)
        memory = ReplicaMemory(chains, 2, 8, Tiers(1e5, 1e5, disk))
        for row in range(2):
            keep(memory, row, int(ids[0]), 5000, 1.0)
        assert find(memory, 0, int(ids[0])) == (5000, 0, 0)
        memory.lose(np.array([0]), 2.0)
        tokens, host, from_disk = find(memory, 0, int(ids[0]))
        assert (tokens, host) == (left, 0)
        assert from_disk == max(left - HEAD, 0)
        assert find(memory, 1, int(ids[0])) == (5000, 0, 0)
        keep(memory, 0, int(ids[0]), 5000, 3.0)
        assert find(memory, 0, int(ids[0])) == (5000, 0, 0)


def test_a_fork_is_found_as_far_as_what_it_forked_from() -> None:
    chains, ids = begin(1)
    fork = chains.begin(ids, np.array([3000]))
    memory = ReplicaMemory(chains, 2, 8, TIERS)
    keep(memory, 0, int(ids[0]), 5000, 1.0)
    assert find(memory, 0, int(fork[0]))[0] == 3000
    assert find(memory, 1, int(fork[0]))[0] == 0
    keep(memory, 1, int(fork[0]), 4000, 2.0)
    assert find(memory, 1, int(ids[0]))[0] == 3000
    assert find(memory, 1, int(fork[0]), 3500)[0] == 3500
