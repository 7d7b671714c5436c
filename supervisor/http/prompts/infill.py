"""Infill: the prompt for what stands between two texts, of the vocabulary's fill-in-the-middle (FIM) tokens, as
llama-server builds it:

    [REP]myproject
    [SEP]FILE
    …            for each further file, then
    [SEP]filename
    [PRE]before[SUF]after[MID]

Pure but for the vocabulary. Where that does not fit, the further files lose their beginning first; then what stands
before the gap and after it are cut to three quarters and one of the room, next to the gap being kept. llama-server
cuts both to a batch, however much room there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luce.supervisor.text import TextModel
    from luce.supervisor.text.vocabulary import VocabularyInfo

PROJECT = "myproject\n"
FILE = "filename\n"
BETWEEN_FILES = "\n\n--- snippet ---\n\n"
"""For vocabularies without [SEP]."""


class NoInfillError(Exception):
    """The vocabulary lacks what it takes: the text names that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infill:
    after: str
    middle: str = ""
    """The answer's beginning, as the client has it already; what its special tokens spell counts as them."""
    files: Sequence[tuple[str, str]] = ()
    """Names and texts, the nearest last."""
    n_most: int | None = None
    """Tokens of the prompt; None: as many as it has."""


@dataclass(frozen=True, slots=True)
class GapTokens:
    before: int
    after: int
    middle: int


def infill_prompt(model: TextModel, before: str | Sequence[int], infill: Infill) -> tuple[list[int], list[int]]:
    """The ids, and where further files end in them: the next prompt is likely to part from this one behind those.
    Raises NoInfillError, TextError."""
    tokens = gap_tokens(model.info)
    files, ends = _files(model, infill.files)
    prefix = model.tokenize(before) if isinstance(before, str) else list(before)
    suffix = model.tokenize(infill.after)
    middle = model.tokenize(infill.middle, parse_special=True)
    bos = [model.info.bos] if model.info.add_bos and model.info.bos is not None else []
    if infill.n_most is not None:
        room = max(infill.n_most - len(bos) - len(middle) - 3, 0)
        n_files = min(len(files), max(room - len(prefix) - len(suffix), 0))
        n_suffix = min(len(suffix), max(room // 4, room - len(prefix)))
        n_prefix = min(len(prefix), room - n_suffix)
        ends = [end - (len(files) - n_files) for end in ends]
        files, prefix, suffix = _last(files, n_files), _last(prefix, n_prefix), suffix[:n_suffix]
    ids = [*files, *bos, tokens.before, *prefix, *middle, tokens.after, *suffix, tokens.middle]
    return ids, [end for end in ends if end > 0]


def gap_tokens(info: VocabularyInfo) -> GapTokens:
    """Raises NoInfillError."""
    before, after, middle = info.fim_pre, info.fim_suf, info.fim_mid
    if before is None or after is None or middle is None:
        named = {"prefix": before, "suffix": after, "middle": middle}
        missing = ", ".join(name for name, token in named.items() if token is None)
        raise NoInfillError(f"its vocabulary has no token for {missing}")
    return GapTokens(before, after, middle)


def _files(model: TextModel, files: Sequence[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """The ids of what stands before the text itself, and the end of each file in them."""
    separator = model.info.fim_sep
    ids: list[int] = []
    ends: list[int] = []
    if model.info.fim_rep is not None:
        ids += [model.info.fim_rep, *model.tokenize(PROJECT)]
    for name, text in files:
        ids += model.tokenize(BETWEEN_FILES) if separator is None else [separator, *model.tokenize(f"{name}\n")]
        ids += model.tokenize(text)
        ends.append(len(ids))
    if separator is not None:
        ids += [separator, *model.tokenize(FILE)]
    return ids, ends


def _last(ids: list[int], n: int) -> list[int]:
    return ids[len(ids) - n :]
