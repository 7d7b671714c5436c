"""ObjectStore: the object store itself, by `obstore`: list, look, get, put and delete, each with a deadline, and all
that fails as one kind of error. It must not know what the objects are for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from luce.supervisor.config import ConfigError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as AnyStore

SCHEMES = ("s3", "gs", "az", "file")
MAX_OBJECT_BYTES = 2 << 30
_REQUEST_S = 300.0
_LIST_CHUNK = 1000
_MAX_TEXT = 300
_CLIENT: ClientConfig = {
    "timeout": timedelta(seconds=_REQUEST_S),
    "connect_timeout": timedelta(seconds=5),
    "allow_http": True,  # of an endpoint that is named so; the vendors' own are not
}
_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


class StoreError(Exception):
    """The store did not do what it was asked to: one line, for people."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str
    n_bytes: int
    written_s: float
    """As time.time() counts."""


class ObjectStore:
    def __init__(self, url: str, store: AnyStore, failures: tuple[type[Exception], ...]) -> None:
        """`failures`: what the library raises."""
        self.url = url
        self._store = store
        self._failures = failures
        self._is_ordered = not url.startswith("file:")

    @classmethod
    def open(cls, url: str) -> ObjectStore:
        """Asks nothing of the store. Credentials, region and endpoint are found where the vendors' own programs find
        them: in the environment, or by the machine. Raises ConfigError."""
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or not rest:
            raise ConfigError(f"cache_store={url}: it begins with s3://, gs://, az:// or file://")
        try:
            from obstore.exceptions import BaseError
            from obstore.store import LocalStore, from_url
        except ImportError as error:
            text = f"cache_store needs a package that is not installed ({error.name})"
            raise ConfigError(f"{text}: pip install 'luce-daemon[store]'") from error
        failures = (BaseError, OSError, ValueError)
        try:
            if scheme == "file":
                return cls(url, LocalStore.from_url(url, mkdir=True), failures)
            store = from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
            return cls(url, store, failures)
        except failures as error:
            raise ConfigError(f"cache_store={url}: {_first_line(error)}") from error

    async def objects(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        """All of them, some at a time. Raises StoreError."""
        stream = self._store.list(prefix, chunk_size=_LIST_CHUNK)
        while True:
            try:
                async with asyncio.timeout(_REQUEST_S):
                    chunk = await anext(stream, None)
            except self._failures as error:
                raise _store_error(error) from error
            if chunk is None:
                return
            yield [_object(entry) for entry in chunk]

    async def objects_from(self, folder: str, path: str) -> list[StoredObject]:
        """Some hundreds of those in the folder whose paths are behind this one, in the paths' order; of a local folder
        all of them, which it does not give in order. Raises StoreError."""
        stream = self._store.list(folder, offset=path, chunk_size=_LIST_CHUNK)
        found: list[StoredObject] = []
        try:
            async with asyncio.timeout(_REQUEST_S):
                async for chunk in stream:
                    found += map(_object, chunk)
                    if self._is_ordered:
                        break
        except self._failures as error:
            raise _store_error(error) from error
        return sorted(found, key=lambda entry: entry.path)

    async def head(self, path: str) -> StoredObject | None:
        """None: there is no such object. Raises StoreError."""
        try:
            async with asyncio.timeout(_REQUEST_S):
                return _object(await self._store.head_async(path))
        except FileNotFoundError:
            return None
        except self._failures as error:
            raise _store_error(error) from error

    async def get(self, path: str) -> memoryview | None:
        """None: there is no such object. Raises StoreError."""
        try:
            async with asyncio.timeout(_REQUEST_S):
                result = await self._store.get_async(path)
                if result.meta["size"] > MAX_OBJECT_BYTES:
                    raise StoreError(f"{path} has {result.meta['size']:,} bytes")
                return memoryview(await result.bytes_async())
        except FileNotFoundError:
            return None
        except self._failures as error:
            raise _store_error(error) from error

    async def put(self, path: str, data: bytes) -> None:
        """Whole or not at all. Raises StoreError."""
        try:
            async with asyncio.timeout(_REQUEST_S):
                await self._store.put_async(path, data, use_multipart=False)
        except self._failures as error:
            raise _store_error(error) from error

    async def delete(self, paths: Sequence[str]) -> None:
        """What is not there is no matter. Raises StoreError."""
        try:
            async with asyncio.timeout(_REQUEST_S):
                await self._store.delete_async(list(paths))
        except FileNotFoundError:
            pass
        except self._failures as error:
            raise _store_error(error) from error


def _object(meta: ObjectMeta) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _store_error(error: Exception) -> StoreError:
    if isinstance(error, TimeoutError):
        return StoreError(f"no answer within {_REQUEST_S:.0f} s")
    return StoreError(_first_line(error))


def _first_line(error: Exception) -> str:
    """The library tells each of its layers on a line of its own, and what was sent in long ones."""
    return str(error).strip().partition("\n")[0][:_MAX_TEXT] or type(error).__name__
