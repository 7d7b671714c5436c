"""What tokens cost a replica: measured prices from prices.toml, with overrides. Pure arithmetic over arrays; knows no
replica, no session and no router.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PRICES_FILE = Path(__file__).with_name("prices.toml")

Array = npt.NDArray[Any]


class PriceError(ValueError):
    """A price that is unknown, or no number."""


@dataclass(frozen=True)
class Prices:
    """Of one kind of replica; prices.toml explains each."""

    about: str
    reading: Sequence[tuple[float, float]]
    decoding: Sequence[tuple[float, float]]
    step_depth_s: float
    warm_s: float
    beside_lanes: float
    slice_s: float
    max_lanes: int
    kv_bytes: float
    state_bytes: float
    device_bytes: float
    host_bytes: float
    host_bytes_s: float
    disk_bytes: float
    disk_bytes_s: float
    disk_latency_s: float
    store_bytes_s: float
    store_latency_s: float
    restart_s: float

    @cached_property
    def _token_s(self) -> tuple[float, float]:
        """Seconds for a token at depth 0, and how much more for each token before it.

        Over a whole prompt of n tokens the mean is first + slope * n / 2: a line through what was measured.
        """
        n = np.array([tokens for tokens, _ in self.reading], dtype=float)
        mean_s = 1 / np.array([speed for _, speed in self.reading], dtype=float)
        if len(n) == 1:
            return float(mean_s[0]), 0.0
        slope, first = np.polyfit(n / 2, mean_s, 1)
        return float(first), max(float(slope), 0.0)

    def read_s(self, begin: Array | float, end: Array | float) -> Array:
        """To read the tokens from `begin` to `end` of a text."""
        first, slope = self._token_s
        begin, end = np.minimum(begin, end), np.asarray(end)
        return np.asarray(first * (end - begin) + slope * (end**2.0 - begin**2.0) / 2)

    @cached_property
    def _lane_step_s(self) -> Array:
        lanes = np.array([n for n, _ in self.decoding], dtype=float)
        step_s = lanes / np.array([speed for _, speed in self.decoding], dtype=float)
        return np.asarray(np.interp(np.arange(self.max_lanes + 1), lanes, step_s))

    def step_s(self, n_lanes: Array, n_behind: Array) -> Array:
        """A step of so many lanes that stand behind so many tokens together."""
        return np.asarray(self._lane_step_s[np.minimum(n_lanes, self.max_lanes)] + self.step_depth_s * n_behind)

    @property
    def device_tokens(self) -> float:
        return self.device_bytes / self.kv_bytes

    @property
    def host_tokens(self) -> float:
        return self.host_bytes / self.kv_bytes

    @property
    def disk_tokens(self) -> float:
        return self.disk_bytes / self.kv_bytes

    @property
    def state_tokens(self) -> float:
        """A checkpoint takes the room of so many tokens."""
        return self.state_bytes / self.kv_bytes

    def restore_s(self, n_host: Array, n_disk: Array) -> Array:
        """To bring so many tokens back to the device."""
        from_host = n_host * self.kv_bytes / self.host_bytes_s
        from_disk = n_disk * self.kv_bytes / self.disk_bytes_s + self.disk_latency_s
        return np.asarray(from_host + np.where(n_disk > 0, from_disk, 0))

    def fetch_s(self, n_tokens: Array) -> Array:
        """To bring so many tokens and a state from the object store."""
        return np.asarray(self.store_latency_s + (n_tokens * self.kv_bytes + self.state_bytes) / self.store_bytes_s)


def load_prices(name: str, overrides: Mapping[str, Any] | None = None, path: Path = PRICES_FILE) -> Prices:
    """Raises PriceError."""
    tables = tomllib.loads(path.read_text())
    if name not in tables:
        raise PriceError(f"there are no prices {name!r}: take one of {', '.join(tables)}")
    table = dict(tables[name])
    if "like" in table:
        table = {**tables[table["like"]], **table}
    known = {field.name for field in fields(Prices)}
    for key, value in (overrides or {}).items():
        if key not in known:
            raise PriceError(f"there is no price {key!r}: take one of {', '.join(sorted(known))}")
        if type(value) not in {type(table[key]), int, float} or isinstance(value, bool):
            raise PriceError(f"the price {key!r} is {table[key]!r}, so it cannot become {value!r}")
        table[key] = value
    return Prices(**{key: value for key, value in table.items() if key in known})


def parse_override(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as TOML spells it. Raises PriceError."""
    key, equals, value = text.partition("=")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        raise PriceError(f"{text!r} is not KEY=VALUE with a number" if equals else f"{text!r} has no =") from None
