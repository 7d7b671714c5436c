"""Files that others bring into a disk cache's folder, and those that they take (`adopt`, `files`, `write`, `probe`).

Two folders stand for two machines; the test carries the files between them.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from luce.protocol import Adopted, ErrorCode, FilesLine, Probed
from luce.supervisor.prefix_cache.page_names import (
    PAGE_TOKENS,
    TOKEN_BYTES,
    MemoryFile,
    checkpoint_name,
    page_names,
    salted,
)
from luce.supervisor.prefix_cache.prefix_index import pack
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, refused, status_of
from tests.daemon_driver import DaemonDriver, random_prompt, to_bytes

PROMPT = random_prompt(400, seed=21)
N_PAGES = len(PROMPT) // PAGE_TOKENS
SALT = 2**64 - 3
SALT_FROM = 70
ARGUMENTS = ("--ctx", "1024", "--lanes", "1", "--host-cache", "64M")


def disk(folder: Path) -> tuple[str, ...]:
    return (*ARGUMENTS, "--disk-cache", str(folder))


def identity(daemon: DaemonDriver) -> str:
    return dict(daemon.ready.fields)["identity"]


def path_of(folder: Path, daemon: DaemonDriver, file: MemoryFile) -> Path:
    return folder / identity(daemon) / file.folder / file.name


def listed(daemon: DaemonDriver, line: str) -> tuple[int, list[MemoryFile]]:
    reply = done(daemon, line)
    assert isinstance(reply, FilesLine), reply
    files = [MemoryFile.of(words.partition(":")[0]) for words in reply.files]
    assert None not in files
    return reply.next, [file for file in files if file is not None]


def probed(daemon: DaemonDriver, prompt: list[int], extra: str = "") -> Probed:
    reply = done(daemon, f"probe id=3 prompt={','.join(map(str, prompt))} {extra}".rstrip())
    assert isinstance(reply, Probed), reply
    return reply


def adopt(daemon: DaemonDriver, files: list[MemoryFile]) -> Adopted:
    reply = done(daemon, f"adopt id=3 files={','.join(file.name for file in files)}")
    assert isinstance(reply, Adopted), reply
    return reply


def carry(files: list[MemoryFile], source: Path, target: Path, daemon: DaemonDriver) -> None:
    for file in files:
        place = path_of(target, daemon, file)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path_of(source, daemon, file), place)


def written(daemon: DaemonDriver, name: bytes) -> list[MemoryFile]:
    return listed(daemon, f"write id=4 page={name.hex()}")[1]


@pytest.mark.parametrize("family", ["qwen35", "qwen3"])
def test_names_are_known_without_asking_and_files_travel(
    start: Start, test_models: Path, tmp_path: Path, family: str
) -> None:
    model = test_models / f"{family}.gguf"
    source, target = tmp_path / "source", tmp_path / "target"
    first, second = start(*disk(source), model=model), start(*disk(target), model=model)
    plain, isolated = pack(PROMPT), salted(pack(PROMPT), SALT, SALT_FROM)
    answers = [generate(first, PROMPT).tokens, generate(first, PROMPT, f"salt={SALT} salt_from={SALT_FROM}").tokens]
    for key, extra, tokens in zip((plain, isolated), ("", f"salt={SALT} salt_from={SALT_FROM}"), answers, strict=True):
        names = list(page_names(key, identity(first)))
        assert len(names) == N_PAGES
        files = written(first, names[-1])
        assert [file.page for file in files if file.checkpoint is None] == names
        of_prompt = [file for file in files if names.index(file.page) * PAGE_TOKENS + file.n_rest < len(PROMPT)]
        for file in of_prompt:
            if file.checkpoint is not None:
                begin = (names.index(file.page) + 1) * PAGE_TOKENS * TOKEN_BYTES
                rest = key[begin : begin + file.n_rest * TOKEN_BYTES]
                if len(rest) == file.n_rest * TOKEN_BYTES:  # others stand in the answer
                    assert file.checkpoint == checkpoint_name(file.page, rest)
        carry(files, source, target, second)
        known = SALT_FROM // PAGE_TOKENS if extra else 0
        before = probed(second, PROMPT, extra)
        assert before.n_pages == known, "it does not look into its folder by itself"
        adopted = adopt(second, files)
        assert (adopted.n_missing, adopted.n_new + adopted.n_known) == (0, len(files))
        assert adopted.n_known >= known
        assert probed(second, PROMPT, extra) == Probed(3, len(PROMPT), probed(first, PROMPT, extra).n_known, N_PAGES)
        told = generate(second, PROMPT, extra)
        assert told.tokens == tokens
        assert told.ok.tier == "disk"
        assert told.ok.n_reused >= N_PAGES * PAGE_TOKENS
    assert int(status_of(second)["disk_corrupt"]) == 0
    # Whoever asks from the last number on hears of what has come since, and of that alone.
    number, all_files = listed(first, "files id=4")
    assert set(all_files) >= set(files)
    assert listed(first, f"files id=4 since={number}") == (number, [])
    assert len(listed(first, "files id=4 since=2 n=3")[1]) == 3
    long = tmp_path / "prompt"
    long.write_bytes(to_bytes(PROMPT))
    assert done(first, f"probe id=3 prompt=@{long}") == probed(first, PROMPT)


def test_what_is_brought_is_not_believed(start: Start, test_models: Path, tmp_path: Path) -> None:
    model = test_models / "qwen35.gguf"
    source, target = tmp_path / "source", tmp_path / "target"
    first = start(*disk(source), model=model)
    answer = generate(first, PROMPT).tokens
    names = list(page_names(pack(PROMPT), identity(first)))
    files = written(first, names[-1])
    pages = [file for file in files if file.checkpoint is None]
    n_bytes = sum(path_of(source, first, file).stat().st_size for file in files)
    second = start(*disk(target), "--disk-budget", str(n_bytes), model=model)
    carry(files, source, target, second)
    # A page that is another one's, one that is cut, and a name that leads elsewhere.
    path_of(target, second, pages[1]).write_bytes(path_of(source, first, pages[2]).read_bytes())
    path_of(target, second, pages[3]).write_bytes(path_of(source, first, pages[3]).read_bytes()[:-1])
    link = path_of(target, second, pages[4])
    link.unlink()
    link.symlink_to(path_of(source, first, pages[4]))
    huge = MemoryFile(bytes(16))
    path_of(target, second, huge).parent.mkdir(exist_ok=True)
    os.truncate(os.open(path_of(target, second, huge), os.O_CREAT | os.O_WRONLY), 2 * n_bytes)
    nobody = MemoryFile(bytes(15) + b"\1")
    adopted = adopt(second, [*files, huge, nobody])
    assert (adopted.n_new, adopted.n_missing) == (len(files) - 1, 3)
    assert generate(second, PROMPT).tokens == answer
    assert int(status_of(second)["disk_files"]) > 0
    for line in (
        f"adopt id=3 files=../{files[0].name}",
        f"adopt id=3 files={'0' * 32}.page.page",
        f"adopt id=3 files={','.join([files[0].name] * 4097)}",
        "write id=3 page=../..",
        f"write id=3 page={'0' * 32}",
    ):
        assert refused(second, line) is ErrorCode.BAD_ARGS, line
    assert refused(second, f"probe id=3 prompt=@{tmp_path / 'none'}") is ErrorCode.NO_SUCH_FILE
    # More than the budget: what is least wanted goes, and what is left is a text's beginning.
    small = tmp_path / "small"
    third = start(*disk(small), "--disk-budget", str(n_bytes // 2), model=model)
    carry(files, source, small, third)
    assert adopt(third, files).n_missing == 0
    left = {file for file in listed(third, "files id=4")[1] if file.checkpoint is None}
    assert left == set(pages[: len(left)])
    assert int(status_of(third)["disk_bytes"]) <= n_bytes // 2
    assert generate(third, PROMPT).tokens == answer


def test_without_a_disk_cache_nothing_comes_and_goes(start: Start) -> None:
    daemon = start(*ARGUMENTS)
    generate(daemon, PROMPT)
    assert probed(daemon, PROMPT).n_pages == N_PAGES
    for line in ("adopt id=3 files=", "files id=3", f"write id=3 page={'0' * 32}"):
        assert refused(daemon, line) is ErrorCode.UNSUPPORTED


def test_what_was_written_when_asked_for_survives(start: Start, test_models: Path, tmp_path: Path) -> None:
    model = test_models / "qwen35.gguf"
    daemon = start(*disk(tmp_path), model=model)
    answer = generate(daemon, PROMPT)
    name = list(page_names(pack(PROMPT), identity(daemon)))[-1]
    files = written(daemon, name)
    os.kill(daemon.child.pid, signal.SIGKILL)
    daemon.wait()
    again = start(*disk(tmp_path), model=model)
    assert set(listed(again, "files id=4")[1]) >= set(files)
    told = generate(again, PROMPT)
    assert (told.tokens, told.ok.tier) == (answer.tokens, "disk")
