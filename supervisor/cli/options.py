"""The options that several commands share, each spelled once: the engine's, and sampling.

A decorator adds them to a command; the matching reader turns click's values into the typed value below. Checks what can
be checked without the model; the daemon checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from luce.supervisor.cli.entry import EXIT_START_FAILED, Failure
from luce.supervisor.cli.model_files import NO_DRAFT, read_draft, read_model, read_packaged_draft
from luce.supervisor.cli.numbers import Bytes, NumberOrAuto, PositionSpans, Real
from luce.supervisor.config import CACHE_TYPES, FLASH_ATTENTION, KVFLASH_POLICIES, LOG_LEVELS, DaemonConfig
from luce.supervisor.engine.locate import NotInstalledError, find_luced

if TYPE_CHECKING:
    from luce.protocol import SamplingArgs

F = TypeVar("F", bound=Callable[..., Any])

_MAX_INT32 = 2**31 - 1

POSITIVE = click.IntRange(min=1, max=_MAX_INT32)
NOT_NEGATIVE = click.IntRange(min=0, max=_MAX_INT32)
SEED = click.IntRange(min=0, max=2**64 - 1)

_MODEL_HELP = "GGUF file of the model; of a split model the first part. Without it: the small one in the package."


def model_option(function: F) -> F:
    return click.option("--model", metavar="FILE", type=click.Path(path_type=Path), help=_MODEL_HELP)(function)


def engine_options(function: F) -> F:
    """Every option of luced that shapes the engine."""
    for option in reversed(_ENGINE_OPTIONS):
        function = option(function)
    return model_option(function)


_ENGINE_OPTIONS = (
    click.option(
        "--ctx",
        type=POSITIVE,
        metavar="N",
        help="Longest text of one lane, prompt and answer, in tokens. Default: what the model was trained for, at most"
        " 32768 and --pool; with --kvflash all of it. Beyond the training it warns and works.",
    ),
    click.option(
        "--pool",
        type=POSITIVE,
        metavar="N",
        help="Cells of the attention cache, one a token, that all lanes share; at least --ctx. When running lanes"
        " outgrow it, the youngest pauses. Default: --ctx.",
    ),
    click.option("--lanes", type=POSITIVE, metavar="N", help="Generations that decode together. Default: 4."),
    click.option(
        "--queue",
        type=NOT_NEGATIVE,
        metavar="N",
        help="Generations that may wait beyond those that have a lane; one more is refused. Default: 256.",
    ),
    click.option(
        "--batch", type=POSITIVE, metavar="N", help="Most tokens of one call to the model. Default: --ubatch."
    ),
    click.option(
        "--ubatch",
        type=POSITIVE,
        metavar="N",
        help="Most tokens of a prompt that are read between two steps of the running lanes. Default: 512.",
    ),
    click.option("--threads", type=POSITIVE, metavar="N", help="CPU threads. Default: one a physical core."),
    click.option(
        "--gpu-layers",
        type=NOT_NEGATIVE,
        metavar="N",
        help="Layers that lie on the GPU; 0: none. Default: all, where there is a GPU.",
    ),
    click.option(
        "--cache-type-k",
        type=click.Choice(CACHE_TYPES),
        help="Number format of the attention cache's keys. Default: q8_0 on a CPU (bf16 where the head size does not"
        " divide), f16 on a GPU.",
    ),
    click.option(
        "--cache-type-v",
        type=click.Choice(CACHE_TYPES),
        help="The same for its values. Default: by the same rule.",
    ),
    click.option(
        "--flash-attn", type=click.Choice(FLASH_ATTENTION), help="Flash attention. Default: auto, where there is one."
    ),
    click.option(
        "--slots",
        type=click.IntRange(min=0, max=1 << 20),
        metavar="N",
        help="Numbered snapshots; they live within --host-cache. Default: 256.",
    ),
    click.option(
        "--host-cache",
        type=Bytes(),
        metavar="BYTES",
        help="Memory of the host for what texts leave behind: pages that left the pool, tails, slots; K, M, G and T"
        " stand for powers of 1024. Default: a quarter of what is free, at most 8G.",
    ),
    click.option(
        "--disk-cache",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep pages and tails in files there, found again after a restart. Default: nowhere.",
    ),
    click.option("--disk-budget", type=Bytes(), metavar="BYTES", help="Most bytes of all files there. Default: 32G."),
    click.option(
        "--prefix-cache",
        type=click.Choice(["on", "off"]),
        help="Look for known prefixes of prompts, so that they need not be read again. Default: on.",
    ),
    click.option(
        "--kvflash",
        type=NumberOrAuto("tokens", 1, 2**31 - 1),
        metavar="N|auto",
        help="In place of --pool: N tokens of attention cache on the device, a multiple of 64, for texts of any length"
        " up to --ctx. What does not fit lies in the host, within --host-cache, and comes back when it matters."
        " auto: as many as the free memory holds and decoding stays fast with; the log tells the sum."
        " Default: off; texts have to fit --pool.",
    ),
    click.option(
        "--kvflash-tau",
        type=click.IntRange(min=1, max=1 << 16),
        metavar="N",
        help="Tokens of an answer after which it is looked anew at what matters. Default: 64.",
    ),
    click.option(
        "--kvflash-policy",
        type=click.Choice(KVFLASH_POLICIES),
        help="What of a text that does not fit stays on the device. query: what the model's own attention asks for, and"
        " the newest. draft: what a small model's attention asks for (--kvflash-scorer), and they. lru: the newest."
        " Default: auto, query where the model allows it, else draft where there is a scorer.",
    ),
    click.option(
        "--kvflash-scorer",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The small model of --kvflash-policy draft, a GGUF file: one with attention in all layers and any"
        " vocabulary. --draft-threads and --draft-gpu-layers are for it as well.",
    ),
    click.option(
        "--kvflash-scorer-cache-type",
        type=click.Choice(CACHE_TYPES),
        help="Type of its cached keys and values. Default: as luced would choose.",
    ),
    click.option(
        "--kvflash-pin",
        type=PositionSpans(),
        metavar="A:B,…",
        help="Positions of every text that stay on the device, from A up to before B, in whole pages of 64: a system"
        " prompt, say. Each lane needs room for them. Default: none but the first page.",
    ),
    click.option(
        "--kvflash-layer",
        type=NumberOrAuto("layer", 0, 1 << 16),
        metavar="N|auto",
        help="The layer whose attention `query` goes by. Default: auto, the one that finds best what a text holds,"
        " which is found out at the first start with a model and kept below XDG_CACHE_HOME (~/.cache).",
    ),
    click.option(
        "--draft",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Draft model, which proposes tokens that the model checks several at a time; the text stays the same: a"
        " GGUF file, a folder with one, or the folder of a DFlash checkpoint from Hugging Face, converted once."
        " Default: none; for the packaged model the packaged one (none: without it).",
    ),
    click.option(
        "--mtp",
        is_flag=True,
        help="Draft with the model's own multi-token heads, or with those that --draft names: heads or an assistant.",
    ),
    click.option(
        "--draft-max",
        type=click.IntRange(min=0, max=64),
        metavar="N",
        help="Most tokens that are drafted at once; 0: never speculate. Default: up to 15, as many as the gate"
        " finds worth it.",
    ),
    click.option(
        "--draft-gate",
        type=click.Choice(["on", "off"]),
        help="Measure what drafts cost and bring, up to 0.6 seconds at the start and ever after, and draft only as far"
        " as it pays; off: always as far as it goes. Default: on.",
    ),
    click.option(
        "--draft-accept",
        type=click.Choice(["match", "rejection"]),
        help="Does nothing: a drafted token is kept if it is the one that would have come without drafts (match)."
        " rejection was removed and is refused.",
    ),
    click.option(
        "--draft-ngram",
        type=click.Choice(["on", "off"]),
        help="Draft what followed the same words earlier in the text, which needs no model. Default: on.",
    ),
    click.option(
        "--draft-tree",
        type=click.IntRange(min=0, max=256),
        metavar="BUDGET",
        help="Draft a tree of at most so many tokens a step, where the draft model names several tokens a place"
        " (DFlash) and the model has no recurrent state; elsewhere, and with 0, a chain. Default: 0.",
    ),
    click.option(
        "--spec-memory",
        type=Bytes(),
        metavar="BYTES",
        help="Most memory for the states that a recurrent model goes back to when a draft was wrong, one a token, lane"
        " and step; longer drafts cost a copy of the state and computing again what was right. Default: 2 GiB with a"
        " draft model, else 256 MiB.",
    ),
    click.option(
        "--draft-cache-type-k",
        type=click.Choice(CACHE_TYPES),
        help="Number format of the draft model's cached keys. Default: the daemon chooses.",
    ),
    click.option(
        "--draft-cache-type-v",
        type=click.Choice(CACHE_TYPES),
        help="The same for its values. Default: the daemon chooses.",
    ),
    click.option(
        "--draft-gpu-layers",
        type=NOT_NEGATIVE,
        metavar="N",
        help="Layers of the draft model that lie on the GPU; 0: none. Default: all, where there is a GPU.",
    ),
    click.option(
        "--draft-threads", type=POSITIVE, metavar="N", help="CPU threads of the draft model. Default: --threads."
    ),
    click.option("--seed", type=SEED, metavar="N", help="Seed of requests that bring none. Default: random ones."),
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        help="How much of the log goes to stderr; debug holds llama.cpp's own messages too.",
    ),
    click.option(
        "--load-timeout",
        type=NOT_NEGATIVE,
        metavar="S",
        help="Give up loading after S seconds without progress; 0: never. Default: 120.",
    ),
)


def sampling_options(function: F) -> F:
    """How the next token is chosen. The seed is the engine's --seed."""
    for option in reversed(_SAMPLING_OPTIONS):
        function = option(function)
    return function


