"""The file that --api-keys names: a table of TOML for each key, with the hash of the key and its limits.

    [alice]
    hash = "sha256:…"
    scope = "infer"
    requests_per_minute = 60

What is wrong with it is told with its place, and nobody is let in by a table that is not understood.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from luce.supervisor.config import ConfigError
from luce.supervisor.http.keys.api_key import ApiKey, Scope, digest_of

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_RESERVED = re.compile(r"key-[0-9]+")  # the names of keys that have none
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    hash: str = Field(pattern=_HASH.pattern)
    scope: Scope = "infer"
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    max_lanes: int | None = Field(default=None, ge=1)
    max_context: int | None = Field(default=None, ge=1)


def read_key_file(file: Path) -> tuple[ApiKey, ...]:
    """At least one key. Raises ConfigError."""
    if not (keys := keys_in(file)):
        raise ConfigError(f"api_keys {file} holds no key: `luce keys new NAME --file {file}` makes one")
    return keys


def keys_in(file: Path) -> tuple[ApiKey, ...]:
    """Perhaps none. Raises ConfigError."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"api_keys {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"api_keys {file} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"api_keys {file} is not TOML: {error}") from None
    keys = tuple(_key(file, name, table) for name, table in tables.items())
    names: dict[bytes, str] = {}
    for key in keys:
        if (other := names.setdefault(key.digest, key.name)) != key.name:
            raise ConfigError(f"api_keys {file}: {other} and {key.name} have one key: give each its own")
    return keys


def table_of(name: str, key: str, **limits: str | int | None) -> str:
    """The table for a key. Raises ConfigError where its name cannot be one."""
    _check_name(name)
    lines = [f"[{_quoted(name)}]", f'hash = "sha256:{digest_of(key).hex()}"']
    for limit, value in limits.items():
        if value is not None:
            lines.append(f'{limit} = "{value}"' if isinstance(value, str) else f"{limit} = {value}")
    return "\n".join(lines) + "\n"


def _key(file: Path, name: str, table: object) -> ApiKey:
    try:
        _check_name(name)
        entry = _Entry.model_validate(table)
    except ConfigError as error:
        raise ConfigError(f"api_keys {file}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join([name, *map(str, first["loc"])])
        raise ConfigError(f"api_keys {file}: {place}: {first['msg']}") from None
    values = entry.model_dump(exclude={"hash"})
    return ApiKey(name=name, digest=bytes.fromhex(entry.hash.removeprefix("sha256:")), **values)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is not a valid name of a key: it has up to 64 letters, digits and . _ @ -")
    if _RESERVED.fullmatch(name):
        raise ConfigError(f"{name}: names like this one are those of keys without a name: choose another")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
