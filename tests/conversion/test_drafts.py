"""Which file `--draft` means, and what becomes of a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.conversion import OutputType, convert_checkpoint
from luce.supervisor.models.draft_cache import prune
from luce.supervisor.models.drafts import DraftError, default_cache_dir, resolve_draft
from tests.conversion.checkpoints import N_TARGET_LAYERS, Checkpoint, checkpoint, with_selector, write_target


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return checkpoint().write(tmp_path / "drafter")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "drafts"


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF and more")
    return path


def test_a_file_stays(tmp_path: Path, target: Path) -> None:
    path = gguf(tmp_path / "draft.gguf")
    assert resolve_draft(path, target) == path


def test_in_a_folder_q8_0_comes_first(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    only = gguf(folder / "draft-BF16.gguf")
    gguf(folder / ".draft.gguf")
    assert resolve_draft(folder, target) == only
    preferred = gguf(folder / "draft-Q8_0.gguf")
    assert resolve_draft(folder, target) == preferred
    gguf(folder / "other-q8_0.GGUF")
    with pytest.raises(DraftError, match=r"draft-Q8_0\.gguf, other-q8_0\.GGUF"):
        resolve_draft(folder, target)


def test_the_first_part_stands_for_all(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "draft"
    folder.mkdir()
    first, _ = (gguf(folder / f"d-0000{part}-of-00002.gguf") for part in (1, 2))
    assert resolve_draft(folder, target) == first


def test_a_gguf_file_comes_before_the_checkpoint(drafter: Path, target: Path, cache: Path) -> None:
    path = gguf(drafter / "draft.gguf")
    assert resolve_draft(drafter, target, cache) == path
    path.write_bytes(b"<html>")  # a failed download is said, not passed over
    with pytest.raises(DraftError, match="begin with the letters GGUF"):
        resolve_draft(drafter, target, cache)


def test_nothing_is_looked_for_elsewhere(tmp_path: Path, target: Path, cache: Path) -> None:
    drafter = checkpoint().write(tmp_path / "models")
    gguf(drafter / "draft.gguf")
    (drafter / "inner").mkdir()
    with pytest.raises(DraftError, match=r"no config\.json and no \*\.safetensors"):
        resolve_draft(drafter / "inner", target, cache)
    (drafter / "inner" / "config.json").write_text("{}")
    with pytest.raises(DraftError, match=r"no \*\.safetensors"):
        resolve_draft(drafter / "inner", target, cache)
    with pytest.raises(DraftError, match="no such file"):
        resolve_draft(drafter / "inner" / "draft.gguf", target, cache)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DraftError, match="no regular file"):
        resolve_draft(tmp_path / "pipe", target, cache)


def test_a_checkpoint_is_converted_once(drafter: Path, target: Path, cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = resolve_draft(drafter, target, cache, said.append)
    assert first.parent == cache
    assert "q8_0" in first.name
    by_hand = convert_checkpoint(drafter, target, tmp_path / "by-hand.gguf", OutputType.Q8_0)
    assert first.read_bytes() == by_hand.path.read_bytes()
    written = first.stat().st_ino
    assert resolve_draft(drafter, target, cache, said.append) == first
    assert first.stat().st_ino == written
    assert len(said) == 1


def other_config(source: Checkpoint, folder: Path) -> None:
    source.config["block_size"] = 8
    source.write(folder)


def other_data(source: Checkpoint, folder: Path) -> None:
    status = (folder / "model.safetensors").stat()
    source.data[1000:1010] = bytes(10)
    source.write(folder)
    os.utime(folder / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))


def other_time(source: Checkpoint, folder: Path) -> None:
    os.utime(folder / "model.safetensors", (1, 1))
    assert source.config


@pytest.mark.parametrize("change", [other_config, other_data, other_time])
def test_what_has_changed_is_converted_again(change: Any, drafter: Path, target: Path, cache: Path) -> None:
    first = resolve_draft(drafter, target, cache)
    change(checkpoint(), drafter)
    second = resolve_draft(drafter, target, cache)
    assert second != first
    assert len(list(cache.glob("*.gguf"))) == 2


def test_another_vocabulary_is_another_file(drafter: Path, target: Path, cache: Path, tmp_path: Path) -> None:
    renamed = [f"other{token}" for token in range(31)] + ["<|mask|>"]
    other = write_target(tmp_path / "other.gguf", tokens=renamed)
    assert resolve_draft(drafter, target, cache) != resolve_draft(drafter, other, cache)


def test_a_kept_file_that_is_torn_is_written_anew(drafter: Path, target: Path, cache: Path) -> None:
    kept = resolve_draft(drafter, target, cache)
    whole = kept.read_bytes()
    leftover = kept.with_name(f".{kept.name}.0123.part")
    for spoilt in (whole[:100], whole[:-2000], b""):
        kept.write_bytes(spoilt)
        leftover.write_bytes(b"of a process that was killed")
        assert resolve_draft(drafter, target, cache) == kept
        assert kept.read_bytes() == whole
        assert not leftover.exists()


RESOLVE = """
import sys
from pathlib import Path
from luce.supervisor.models.drafts import resolve_draft
print("ready", flush=True)
sys.stdin.readline()
print(resolve_draft(*map(Path, sys.argv[1:]), on_convert=lambda text: print("converting")))
"""


def test_processes_do_not_clash(packaged_checkpoint: Path, tiny_model: Path, cache: Path) -> None:
    arguments = [sys.executable, "-c", RESOLVE, *map(str, (packaged_checkpoint, tiny_model, cache))]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all at once
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    (kept,) = cache.glob("*.gguf")
    assert {lines[-1] for lines in outputs} == {str(kept)}
    assert [line for lines in outputs for line in lines[:-1]] == ["converting"]
    assert not list(cache.glob("*.part")) + list(cache.glob(".*.part"))


def test_a_checkpoint_that_is_refused_leaves_nothing(tmp_path: Path, target: Path, cache: Path) -> None:
    source = checkpoint()
    source.config["dflash_config"]["target_layer_ids"] = []
    with pytest.raises(DraftError, match="target_layer_ids: the list is empty"):
        resolve_draft(source.write(tmp_path / "drafter"), target, cache)
    assert not cache.exists()


def test_a_selector_is_converted_too(tmp_path: Path, target: Path, cache: Path) -> None:
    folder = with_selector().write(tmp_path / "drafter")
    kept = resolve_draft(folder, target, cache)
    assert kept.parent == cache
    by_hand = convert_checkpoint(folder, target, folder / "draft.gguf", OutputType.Q8_0).path
    assert by_hand.read_bytes() == kept.read_bytes()
    assert resolve_draft(folder, target, cache) == by_hand


def unused_since(path: Path, days: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(bytes(1000))
        path.with_suffix(".lock").touch()
    os.utime(path, (0, time.time() - days * 24 * 3600))
    return path


def test_what_was_not_used_for_long_goes_with_the_next_start(drafter: Path, target: Path, cache: Path) -> None:
    kept = unused_since(resolve_draft(drafter, target, cache), 100)
    old, newer = (unused_since(cache / f"x-q8_0-{n:032x}.gguf", days) for n, days in ((1, 91), (2, 89)))
    foreign = [unused_since(cache / name, 1000) for name in ("mine.gguf", "x-q8_0-12.gguf")]
    said: list[str] = []
    assert resolve_draft(drafter, target, cache, said.append) == kept  # used again, so it is not old any more
    assert said == [f"removed {old}: it was not used for long, and is converted again when it is wanted"]
    assert [path.exists() for path in (kept, old, newer, *foreign)] == [True, False, True, True, True]
    assert not old.with_suffix(".lock").exists()
    assert time.time() - kept.stat().st_mtime < 24 * 3600


def test_beyond_the_budget_those_unused_longest_go_first(cache: Path) -> None:
    kept, *others = (unused_since(cache / f"x-q8_0-{n:032x}.gguf", 60 - n) for n in range(5))
    assert prune(cache, kept, most_bytes=5000) == []
    assert prune(cache, kept, most_bytes=2999) == others[:3]
    assert sorted(cache.glob("*.gguf")) == sorted([kept, others[3]])
    assert prune(cache, kept, most_bytes=0) == [others[3]]
    assert kept.exists()


@pytest.mark.parametrize("says_how_many", [True, False])
def test_a_reader_of_the_last_layer_is_refused_before_anything_is_converted(
    says_how_many: bool, tmp_path: Path, target: Path, cache: Path
) -> None:
    source = checkpoint()
    source.config["dflash_config"]["target_layer_ids"] = [0, N_TARGET_LAYERS - 1]
    if not says_how_many:
        source.config.pop("num_target_layers")
    folder = source.write(tmp_path / "drafter")
    said: list[str] = []
    reason = "it reads the output of the last layer, which this version does not hand to DFlash drafters: this draft"
    with pytest.raises(DraftError, match=f"drafter: {reason}"):
        resolve_draft(folder, target, cache, said.append)
    assert not cache.exists()
    assert said == []


def test_what_a_conversion_notes_is_said_at_every_start(tmp_path: Path, drafter: Path, cache: Path) -> None:
    fitting = write_target(tmp_path / "fitting.gguf")
    other = write_target(tmp_path / "other.gguf", rope_base=1e6)
    said: list[str] = []
    kept = resolve_draft(drafter, fitting, cache, said.append)
    assert [text.split()[0] for text in said] == ["converting"]
    note = f"{drafter}: the drafter rotates with base 10000 and its target with 1e+06"
    for _ in range(2):  # the kept file is the same, whose conversion had nothing to note
        said.clear()
        assert resolve_draft(drafter, other, cache, said.append) == kept
        assert [text[: len(note)] for text in said] == [note]
    kept.unlink()
    said.clear()
    resolve_draft(drafter, other, cache, said.append)
    assert [text.startswith(start) for text, start in zip(said, ("converting", note), strict=True)] == [True, True]
    resolve_draft(drafter, other, cache)  # nobody listens


def test_a_cache_that_cannot_be_written(drafter: Path, target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DraftError, match="XDG_CACHE_HOME"):
        resolve_draft(drafter, target, tmp_path / "file" / "drafts")


def test_where_the_cache_is() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/c"}) == Path("/c/luce-daemon/drafts")
    for environ in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert default_cache_dir(environ) == Path.home() / ".cache/luce-daemon/drafts"