_SAMPLING_OPTIONS = (
    click.option("--temp", type=Real(min=0), metavar="T", help="Temperature; 0, the default, takes the likeliest."),
    click.option("--top-k", type=NOT_NEGATIVE, metavar="K", help="Only the K likeliest tokens; 0 is off."),
    click.option(
        "--top-p",
        type=Real(min=0, max=1, min_open=True),
        metavar="P",
        help="Only the likeliest tokens that together hold P of the probability; 1 is off.",
    ),
    click.option(
        "--min-p",
        type=Real(min=0, max=1),
        metavar="P",
        help="Only tokens at least P times as likely as the likeliest; 0 is off.",
    ),
    click.option(
        "--repeat",
        type=Real(min=0, min_open=True),
        metavar="R",
        help="Penalty on tokens that have occurred; 1 is off.",
    ),
    click.option("--presence", type=Real(), metavar="P", help="Subtracted once from tokens that have occurred."),
    click.option("--frequency", type=Real(), metavar="P", help="Subtracted for each time a token has occurred."),
)


def read_engine_config(values: Mapping[str, Any], **fixed: Any) -> DaemonConfig:
    """The DaemonConfig of what `engine_options` collected. Raises Failure."""
    shaped = {
        key: values[key]
        for key in (
            "ctx", "pool", "lanes", "queue", "batch", "ubatch", "threads", "gpu_layers", "cache_type_k", "cache_type_v",
            "flash_attn", "slots", "host_cache", "disk_cache", "disk_budget", "prefix_cache", "kvflash",
            "kvflash_tau", "kvflash_policy", "kvflash_scorer", "kvflash_scorer_cache_type", "kvflash_pin",
            "kvflash_layer", "mtp", "draft_max", "draft_gate", "draft_accept", "draft_ngram", "draft_tree",
            "spec_memory", "draft_cache_type_k", "draft_cache_type_v", "draft_gpu_layers", "draft_threads", "seed",
            "log_level", "load_timeout",
        )
    }  # fmt: skip
    model = read_model(values["model"])
    draft = values["draft"]
    if draft is not None:
        shaped["draft"] = None if draft == NO_DRAFT else read_draft(draft, model)
    elif values["model"] is None and wants_packaged_draft(mtp=values["mtp"], draft_max=values["draft_max"]):
        shaped["draft"] = read_packaged_draft()
    return DaemonConfig(model=model, **(shaped | fixed))


def wants_packaged_draft(*, mtp: bool, draft_max: int | None) -> bool:
    """Whether the packaged model is to have its drafter: not if drafts come from elsewhere, or from nowhere."""
    return not mtp and draft_max != 0


def read_sampling(values: Mapping[str, Any]) -> SamplingArgs:
    """The sampling arguments that were given."""
    from luce.protocol import SamplingArgs

    return SamplingArgs(
        temperature=values["temp"],
        top_k=values["top_k"],
        top_p=values["top_p"],
        min_p=values["min_p"],
        repeat_penalty=values["repeat"],
        presence_penalty=values["presence"],
        frequency_penalty=values["frequency"],
        seed=values["seed"],
    )


def read_binary() -> Path:
    """The native daemon. Raises Failure."""
    try:
        return find_luced()
    except NotInstalledError as error:
        raise Failure(str(error), EXIT_START_FAILED) from error
