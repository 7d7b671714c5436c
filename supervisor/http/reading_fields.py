"""The field `luce` of a request's body, and the headers that stand in for it: how much of the prompt is to be read. The
same in every dialect.

Types are pydantic's affair; ranges are checked here. Must not know messages, prompts or engines. Every refusal names
its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from luce.protocol import Reading, ReadingArgs
from luce.supervisor.http.sampling_fields import INT32_MAX, Real, Whole, refuse

PREFILL_HEADER = "X-Luce-Prefill"
KEEP_HEADER = "X-Luce-Prefill-Keep"


class LuceFields(BaseModel):
    """What is ours alone. A name that is not known here is refused: nobody else's client sends this field."""

    model_config = ConfigDict(extra="forbid")

    prefill: Literal["full", "auto", "sparse"] | None = None
    prefill_keep: Real | None = None
    prefill_from: Whole | None = None


class ReadingFields(BaseModel):
    model_config = ConfigDict(extra="allow")

    luce: LuceFields | None = None


def read_reading(body: ReadingFields, headers: Mapping[str, str]) -> ReadingArgs:
    """What the body says, and where it says nothing the headers. Raises ApiError."""
    fields = body.luce or LuceFields()
    share = _header_share(headers) if fields.prefill_keep is None else fields.prefill_keep
    param = KEEP_HEADER if fields.prefill_keep is None else "luce.prefill_keep"
    if share is not None and not 0 < share <= 1:
        raise refuse(param, "it must be above 0 and at most 1.")
    n_from = fields.prefill_from
    if n_from is not None and not 0 <= n_from <= INT32_MAX:
        raise refuse("luce.prefill_from", f"it must be from 0 to {INT32_MAX}.")
    prefill = _header_prefill(headers) if fields.prefill is None else Reading(fields.prefill)
    return ReadingArgs(prefill=prefill, share=share, n_from=n_from)


def _header_prefill(headers: Mapping[str, str]) -> Reading | None:
    value = headers.get(PREFILL_HEADER)
    if value is None:
        return None
    try:
        return Reading(value.strip().lower())
    except ValueError:
        raise refuse(PREFILL_HEADER, f"it must be {', '.join(Reading)}.") from None


def _header_share(headers: Mapping[str, str]) -> float | None:
    value = headers.get(KEEP_HEADER)
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        raise refuse(KEEP_HEADER, "it must be a number.") from None
