"""The records of commands.json. Made of it by cmake/make_protocol.py: change that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .ratios import HitShare, SpeculationRatios


class SamplerKind(StrEnum):
    """The links of a sampler chain, by llama.cpp's names, in its order."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYP_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"


class StopReason(StrEnum):
    """Why a generation ended."""

    EOS = "eos"
    LIMIT = "limit"
    STOP = "stop"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class SamplingArgs:
    """How tokens are chosen. A default is what luced does where a line does not say."""

    temperature: float | None = None
    """Temperature; 0, the default, is greedy."""
    top_k: int | None = None
    """0: off."""
    top_p: float | None = None
    """1: off."""
    min_p: float | None = None
    """0: off."""
    repeat_penalty: float | None = None
    """Repetition penalty; 1: off."""
    presence_penalty: float | None = None
    """Presence penalty; 0: off."""
    frequency_penalty: float | None = None
    """Frequency penalty; 0: off."""
    repeat_last_n: int | None = None
    """Tokens that the three look back on, at most 262,144; 0: off; default 64."""
    dry_multiplier: float | None = None
    """DRY's multiplier, against repetitions; 0: off."""
    dry_base: float | None = None
    """Its base; below 1: off; default 1.75."""
    dry_allowed_length: int | None = None
    """Length of a repetition that it does not mind; default 2."""
    dry_last_n: int | None = None
    """Tokens that it looks back on, at most 262,144; 0: off; default 64."""
    dry_breakers: tuple[str, ...] | None = None
    """Texts that end a repetition; default: line end, `:`, `"` and `*`."""
    typical_p: float | None = None
    """Locally typical sampling; 1: off."""
    top_n_sigma: float | None = None
    """Standard deviations below the largest logit; 0: off."""
    xtc_probability: float | None = None
    """Chance that the likeliest tokens are left out; 0: off."""
    xtc_threshold: float | None = None
    """Probability above which they may be; above 0.5: off; default 0.1."""
    dynatemp_range: float | None = None
    """How far the temperature may go up and down with the entropy; 0: off."""
    dynatemp_exponent: float | None = None
    """How it follows; default 1."""
    order: tuple[SamplerKind, ...] | None = None
    """The links of the chain; those that are not named are off; default: all, in this order."""
    seed: int | None = None
    """Of this request's own random stream; default: `--seed`, or a fresh one."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logit; `-inf`: never that token."""


@dataclass(frozen=True, slots=True)
class Speculation(SpeculationRatios):
    """What speculation did. A step is a call of the model behind the one that gave the first token; times are wall
    seconds, a lane's share of a call that served several."""

    n_drafted: int = 0
    """Tokens that were proposed and checked."""
    n_accepted: int = 0
    """Of them."""
    n_steps: int = 0
    """That gave a lane at least one token."""
    n_speculated_steps: int = 0
    """Of them, those that checked drafted tokens."""
    draft_s: float = 0.0
    """Spent on drafts."""
    verify_s: float = 0.0
    """Of the speculated steps."""


@dataclass(frozen=True, slots=True)
class ExpertReads(HitShare):
    """Experts that a text's tokens read, of a mixture whose experts lie partly in the host's memory."""

    n_hits: int = 0
    """The device had them."""
    n_misses: int = 0
    """The host had them."""


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """What a generation took. Counts are tokens, times are seconds by the clock."""

    n_prompt: int = 0
    """Of the prompt."""
    n_read: int | None = None
    """Of the prompt, where only parts of it were read."""
    n_generated: int = 0
    """Of the answer."""
    n_reused: int = 0
    """Of what is read: not computed again."""
    tier: str = "none"
    """Where these lay: none, resident, host, disk."""
    miss: str = "off"
    """Why not more: none, no_tail, evicted, differs_at:<pos>, identity, off."""
    restored: int | None = None
    """Where a `restore=` began to compute."""
    prefill_s: float = 0.0
    """From the lane to the first token."""
    decode_s: float = 0.0
    """From there to the end."""
    decode_tokens_per_s: float = 0.0
    """Of the tokens behind the first, which comes out of the prompt."""
    speculation: Speculation | None = None
    """Where the engine speculates, and there was a step."""
    experts: ExpertReads | None = None
    """Of a mixture whose experts lie in two memories."""
    stop: StopReason = StopReason.LIMIT
    """Why it ended."""
