"""Which salt a client's texts have: one of its key's own, from where they are not common."""

from __future__ import annotations

from luce.supervisor.http.answering.tenant_isolation import TenantIsolation
from luce.supervisor.http.keys.api_key import ApiKey, digest_of

COMMON = list(range(100, 160))
ASKED = [*COMMON, *range(20)]
SALT = 0x07CF3F533C8A7936  # of the key "a"


def client(key: str, name: str = "alice") -> str:
    return ApiKey(name=name, digest=digest_of(key)).client


def test_a_salt_is_of_the_key_and_not_of_its_name() -> None:
    isolation = TenantIsolation()
    assert isolation.salt(client("a"), ASKED) == isolation.salt(client("a"), ASKED[::-1])
    salts = {isolation.salt(who, ASKED).value for who in ("", client("a"), client("b"))}
    assert len(salts) == 3, "a key has a salt of its own, whoever has its name later"
    assert client("a", "carol") == client("a"), "a key that is renamed finds its texts again"
    assert isolation.owner(client("a")) != isolation.owner(client("b"))


def test_a_salt_outlives_the_server() -> None:
    """It is in the names of pages on disk."""
    assert TenantIsolation().salt(client("a"), ASKED).value == SALT


def test_what_is_common_has_no_salt() -> None:
    isolation = TenantIsolation([COMMON, [1, 2, 3, 4, 5, 6]])
    assert isolation.salt(client("a"), ASKED).begin == len(COMMON)
    assert isolation.salt(client("a"), [*COMMON[:10], *ASKED]).begin == 10
    assert isolation.salt(client("a"), range(20)).begin == 0
    assert TenantIsolation().salt(client("a"), ASKED).begin == 0


def test_what_is_answered_to_a_common_text_is_nobody_elses() -> None:
    isolation = TenantIsolation([COMMON])
    assert isolation.salt("", COMMON).begin == len(COMMON) - 4
    assert isolation.salt("", COMMON[:2]).begin == 0
    assert isolation.salt("", []).begin == 0
