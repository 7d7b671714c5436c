"""KeyRing: the keys that let requests in, found by what a request brings; read anew from their file when told to."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Sequence

from aiohttp import web

from luce.supervisor.http.app_context import context_of
from luce.supervisor.http.keys.api_key import ApiKey, digest_of, plain_keys
from luce.supervisor.http.keys.key_account import KeyAccount
from luce.supervisor.http.keys.key_file import read_key_file
from luce.supervisor.http.settings import ServeSettings


class KeyRing:
    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._accounts: dict[str, KeyAccount] = {}  # by name
        self.replace(keys)

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """A name that stays keeps what it has used; answers of one that goes come to their end."""
        now_s = time.monotonic()
        accounts = {}
        for key in keys:
            account = self._accounts.get(key.name)
            if account is None:
                account = KeyAccount(key, now_s)
            else:
                account.change(key, now_s)
            accounts[key.name] = account
        self._accounts = accounts

    def find(self, given: Sequence[str]) -> KeyAccount | None:
        """The account of the first key that is known. Digests are compared, all of them: it takes as long whatever is
        given."""
        found: KeyAccount | None = None
        for digest in map(digest_of, given):
            for account in self._accounts.values():
                if hmac.compare_digest(account.key.digest, digest) and found is None:
                    found = account
        return found

    def account(self, client: str) -> KeyAccount | None:
        """By ApiKey.client."""
        return next((account for account in self._accounts.values() if account.key.client == client), None)

    def __bool__(self) -> bool:
        return bool(self._accounts)

    def __len__(self) -> int:
        return len(self._accounts)


KEY_RING = web.AppKey("key_ring", KeyRing)
KEY_ACCOUNT = web.RequestKey("key_account", KeyAccount)
"""Of a request that has brought a key. Set by middleware."""


def key_name(request: web.Request) -> str:
    """Of the key that it has brought; empty without keys."""
    account = request.get(KEY_ACCOUNT)
    return "" if account is None else account.key.name


def charge(request: web.Request, n_tokens: int) -> None:
    """What was computed for a request that is no answer."""
    account = request.get(KEY_ACCOUNT)
    if account is not None:
        account.use_tokens(n_tokens)
        context_of(request).metrics.key_tokens(account.key.name, n_tokens, 0)


def window_of(request: web.Request, n_ctx: int | None) -> int | None:
    """Tokens that a prompt and its answer may have: those of the model's context, or fewer by the request's key."""
    account = request.get(KEY_ACCOUNT)
    return n_ctx if account is None else account.key.window(n_ctx)


def keys_of(settings: ServeSettings) -> tuple[ApiKey, ...]:
    """All that the settings name. Raises ConfigError."""
    filed = () if settings.key_file is None else read_key_file(settings.key_file)
    return (*plain_keys(settings.api_keys), *filed)
