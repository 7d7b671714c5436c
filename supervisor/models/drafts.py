"""The file that `--draft` means: a file stays, of a folder its GGUF file is taken, and a Hugging Face checkpoint is
converted once and kept.

Nothing is looked for anywhere but where the name says. Whether the draft fits its target is luced's to say.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from luce.supervisor.models.cache_folder import cache_folder
from luce.supervisor.models.draft_cache import note_use, prune
from luce.supervisor.models.gguf_header import GgufError, read_gguf_header

if TYPE_CHECKING:
    from luce.supervisor.conversion import Prepared

__all__ = ["DraftError", "default_cache_dir", "resolve_draft", "what_hinders"]

_MAGIC = b"GGUF"
_CACHE_VERSION = "2"  # raise it when a conversion comes to write something else
_PREFERRED = "q8_0"
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_ALIGNMENT = 32  # of the header's end and of each tensor's, in what we write
_N_SAMPLES = 64
_SAMPLE_BYTES = 4096


class DraftError(Exception):
    """There is no draft to be had by this name; the text says why, and what to do."""


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where converted checkpoints are kept. Raises DraftError."""
    folder = cache_folder(environ)
    if folder is None:
        raise DraftError("there is no home folder to keep a converted draft in: set XDG_CACHE_HOME")
    return folder / "drafts"


def resolve_draft(
    draft: Path, target: Path, cache_dir: Path | None = None, on_convert: Callable[[str], None] | None = None
) -> Path:
    """The GGUF file to load for `draft`. `target` is the model's GGUF file; `on_convert` hears of a conversion before
    it begins, and each time what the conversion notes of the checkpoint and this target. Raises DraftError."""
    try:
        mode = draft.stat().st_mode
        if stat.S_ISDIR(mode):
            return _of_folder(draft, target, cache_dir, on_convert)
        if not stat.S_ISREG(mode):
            raise DraftError(f"{draft} is no regular file: name a GGUF file or a checkpoint's folder")
        if _first_bytes(draft) != _MAGIC:
            raise DraftError(
                f"{draft} is no GGUF file (it does not begin with the letters GGUF): name one, or the folder of a"
                " Hugging Face checkpoint"
            )
    except FileNotFoundError:
        raise DraftError(f"{draft}: there is no such file") from None
    except OSError as error:
        raise DraftError(f"{error.filename or draft}: {error.strerror or error}") from error
    return draft


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_MAGIC))


def _of_folder(folder: Path, target: Path, cache_dir: Path | None, on_convert: Callable[[str], None] | None) -> Path:
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() == ".gguf" and not path.name.startswith(".") and not _LATER_PART.search(path.name)
    )
    if names:
        preferred = [name for name in names if _PREFERRED in name.lower()] or names
        if len(preferred) > 1:
            raise DraftError(f"{folder} has {len(preferred)} GGUF files, name one of them: {', '.join(preferred[:20])}")
        return resolve_draft(folder / preferred[0], target)
    missing = [] if (folder / "config.json").exists() else ["config.json"]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise DraftError(
            f"{folder} has no GGUF file, and for a Hugging Face checkpoint no {' and no '.join(missing)}: name a GGUF"
            " file or a checkpoint's folder"
        )
    return _converted(folder, target, default_cache_dir() if cache_dir is None else cache_dir, on_convert)


def _converted(folder: Path, target: Path, cache_dir: Path, on_convert: Callable[[str], None] | None) -> Path:
    # Here and not above: a draft that is a file needs no numpy.
    from luce.supervisor.conversion import ConversionError, prepare

    say = on_convert or _ignore
    try:
        prepared = prepare(folder, target)
        for reason, advice in what_hinders(prepared):
            raise DraftError(f"{folder}: {reason}: {advice}")
        kept = _place(prepared, cache_dir)
        if not _is_whole(kept):
            cache_dir.mkdir(parents=True, exist_ok=True)
            _write(prepared, kept, lambda: say(f"converting {folder} to {kept}; this happens once"))
        note_use(kept)
        for path in prune(cache_dir, kept):
            say(f"removed {path}: it was not used for long, and is converted again when it is wanted")
    except ConversionError as error:
        raise DraftError(str(error)) from error
    except OSError as error:
        raise DraftError(
            f"{error.filename or cache_dir}: {error.strerror or error}: a converted draft is kept below XDG_CACHE_HOME"
            f" (~/.cache); or convert it by hand with `luce convert {folder} --target {target} --out FILE.gguf`"
        ) from error
    for note in prepared.notes:  # of a kept file too: it may have been written for another target
        say(f"{folder}: {note}")
    return kept


def what_hinders(prepared: Prepared) -> Iterator[tuple[str, str]]:
    """Why luced would refuse what the checkpoint becomes, though it can be converted, and what to do: said before
    gigabytes are written for nothing."""
    if prepared.reads_last_layer:
        yield (
            "it reads the output of the last layer, which this version does not hand to DFlash drafters",
            "this draft cannot be used here",
        )


def _ignore(_text: str) -> None:
    pass


def _place(prepared: Prepared, cache_dir: Path) -> Path:
    sha256 = hashlib.sha256(f"{_CACHE_VERSION} {prepared.digest()}".encode())
    for file in prepared.files:
        sha256.update(_fingerprint(file.path))
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "_", prepared.name)[:64]
    return cache_dir / f"{safe_name}-{_PREFERRED}-{sha256.hexdigest()[:32]}.gguf"


def _write(prepared: Prepared, kept: Path, before: Callable[[], None]) -> None:
    from luce.supervisor.conversion import OutputType

    with _locked(kept):
        if _is_whole(kept):  # somebody else has written it while we waited
            return
        _remove_leftovers(kept)
        before()
        prepared.write(kept, OutputType(_PREFERRED))


def _fingerprint(path: Path) -> bytes:
    """Of a file's data, without reading all of it: its size, its time, and samples from all over it."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        sha256 = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
        for sample in range(_N_SAMPLES):
            file.seek(max(status.st_size - _SAMPLE_BYTES, 0) * sample // (_N_SAMPLES - 1))
            sha256.update(file.read(_SAMPLE_BYTES))
    return sha256.digest()


def _is_whole(kept: Path) -> bool:
    """It comes into its place whole; this is for disks that lose data, and for people who tidy up."""
    try:
        header = read_gguf_header(kept)
    except GgufError:
        return False
    parts = [header.n_header_bytes, *(tensor.n_bytes for tensor in header.tensors)]
    return header.n_file_bytes == sum(-(-n_bytes // _ALIGNMENT) * _ALIGNMENT for n_bytes in parts)


@contextmanager
def _locked(kept: Path) -> Iterator[None]:
    """One process at a time; the kernel unlocks for those that die. Where a file system has no locks, two may convert
    at once: each writes a file of its own, and the later rename wins."""
    with kept.with_suffix(".lock").open("ab") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(kept: Path) -> None:
    from luce.supervisor.conversion.gguf_output import temporary_files

    for leftover in temporary_files(kept):  # of a conversion that was killed: its lock is ours now
        leftover.unlink(missing_ok=True)
