"""Models that lie on this machine: of a folder, of Hugging Face's cache, of LM Studio and of Ollama. Read only.

Only language models count: no projectors, no drafts, no models that give vectors. It must not know who serves them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from luce.supervisor.models.gguf_header import GgufError, GgufHeader, read_gguf_header

SOURCES = ("huggingface", "lmstudio", "ollama")

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}$")
_NO_LANGUAGE_MODELS = frozenset(
    {"clip", "dflash", "dspark", "eagle3", "gemma4-assistant", "bert", "nomic-bert", "jina-bert-v2", "t5encoder"}
)
_MAX_MANIFEST_BYTES = 1 << 20
_MODEL_LAYER = "application/vnd.ollama.image.model"


class FindingError(Exception):
    """There is no such place; the text says which there are."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    name: str
    path: Path


def find_models(sources: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[FoundModel]:
    """Each once, of those with one name the later ones with their folders before it. A source is one of SOURCES, or a
    folder, which is searched with its folders. Raises FindingError. What cannot be read, or is not whole, is left
    out."""
    named: dict[str, FoundModel] = {}
    for model in dict.fromkeys(chain.from_iterable(_in_order(source, environ) for source in sources)):
        if _is_language_model(model.path):
            name = next(name for name in _names(model) if name not in named)
            named[name] = FoundModel(name, model.path)
    return list(named.values())


def _in_order(source: str, environ: Mapping[str, str]) -> list[FoundModel]:
    match source:
        case "huggingface":
            found = _of_files(_huggingface(environ))
        case "lmstudio":
            found = _of_files([_home(environ) / ".lmstudio/models", _home(environ) / ".cache/lm-studio/models"])
        case "ollama":
            found = _of_ollama(Path(environ.get("OLLAMA_MODELS") or _home(environ) / ".ollama/models"))
        case _:
            folder = Path(source).expanduser()
            if not folder.is_dir():
                raise FindingError(f"{source} is no folder, and none of {', '.join(SOURCES)}")
            found = _of_files([folder])
    return sorted(found, key=lambda model: (model.name, str(model.path)))


def _names(model: FoundModel) -> Iterator[str]:
    """The shortest first; the last one has its whole path."""
    folders = model.path.absolute().parts[:-1]
    for n_folders in range(len(folders) + 1):
        yield "/".join((*folders[len(folders) - n_folders :], model.name))


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _huggingface(environ: Mapping[str, str]) -> Iterable[Path]:
    if (cache := environ.get("HF_HUB_CACHE")) is not None:
        hub = Path(cache)
    elif (home := environ.get("HF_HOME")) is not None:
        hub = Path(home) / "hub"
    else:
        hub = Path(environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache") / "huggingface/hub"
    return sorted(hub.glob("models--*/snapshots/*"))


def _of_files(folders: Iterable[Path]) -> Iterator[FoundModel]:
    for folder in folders:
        for path in sorted(folder.rglob("*.gguf")):
            if _LATER_PART.search(path.stem) is None and path.is_file():
                yield FoundModel(_FIRST_PART.sub("", path.stem), path)


def _of_ollama(models: Path) -> Iterator[FoundModel]:
    """Its files are named by their digests; manifests say what they are."""
    for manifest in sorted((models / "manifests").glob("*/*/*/*")):
        digest = _model_digest(manifest)
        if digest is None:
            continue
        path = models / "blobs" / digest.replace(":", "-")
        host, owner, name, tag = manifest.parts[-4:]
        del host
        shown = name if owner == "library" else f"{owner}/{name}"
        if path.is_file():
            yield FoundModel(shown if tag == "latest" else f"{shown}:{tag}", path)


def _model_digest(manifest: Path) -> str | None:
    try:
        if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
            return None
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_one = len(digests) == 1 and isinstance(digests[0], str)
    return digests[0] if is_one and re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]) else None


def _is_language_model(path: Path) -> bool:
    try:
        header = read_gguf_header(path)
    except GgufError:
        return False
    architecture = str(header.metadata.get("general.architecture", ""))
    is_model = header.metadata.get("general.type", "model") == "model" and architecture not in _NO_LANGUAGE_MODELS
    is_whole = header.n_header_bytes + sum(tensor.n_bytes for tensor in header.tensors) <= header.n_file_bytes
    return is_model and is_whole and not _gives_vectors(header, architecture)


def _gives_vectors(header: GgufHeader, architecture: str) -> bool:
    return header.metadata.get(f"{architecture}.pooling_type", 0) != 0
