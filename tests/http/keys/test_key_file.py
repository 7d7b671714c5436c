"""The file of keys: what it holds, and what is said of one that cannot be meant."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from luce.supervisor.config import ConfigError
from luce.supervisor.http.keys.api_key import ApiKey, digest_of
from luce.supervisor.http.keys.key_file import read_key_file, table_of

HASH = f'hash = "sha256:{digest_of("k").hex()}"'


def luce(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from luce.supervisor.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def read(folder: Path, text: str) -> tuple[ApiKey, ...]:
    file = folder / "keys.toml"
    file.write_text(text)
    return read_key_file(file)


def test_a_key_and_its_limits(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 60, "tokens_per_minute": 1000, "max_lanes": 2, "max_context": 4096}
    text = table_of("alice", "k", scope="infer", **limits) + "\n" + table_of("bob@work", "other", scope="admin")
    alice, bob = read(tmp_path, text)
    assert alice == ApiKey(name="alice", digest=digest_of("k"), scope="infer", **limits)
    assert bob == ApiKey(name="bob@work", digest=digest_of("other"), scope="admin")
    assert read(tmp_path, f"[alice]\n{HASH}")[0].scope == "infer", "who is not said to be an administrator is none"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no key"),
        ("alice", "is not TOML"),
        ("[alice]\n", "alice.hash: Field required"),
        ('[alice]\nhash = "secret"', "alice.hash: String should match pattern"),
        ('alice = "k"', "alice: Input should be a valid dictionary"),
        (f'[alice]\n{HASH}\nscope = "root"', "alice.scope: Input should be 'infer' or 'admin'"),
        (f"[alice]\n{HASH}\nmax_lanes = 0", "alice.max_lanes: Input should be greater than or equal to 1"),
        (f"[alice]\n{HASH}\nmax_lanes = true", "alice.max_lanes: Input should be a valid integer"),
        (f"[alice]\n{HASH}\nmax_lane = 1", "alice.max_lane: Extra inputs are not permitted"),
        (f"[alice]\n{HASH}\n[bob]\n{HASH}", "alice and bob have one key"),
        (f"['a b']\n{HASH}", "'a b' is not a valid name of a key"),
        (f"[key-1]\n{HASH}", "names like this one"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    assert told in str(error.value)
    assert "keys.toml" in str(error.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_key_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe4")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_key_file(tmp_path / "latin.toml")


@pytest.mark.parametrize("text", ["", "\n\n", "# our keys\n"])
def test_the_command_adds_to_a_file_without_keys(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    made = luce("keys", "new", "alice", "--file", str(file))
    assert made.returncode == 0, made.stderr
    assert [key.digest for key in read_key_file(file)] == [digest_of(made.stdout.strip())]
    assert file.read_text().startswith(text.strip() or "[alice]")


@pytest.mark.parametrize(
    ("kind", "is_linked"), [("device", True), ("pipe", True), ("pipe", False), ("folder", False), ("loop", False)]
)
def test_a_key_is_not_written_to_what_is_no_file(tmp_path: Path, kind: str, is_linked: bool) -> None:
    target = Path(os.devnull) if kind == "device" else tmp_path / "target"
    match kind:
        case "pipe":
            os.mkfifo(target)
        case "folder":
            target.mkdir()
        case "loop":
            target.symlink_to(tmp_path / "back")
            (tmp_path / "back").symlink_to(target)
    before = target.lstat()
    link = tmp_path / "keys.toml"
    if is_linked:
        link.symlink_to(target)
    refused = luce("keys", "new", "alice", "--file", str(link if is_linked else target))
    assert refused.returncode != 0
    assert not refused.stdout, "no key is shown that nobody has filed"
    assert ("Too many levels" if kind == "loop" else "is no file") in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_the_command_shows_a_key_once_and_files_its_hash(tmp_path: Path) -> None:
    link, file = tmp_path / "keys.toml", tmp_path / "elsewhere.toml"
    link.symlink_to(file)
    first = luce("keys", "new", "alice", "--file", str(link), "--max-lanes", "2")
    assert first.returncode == 0, first.stderr
    file.chmod(0o644)
    second = luce("keys", "new", "bob", "--file", str(file), "--scope", "admin")
    assert second.returncode == 0, second.stderr
    keys = {key.name: key for key in read_key_file(file)}
    assert keys["alice"].digest == digest_of(first.stdout.strip())
    assert (keys["alice"].scope, keys["alice"].max_lanes, keys["bob"].scope) == ("infer", 2, "admin")
    assert first.stdout.strip() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    twice = luce("keys", "new", "bob", "--file", str(file))
    assert twice.returncode == 64
    assert "has a key named bob" in twice.stderr
    assert not twice.stdout
    nowhere = luce("keys", "new", "bob", "--file", str(tmp_path / "missing" / "keys.toml"))
    assert f"{tmp_path / 'missing'}: there is no such folder" in nowhere.stderr
    shown = luce("keys", "new", "carol")
    assert shown.returncode == 0
    assert "[carol]" in shown.stderr
