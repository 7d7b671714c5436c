"""Which salt a client's texts have: one of its key's own, from where they are not common."""

from __future__ import annotations

from luce.supervisor.http.answering.tenant_isolation import TenantIsolation
from luce.supervisor.http.keys.api_key import ApiKey, digest_of
from luce.supervisor.http.keys.key_ring import KeyRing

COMMON = list(range(100, 160))
ASKED = [*COMMON, *range(20)]


def ring(**keys: str) -> KeyRing:
    return KeyRing(ApiKey(name=name, digest=digest_of(key)) for name, key in keys.items())


def test_a_salt_is_of_the_key_and_not_of_its_name() -> None:
    before, after = (TenantIsolation(ring(alice=key, bob="b")) for key in ("a", "another"))
    assert before.salt("alice", ASKED) == before.salt("alice", ASKED[::-1])
    assert before.salt("alice", ASKED).value != before.salt("bob", ASKED).value
    assert after.salt("alice", ASKED).value != before.salt("alice", ASKED).value, "somebody else has the name now"
    renamed = TenantIsolation(ring(carol="a"))
    assert renamed.salt("carol", ASKED) == before.salt("alice", ASKED), "found again after a restart, by its key"
    assert before.owner("alice") != before.owner("bob")
    assert before.salt("nobody", ASKED).value not in {before.salt(name, ASKED).value for name in ("alice", "bob")}


def test_what_is_common_has_no_salt() -> None:
    isolation = TenantIsolation(ring(alice="a"), [COMMON, [1, 2, 3, 4, 5, 6]])
    assert isolation.salt("alice", ASKED).begin == len(COMMON)
    assert isolation.salt("alice", [*COMMON[:10], *ASKED]).begin == 10
    assert isolation.salt("alice", range(20)).begin == 0
    assert TenantIsolation(ring(alice="a")).salt("alice", ASKED).begin == 0


def test_what_is_answered_to_a_common_text_is_nobody_elses() -> None:
    isolation = TenantIsolation(ring(), [COMMON])
    assert isolation.salt("", COMMON).begin == len(COMMON) - 4
    assert isolation.salt("", COMMON[:2]).begin == 0
    assert isolation.salt("", []).begin == 0
