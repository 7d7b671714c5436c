"""What digests say: nothing before they are told, no more than has room, and as many false names as a real filter."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.sim.chains import Chains
from scripts.sim.digests import Digests, DigestSetting, false_rate
from scripts.sim.hashing import hashed
from scripts.sim.memory import ReplicaMemory, Tiers

ROOM = 10**6


def with_texts(setting: DigestSetting, n_texts: int, length: int) -> tuple[Digests, np.ndarray, np.ndarray]:
    chains = Chains()
    ids = chains.begin(np.full(n_texts, -1), np.zeros(n_texts))
    memory = ReplicaMemory(chains, 1, n_texts + 1, Tiers(ROOM, 0))
    for now, chain in enumerate(ids):
        memory.keep(np.array([0]), np.array([chain]), np.array([length]), float(now))
    return Digests(chains, memory, setting, ROOM), ids, np.full(n_texts, length)


def test_only_what_was_told_is_claimed() -> None:
    digests, ids, lengths = with_texts(DigestSetting("set", n_bytes=8 * 100, stride=512), 4, 5000)
    rows = 0 * ids
    assert digests.claims(rows, ids, lengths).sum() == 0
    digests.tell(np.array([0]), 1.0)
    assert digests.claims(rows, ids, lengths).tolist() == [4608] * 4
    assert digests.claims(rows, ids, lengths - 2000).tolist() == [2560] * 4
    digests.forget(np.array([0]))
    assert digests.claims(rows, ids, lengths).sum() == 0


def test_a_set_has_the_most_valuable_texts_first() -> None:
    digests, ids, lengths = with_texts(DigestSetting("set", n_bytes=8 * 25, stride=512), 4, 5120)
    digests.tell(np.array([0]), 1.0)
    assert digests.claims(0 * ids, ids, lengths).tolist() == [0, 2560, 5120, 5120]


@pytest.mark.parametrize(("n_names", "n_bytes"), [(1000, 512), (1000, 1024), (4000, 1024)])
def test_false_names_are_as_many_as_in_a_real_filter(n_names: int, n_bytes: int) -> None:
    n_hashes = max(1, round(8 * n_bytes / n_names * np.log(2)))
    bits = np.zeros(8 * n_bytes, dtype=bool)

    def places(names: np.ndarray) -> np.ndarray:
        return np.stack([hashed(names, number) % len(bits) for number in range(n_hashes)]).astype(np.int64)

    bits[places(np.arange(n_names))] = True
    others = np.arange(n_names, n_names + 20_000)
    real = bits[places(others)].all(axis=0).mean()
    assert float(false_rate(np.array(n_names), n_bytes)) == pytest.approx(real, rel=0.15)

    digests, ids, _ = with_texts(DigestSetting("bloom", n_bytes, stride=64), 1, 64 * n_names)
    digests.tell(np.array([0]), 1.0)
    strides = digests.false_strides(np.zeros(20_000, dtype=np.int64), others, 0 * others)
    assert (strides >= 1).mean() == pytest.approx(real, rel=0.15)
    assert (strides >= 2).mean() == pytest.approx(real**2, rel=0.3)
    assert ids.tolist() == [0]
