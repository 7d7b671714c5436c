"""Random numbers that depend on nothing but their names: the same session, replica and attempt draw the same one in
every run and in every order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def hashed(*names: Array | int) -> Array:
    """Of each tuple of names an unsigned number of 64 bits (the finaliser of splitmix64, once a name)."""
    mixed: Array = np.zeros(1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            mixed = mixed ^ np.asarray(name).astype(np.uint64)
            mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed


def uniform(*names: Array | int) -> Array:
    """The same as a number above 0 and below 1."""
    return np.asarray((hashed(*names) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
