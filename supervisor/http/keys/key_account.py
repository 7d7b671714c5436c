"""KeyAccount: how much of its allowances a key has used. Pure; touched by the event loop's thread alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from luce.supervisor.http.errors import ApiError, ErrorKind
from luce.supervisor.http.keys.api_key import ApiKey

_MINUTE_S = 60.0
_LANE_RETRY_S = 1.0


class Allowance:
    """So much a minute: what is not used gathers up to one minute's worth. May be overdrawn, by what is known only
    afterwards; nothing is granted until that has been made up for."""

    def __init__(self, per_minute: int | None, now_s: float) -> None:
        self._per_minute = per_minute
        self._level = float(per_minute or 0)
        self._seen_s = now_s

    def change(self, per_minute: int | None, now_s: float) -> None:
        """What was used counts under the new limit too."""
        if per_minute == self._per_minute:
            return
        self._refill(now_s)
        used = 0.0 if self._per_minute is None else self._per_minute - self._level
        self._per_minute, self._level, self._seen_s = per_minute, (per_minute or 0) - used, now_s

    def wait_s(self, now_s: float) -> float:
        """Until one more is granted; 0: now."""
        if self._per_minute is None:
            return 0.0
        self._refill(now_s)
        return max(0.0, (1.0 - self._level) * _MINUTE_S / self._per_minute)

    def use(self, amount: int) -> None:
        self._level -= amount

    def _refill(self, now_s: float) -> None:
        if self._per_minute is not None:
            gathered = (now_s - self._seen_s) * self._per_minute / _MINUTE_S
            self._level = min(float(self._per_minute), self._level + gathered)
        self._seen_s = now_s


class KeyAccount:
    def __init__(self, key: ApiKey, now_s: float) -> None:
        self.key = key
        self._requests = Allowance(key.requests_per_minute, now_s)
        self._tokens = Allowance(key.tokens_per_minute, now_s)
        self._n_lanes = 0

    def change(self, key: ApiKey, now_s: float) -> None:
        """The same name in a file that was read anew."""
        self.key = key
        self._requests.change(key.requests_per_minute, now_s)
        self._tokens.change(key.tokens_per_minute, now_s)

    def begin_request(self, now_s: float) -> None:
        """Raises ApiError where the key has used its requests or tokens up."""
        wait_s = self._requests.wait_s(now_s)
        if wait_s > 0:
            raise self._exhausted("requests", self.key.requests_per_minute, wait_s)
        wait_s = self._tokens.wait_s(now_s)
        if wait_s > 0:
            raise self._exhausted("tokens", self.key.tokens_per_minute, wait_s)
        self._requests.use(1)

    def use_tokens(self, n_tokens: int) -> None:
        self._tokens.use(n_tokens)

    @contextmanager
    def lanes(self, n_lanes: int) -> Iterator[None]:
        """Raises ApiError where these would be more than the key may have."""
        most = self.key.max_lanes
        if most is not None and n_lanes > most:
            text = f"{n_lanes} choices at once: the API key {self.key.name} may have {most} lanes"
            raise ApiError(ErrorKind.INVALID, "key_lanes", text, param="n")
        if most is not None and self._n_lanes + n_lanes > most:
            text = f"the API key {self.key.name} may have {most} lanes, and they are in use: wait for an answer to end"
            raise ApiError(ErrorKind.OVERLOADED, "key_lanes", text, retry_after_s=_LANE_RETRY_S)
        self._n_lanes += n_lanes
        try:
            yield
        finally:
            self._n_lanes -= n_lanes

    def _exhausted(self, what: str, limit: int | None, wait_s: float) -> ApiError:
        text = f"the API key {self.key.name} may use {limit:,} {what} a minute: try again in {wait_s:.0f} s"
        return ApiError(ErrorKind.OVERLOADED, f"key_{what}", text, retry_after_s=wait_s)
