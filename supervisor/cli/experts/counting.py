"""Has an engine read texts and answer them, and reads which experts it used. Knows the engine's options, and which
tensors of a model's file are experts; not what their uses mean.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luce.protocol import Generate
from luce.supervisor.cli.engine_session import engine_session, events_within
from luce.supervisor.cli.entry import EXIT_OK, EXIT_REFUSED, EXIT_START_FAILED, Failure, run_async
from luce.supervisor.cli.experts.profile_file import PHASES, ExpertProfile, ProfileError, parse_profile
from luce.supervisor.cli.experts.sessions import SessionText
from luce.supervisor.cli.model_files import text_model
from luce.supervisor.cli.options import read_binary, read_engine_config
from luce.supervisor.cli.progress import progress
from luce.supervisor.config import DaemonConfig
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.models.gguf_header import GgufError, read_gguf_header
from luce.supervisor.text import TextModel

_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(?:up|down|gate|gate_up)_exps\.weight")
_MOST_TOKEN_CHARACTERS = 16  # on average: more of a text than is read need not be cut into tokens


@dataclass(frozen=True, slots=True)
class Counted:
    profile: ExpertProfile
    n_texts: int
    n_read: int
    """Tokens of texts."""
    n_written: int
    """Tokens of answers."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """In tokens: how much of a text is read, and how long its answer is."""

    text: int
    answer: int


def counting_config(values: Mapping[str, Any], lengths: Lengths) -> tuple[DaemonConfig, dict[int, int]]:
    """The engine, and how many experts each layer has. It knows no prefix and drafts nothing: all that is used is
    counted, and once. Raises Failure, also for what is no mixture."""
    values = {**values, "log_level": values["log_level"] or "warn"}
    config = read_engine_config(
        values,
        lanes=1,
        ctx=lengths.text + lengths.answer,
        prefix_cache="off",
        draft=None,
        mtp=False,
        draft_max=0,
        expert_profiles=None,
        experts_fixed=False,
    )
    try:
        tensors = read_gguf_header(config.model).tensors
    except GgufError as error:
        raise Failure(str(error), EXIT_REFUSED) from None
    found = ((_EXPERTS.fullmatch(tensor.name), tensor.shape[-1]) for tensor in tensors)
    layers = {int(match[1]): n for match, n in found if match is not None}
    if not layers:
        raise Failure(f"{config.model} is no mixture: it has no experts to count", EXIT_REFUSED)
    return config, layers


def load_profile(path: Path) -> ExpertProfile:
    """Raises Failure."""
    try:
        return parse_profile(path.read_bytes())
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", EXIT_REFUSED) from None
    except ProfileError as error:
        raise Failure(f"{path}: {error}", EXIT_REFUSED) from None


def count(config: DaemonConfig, texts: Sequence[SessionText], lengths: Lengths, keep_as: Path | None = None) -> Counted:
    """`keep_as`: where the profile is left, whole or not at all. Raises Failure."""
    binary, found = read_binary(), [0, 0, 0]
    folder = None if keep_as is None else keep_as.parent
    with tempfile.TemporaryDirectory(prefix=".luce-experts-", dir=folder) as scratch, text_model(config.model) as text:
        file = Path(scratch) / "profile"
        config = replace(config, expert_profile=file)
        with progress("loading", len(texts)) as advance:
            code = run_async(lambda: _read_all(binary, config, text, texts, lengths, found, advance))
        if code != EXIT_OK:
            raise Failure("stopped before all texts were read", code)
        if not file.exists():
            raise Failure("luced has counted no experts", EXIT_START_FAILED)
        profile = load_profile(file)
        if not any(map(any, (counts for phase in PHASES for counts in profile.uses(phase)))):
            raise Failure("no expert was used: the texts have no tokens", EXIT_REFUSED)
        if keep_as is not None:
            file.replace(keep_as)
    return Counted(profile, *found)


async def _read_all(
    binary: Path,
    config: DaemonConfig,
    text: TextModel,
    texts: Sequence[SessionText],
    lengths: Lengths,
    found: list[int],
    advance: Callable[[str], None],
) -> int:
    """Fills `found`: how many texts, tokens that were read, tokens that were written."""
    async with engine_session(binary, config) as client:
        for number, one in enumerate(texts, 1):
            cut = one.text[: lengths.text * _MOST_TOKEN_CHARACTERS]
            prompt = tuple(text.tokenize(cut, add_special=True)[: lengths.text])
            n_written = 0
            if prompt:
                request = Generate(prompt=prompt, n_generate=lengths.answer, ignore_eos=True)
                async with await client.generate(request) as generation:
                    n_written = sum([isinstance(event, TokenEvent) async for event in events_within(generation)])
            for at, n in enumerate((int(bool(prompt)), len(prompt), n_written)):
                found[at] += n
            advance(f"{one.name}: {len(prompt):,} tokens read, {n_written:,} written, {number} of {len(texts)}")
    return EXIT_OK
