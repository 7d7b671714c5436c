"""convert_checkpoint: a drafter's folder in, a GGUF file out. Puts the parts of this package together.

All is read and checked by `prepare`, which writes nothing; then `Prepared.write` does the work.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from luce.supervisor.conversion.draft_config import DraftConfig, read_draft_config
from luce.supervisor.conversion.gguf_output import DraftFile, OutputType, write_draft
from luce.supervisor.conversion.reading import ConversionError
from luce.supervisor.conversion.target import Target, read_target
from luce.supervisor.conversion.weights import PlannedTensor, WeightFile, plan_tensors, read_weight_files


def _ignore(_n_bytes: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was written."""

    path: Path
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checkpoint that has been read and checked, less its tensors' data."""

    name: str
    config: DraftConfig
    target: Target
    files: tuple[WeightFile, ...]
    tensors: tuple[PlannedTensor, ...]
    rope_base: float
    notes: tuple[str, ...]

    @property
    def n_source_bytes(self) -> int:
        return sum(tensor.source.n_bytes for tensor in self.tensors)

    @property
    def n_parameters(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def reads_last_layer(self) -> bool:
        """Of its target, by the target itself or else by config.json; False also where neither says how many it has."""
        n_layers = self.target.n_layers or self.config.n_target_layers
        return n_layers is not None and n_layers - 1 in self.config.target_layer_ids

    def digest(self) -> str:
        """Of all that the result depends on, less the tensors' data."""
        sha256 = hashlib.sha256()
        sha256.update(repr((self.name, self.config, self.rope_base)).encode())
        sha256.update(repr([file.header_sha256 for file in self.files]).encode())
        target = self.target
        sha256.update(repr((target.has_sections, target.scales_embeddings, target.tokenizer)).encode())
        return sha256.hexdigest()

    def write(self, out: Path, output_type: OutputType, on_progress: Callable[[int], None] = _ignore) -> Conversion:
        """Raises ConversionError."""
        _check_place(out, self)
        draft = DraftFile(self.name, self.config, self.target, self.tensors, self.rope_base, output_type)
        write_draft(draft, out, on_progress)
        return Conversion(out, out.stat().st_size)


def prepare(folder: Path, target: Path | None) -> Prepared:
    """`target`: the model's GGUF file or Hugging Face folder; None: the checkpoint has a tokenizer of its own. Raises
    ConversionError."""
    try:
        if not folder.is_dir():
            raise ConversionError(folder, "", "it is no folder", "name a DFlash checkpoint's folder")
        config = read_draft_config(folder)
        files = read_weight_files(folder)
        tensors = plan_tensors(config, files)
        found = read_target(folder, config, target)
    except OSError as error:  # of a folder that may not be looked into
        raise ConversionError(folder, "", error.strerror or str(error), "make it readable") from error
    base, notes = _rope_base(config, found)
    return Prepared(_name(folder), config, found, files, tensors, base, notes)


def convert_checkpoint(
    folder: Path,
    target: Path | None,
    out: Path,
    output_type: OutputType,
    on_progress: Callable[[int], None] = _ignore,
) -> Conversion:
    """`prepare` and `write` in one. Raises ConversionError."""
    return prepare(folder, target).write(out, output_type, on_progress)


def _rope_base(config: DraftConfig, target: Target) -> tuple[float, tuple[str, ...]]:
    own, others = config.rope.base, target.rope_base
    if own is None:
        if others is None:
            raise config.refusal("rope_theta", "it is missing here and in the target", "add it")
        return others, (f"config.json has no rope_theta: the target's, {others:g}, is taken",)
    if others is not None and abs(own - others) > 1e-6 * max(own, others):
        differs = f"the drafter rotates with base {own:g} and its target with {others:g}: config.json's is kept"
        return own, (f"{differs}; where few drafted tokens are accepted, look here first",)
    return own, ()


def _name(folder: Path) -> str:
    name = folder.resolve().name.removesuffix("-hf")
    return name.encode("utf-8", errors="replace").decode() or "drafter"


def _check_place(out: Path, prepared: Prepared) -> None:
    try:
        mode = out.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConversionError(out, "", error.strerror or "it cannot be looked at", "name another place") from error
    if not stat.S_ISREG(mode):
        raise ConversionError(out, "", "it is there already and no regular file", "name another place")
    sources = [prepared.config.path, prepared.target.path, *(file.path for file in prepared.files)]
    if any(source.exists() and out.samefile(source) for source in sources):
        raise ConversionError(out, "", "it is what the conversion reads", "name another place")
