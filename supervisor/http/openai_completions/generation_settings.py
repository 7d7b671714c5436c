"""`generation_settings` of llama-server's answers: what an answer was made with, the server's defaults included.

Pure.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from luce.protocol import SamplingArgs
from luce.protocol.command_table import SAMPLING_DEFAULTS
from luce.supervisor.http.prompts.answer_request import AnswerRequest, TextPrompt

_NAMES = {"dry_last_n": "dry_penalty_last_n", "dry_breakers": "dry_sequence_breakers", "order": "samplers"}
_NOT_HERE = {"min_keep": 0, "mirostat": 0, "adaptive_target": -1.0, "lora": [], "post_sampling_probs": False}
"""What requests cannot turn on here (sampling_fields.py)."""


def generation_settings(
    asked: AnswerRequest, *, seed: int | None, streams: bool, shows_timings: bool
) -> dict[str, Any]:
    """REQUIRES: `asked` has the server's defaults in it. `seed`: of requests that bring none; None: each its own."""
    assert isinstance(asked.prompt, TextPrompt)
    limit = -1 if asked.max_tokens is None else asked.max_tokens
    return {
        **_sampling(asked.sampling),
        "seed": seed if asked.sampling.seed is None else asked.sampling.seed,
        "n_predict": limit,
        "max_tokens": limit,
        "stop": list(asked.stops),
        "ignore_eos": asked.ignore_eos,
        "stream": streams,
        "n_probs": asked.n_logprobs or 0,
        "timings_per_token": shows_timings,
        "grammar": asked.prompt.grammar or "",
        **_NOT_HERE,
    }


def _sampling(chosen: SamplingArgs) -> dict[str, Any]:
    said = {entry.name: getattr(chosen, entry.name) for entry in fields(chosen)}
    del said["seed"], said["logit_bias"]
    known = SAMPLING_DEFAULTS | {name: value for name, value in said.items() if value is not None}
    biases = [{"token": token, "bias": bias if math.isfinite(bias) else None} for token, bias in chosen.logit_bias]
    return {_NAMES.get(name, name): value for name, value in known.items()} | {"logit_bias": biases}
