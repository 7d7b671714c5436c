"""ApiKey: a key as the server knows it: its name, its hash, and what it may do. The key itself is kept nowhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

Scope = Literal["infer", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    name: str
    """In log, metrics and `usage`."""
    digest: bytes
    scope: Scope = "admin"
    requests_per_minute: int | None = None
    """None, here and below: no limit of its own."""
    tokens_per_minute: int | None = None
    max_lanes: int | None = None
    max_context: int | None = None

    @property
    def client(self) -> str:
        """Whom texts, streams and kept responses belong to: another key under the same name is another client."""
        return self.digest.hex()

    def window(self, n_ctx: int | None) -> int | None:
        """What is left of a context of `n_ctx` tokens; None: nobody knows yet."""
        return min((n for n in (n_ctx, self.max_context) if n is not None), default=None)


def digest_of(key: str) -> bytes:
    """Keys are random and long, so that one round of a hash is enough; a password would not be."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def plain_keys(keys: tuple[str, ...]) -> tuple[ApiKey, ...]:
    """Keys of which nothing is said but the key."""
    return tuple(ApiKey(name=f"key-{number}", digest=digest_of(key)) for number, key in enumerate(keys, 1))
