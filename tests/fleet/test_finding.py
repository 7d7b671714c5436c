"""Models that other programs have brought here: found by what the files say, not by what they are called."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from luce.supervisor.models.finding import FindingError, find_models


def link(path: Path, target: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def names(source: str, home: Path, **environ: str) -> list[str]:
    return [model.name for model in find_models([source], {"HOME": str(home), **environ})]


def test_a_folder_and_its_folders(tiny_model: Path, tmp_path: Path) -> None:
    link(tmp_path / "one.gguf", tiny_model)
    link(tmp_path / "deeper" / "two-00001-of-00002.gguf", tiny_model)
    link(tmp_path / "deeper" / "two-00002-of-00002.gguf", tiny_model)
    (tmp_path / "torn.gguf").write_bytes(b"GGUF" + bytes(30))
    (tmp_path / "half.gguf").write_bytes(tiny_model.read_bytes()[: tiny_model.stat().st_size // 2])
    (tmp_path / "readme.txt").write_text("no model")
    assert names(str(tmp_path), tmp_path) == ["one", "two"]


def test_drafts_are_no_models(tiny_model: Path, tmp_path: Path) -> None:
    link(tmp_path / "draft.gguf", tiny_model.with_name("luce-tiny-dflash-Q8_0.gguf"))
    link(tmp_path / "model.gguf", tiny_model)
    assert names(str(tmp_path), tmp_path) == ["model"]


def test_files_of_one_name_are_told_apart_by_their_folder(tiny_model: Path, tmp_path: Path) -> None:
    link(tmp_path / "a" / "m.gguf", tiny_model)
    link(tmp_path / "b" / "m.gguf", tiny_model)
    link(tmp_path / "c" / "b" / "m.gguf", tiny_model)
    assert names(str(tmp_path), tmp_path) == ["m", "b/m", "c/b/m"]
    found = find_models([str(tmp_path / "b"), str(tmp_path / "a"), str(tmp_path / "b")])
    assert [(model.name, model.path.parent.name) for model in found] == [("m", "b"), ("a/m", "a")]


def test_huggingface(tiny_model: Path, tmp_path: Path) -> None:
    snapshot = Path("models--org--m-GGUF/snapshots/0123/m-Q8_0.gguf")
    link(tmp_path / ".cache/huggingface/hub" / snapshot, tiny_model)
    assert names("huggingface", tmp_path) == ["m-Q8_0"]
    link(tmp_path / "elsewhere" / snapshot, tiny_model)
    assert names("huggingface", tmp_path / "nobody", HF_HUB_CACHE=str(tmp_path / "elsewhere")) == ["m-Q8_0"]
    assert names("huggingface", tmp_path / "nobody") == []


def test_lm_studio(tiny_model: Path, tmp_path: Path) -> None:
    link(tmp_path / ".lmstudio/models/publisher/repository/m.gguf", tiny_model)
    assert names("lmstudio", tmp_path) == ["m"]


def test_ollama(tiny_model: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"any").hexdigest()
    link(tmp_path / f".ollama/models/blobs/sha256-{digest}", tiny_model)
    manifests = tmp_path / ".ollama/models/manifests/registry.ollama.ai"
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest: dict[str, object] = {"layers": [{"mediaType": "other", "digest": "sha256:0"}, layer]}
    for place, content in {
        "library/m/latest": json.dumps(manifest),
        "library/m/8b": json.dumps(manifest),
        "someone/n/latest": json.dumps(manifest),
        "library/escapes/latest": json.dumps({"layers": [layer | {"digest": "sha256:../../x"}]}),
        "library/torn/latest": "{",
    }.items():
        path = manifests / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert names("ollama", tmp_path) == ["m", "m:8b", "someone/n"]


def test_a_place_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(FindingError, match="none of huggingface, lmstudio, ollama"):
        find_models([str(tmp_path / "missing")])
