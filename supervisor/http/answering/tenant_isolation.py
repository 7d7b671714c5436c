"""TenantIsolation: which salt a client's texts have, where clients are kept apart. Pure.

A text in memory is another one for each salt (native/memory/pages/text_salt.h): what a client has sent neither saves
another one anything nor spares the server anything. What a text begins with that is common to all has no salt.

A salt follows from the hash of the client's key, so the client finds its texts again after a restart, and whoever gets
another key under the same name does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from luce.supervisor.prefix_cache.prefix_index import PrefixIndex, pack
from luce.supervisor.requests import TextSalt

_MIN_SALTED_TOKENS = 4  # no text is common as a whole: what is answered to it is not


class TenantIsolation:
    def __init__(self, common: Sequence[Sequence[int]] = ()) -> None:
        """`common`: beginnings of texts that anybody may be served from memory."""
        self._common: PrefixIndex[bool] = PrefixIndex()
        for text in common:
            self._common.insert(pack(text), True)

    def salt(self, client: str, prompt: Sequence[int]) -> TextSalt:
        n_common = min(self._common.n_common(pack(prompt)), max(len(prompt) - _MIN_SALTED_TOKENS, 0))
        return TextSalt(self.salt_value(client), n_common)

    def salt_value(self, client: str) -> int:
        return int.from_bytes(_digest(client), "little")

    def owner(self, client: str) -> str:
        """The same for what is kept of texts beside the engine's memory."""
        return _digest(client).hex()


def _digest(client: str) -> bytes:
    """`client`: as ApiKey has it; empty without keys."""
    who = b"key " + bytes.fromhex(client) if client else b"client "
    return blake2b(who, digest_size=8, person=b"text salt").digest()
