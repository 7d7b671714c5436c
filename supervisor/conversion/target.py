"""Target: what a conversion takes from the model that the drafter drafts for, and what it holds the drafter against.

From its GGUF file's header or from its Hugging Face folder. Knows nothing of the drafter's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.supervisor.conversion.draft_config import CONFIG_NAME, MAX_CONFIG_BYTES, MAX_LAYERS, DraftConfig
from luce.supervisor.conversion.reading import ConversionError, Fields, read_json_file, shown
from luce.supervisor.conversion.tokenizer import (
    TOKENIZER_NAME,
    Entries,
    entries_of_folder,
    entries_of_gguf,
    first_difference,
    n_tokens,
)
from luce.supervisor.models.gguf_header import GgufError, GgufHeader, read_gguf_header

_ITS_OWN = "name the target that this drafter was made for"


@dataclass(frozen=True, slots=True)
class Target:
    """None: not known."""

    path: Path
    tokenizer: Entries
    n_embd: int | None = None
    n_layers: int | None = None
    rope_base: float | None = None
    has_sections: bool = False  # of its rotation (text, height, width): the drafter's batches must look alike
    scales_embeddings: bool = False  # by the square root of their width, as Gemma does


def read_target(draft_folder: Path, config: DraftConfig, target: Path | None) -> Target:
    """Raises ConversionError, also where it does not fit the drafter."""
    if target is None:
        if not (draft_folder / TOKENIZER_NAME).exists():
            raise ConversionError(
                draft_folder, TOKENIZER_NAME, "there is none, so the vocabulary has to come from the target",
                "name the target's GGUF file or folder with --target",
            )  # fmt: skip
        return Target(draft_folder, entries_of_folder(draft_folder, config.n_vocab))
    found = _of_folder(target, config) if target.is_dir() else _of_gguf(target)
    _check_fit(config, found)
    # A vocabulary of the same size may be another one; a checkpoint that has its own beside it tells.
    difference = first_difference(draft_folder, found.tokenizer)
    if difference is not None:
        own, other = shown(difference.text), shown(difference.other)
        problem = f"token {difference.token} is {own} here and {other} in {found.path}"
        raise ConversionError(draft_folder / TOKENIZER_NAME, "model.vocab", problem, _ITS_OWN)
    return found


def _of_gguf(path: Path) -> Target:
    try:
        header = read_gguf_header(path)
    except GgufError as error:
        raise ConversionError(path, "", str(error).removeprefix(f"{path}: "), "name another target") from error
    architecture = header.metadata.get("general.architecture")
    sections = header.metadata.get(f"{architecture}.rope.dimension_sections")
    base = header.metadata.get(f"{architecture}.rope.freq_base")
    n_layers = _count(header, f"{architecture}.block_count")
    n_heads_of_mtp = _count(header, f"{architecture}.nextn_predict_layers") or 0
    return Target(
        path,
        entries_of_gguf(path),
        n_embd=_count(header, f"{architecture}.embedding_length"),
        n_layers=None if n_layers is None else max(n_layers - n_heads_of_mtp, 0),
        rope_base=base if isinstance(base, float) and base > 0 else None,
        has_sections=isinstance(sections, tuple) and any(sections),
        scales_embeddings=isinstance(architecture, str) and architecture.startswith("gemma"),
    )


def _count(header: GgufHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _of_folder(folder: Path, config: DraftConfig) -> Target:
    path = folder / CONFIG_NAME
    whole = Fields(path, read_json_file(path, MAX_CONFIG_BYTES, "name the target's GGUF file or folder"))
    architectures = whole.optional_texts("architectures") or [""]
    text = whole.section("text_config") if whole.has("text_config") else whole
    # Before the tokenizer, whose vocabulary is padded to the size: how many tokens it names says nothing of that.
    n_vocab = text.optional_count("vocab_size") or whole.optional_count("vocab_size")
    if n_vocab is not None:
        _check_vocab_size(config, folder, n_vocab)
    rope = text.section("rope_parameters" if text.has("rope_parameters") else "rope_scaling")
    rope_base = rope.optional_number("rope_theta", positive=True) or text.optional_number("rope_theta", positive=True)
    return Target(
        folder,
        entries_of_folder(folder, config.n_vocab),
        n_embd=text.count("hidden_size"),
        n_layers=text.count("num_hidden_layers", most=MAX_LAYERS),
        rope_base=rope_base,
        has_sections=rope.has("mrope_section"),
        scales_embeddings=architectures[0].startswith("Gemma"),
    )


def _check_vocab_size(config: DraftConfig, target: Path, n_vocab: int) -> None:
    if n_vocab != config.n_vocab:
        problem = f"the drafter knows {config.n_vocab} tokens, {target} has {n_vocab}"
        raise config.refusal("vocab_size", problem, _ITS_OWN)


def _check_fit(config: DraftConfig, target: Target) -> None:
    _check_vocab_size(config, target.path, n_tokens(target.tokenizer))
    if target.n_embd is not None and target.n_embd != config.n_embd:
        raise config.refusal("hidden_size", f"it is {config.n_embd}, that of {target.path} {target.n_embd}", _ITS_OWN)
    if target.n_layers is None:
        return
    if config.n_target_layers is not None and config.n_target_layers != target.n_layers:
        problem = f"it is {config.n_target_layers}, {target.path} has {target.n_layers}"
        raise config.refusal("num_target_layers", problem, _ITS_OWN)
    if max(config.target_layer_ids) >= target.n_layers:
        problem = f"{max(config.target_layer_ids)} is no layer of {target.path}, which has {target.n_layers}"
        raise config.refusal("target_layer_ids", problem, _ITS_OWN)
