"""FieldReport: what a field test found, as the JSON file has it, and its schema. Pure; must not know how anything is
measured, nor how it is shown.

Files come from strangers: unknown fields, numbers that are none, long texts and texts of several lines are refused.
Rates are tokens a second, times seconds, sizes bytes, where no name says otherwise.
"""

from __future__ import annotations

import json
import pkgutil
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SCHEMA_FILE = "fieldtest.schema.json"
_MAX_BYTES = 1 << 20

Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One line."""
Name = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
FileName = Annotated[str, Field(max_length=255, pattern=r"^[^/\\\x00-\x1f\x7f]+$")]
"""Without its folder."""
Count = Annotated[int, Field(ge=0, lt=1 << 60)]
Figure = Annotated[float, Field(ge=0, lt=1e18)]
Share = Annotated[float, Field(ge=0, le=1)]
Spread = Annotated[list[Figure], Field(min_length=3, max_length=3)]
"""Median, least and most of the pairs."""
State = Literal["done", "cut", "failed", "left out"]


class ReportError(Exception):
    """The file is no report; the text says where it is wrong."""


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Gpu(_Value):
    name: Name
    memory_bytes: Count


class Machine(_Value):
    system: Name
    architecture: Name
    cpu: Name
    n_cpus: Count
    memory_bytes: Count
    gpus: Annotated[list[Gpu], Field(max_length=64)]
    driver: Name | None
    """Of NVIDIA's cards; None: there is none, or it does not say."""
    load: Figure
    """What other work the machine had before it began: the load average of a minute, for each processor."""


class Model(_Value):
    file: FileName
    header_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Of the file's metadata and list of tensors, which no two models share."""
    file_bytes: Count
    architecture: Name
    n_parameters: Count
    n_context_trained: Count
    weights: Annotated[dict[Name, Share], Field(max_length=64)]
    """How much of the weights has which number format."""


class Engine(_Value):
    version: Name
    llama_cpp: Name
    options: Annotated[list[Text], Field(max_length=200)]
    """That were given beside the model. Of paths, addresses and names only that they were."""
    said: Annotated[dict[Name, Name], Field(max_length=64)]
    """What the engine says of itself when it is ready."""
    plan: Annotated[dict[Name, Count | Name], Field(max_length=64)] | None
    """Where weights, cache and buffers lie, by `luce inspect --plan`; None: there is no GPU."""


class Part(_Value):
    state: State
    why: Text
    """Empty where it is done."""


class Exactness(_Value):
    """An answer computed in another way, against the same read from the start, alone and without drafts."""

    check: Name
    case: Name
    verdict: Literal["passed", "failed", "left out"]
    n_tokens: Count
    """That were compared."""
    logprob_move: Figure | None
    """By which the chosen tokens' logprobs moved at most."""
    told: Text


class Depth(_Value):
    """A prompt of that many tokens which nobody has sent before, and the next turn of its conversation."""

    depth: Count
    n_prompt: Count
    n_samples: Count
    read_per_s: Figure
    cold_first_token_s: Figure
    warm_first_token_s: Figure
    decoded_per_s: Figure | None


class Lanes(_Value):
    """Several answers at once, all their tokens together."""

    n: Count
    n_answer: Count
    tokens_per_s: Figure


class Service(_Value):
    load_s: Annotated[list[Figure], Field(max_length=100)]
    """From the start of `luce serve` until it answers, the model's file being in the page cache or not."""
    process_bytes: Count | None
    """Of the server's processes after the measurements, what they share counted once; None: the system does not say."""
    gpu_bytes: Count | None
    """More of the GPUs' memory in use than before the start."""
    depths: Annotated[list[Depth], Field(max_length=100)]
    lanes: Annotated[list[Lanes], Field(max_length=100)]


class Turn(_Value):
    """One request of an agent's loop: all messages so far, with tools."""

    n_prompt: Count
    n_new: Count
    """Of it, what neither the prompt before nor its answer had: what has to be read in any case."""
    n_read: Count
    """Of it, what was read."""
    first_token_s: Figure
    cold_first_token_s: Figure | None
    """The same prompt, of which nothing is known; None: not asked."""
    n_calls: Count
    is_well_formed: bool
    """Calls fit their tools' schemas, and none stands in the text."""


class Drafted(_Value):
    """One kind of text with drafts and without."""

    kind: Name
    drafted_per_s: Figure
    plain_per_s: Figure
    ratio: Spread
    busy_ratio: Spread | None
    """The same by processor time, which other work on a machine moves less; None: GPUs compute, too."""
    n_drafted: Count
    n_accepted: Count
    is_same_text: bool


class FieldReport(_Value):
    format: Literal[1]
    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    minutes: Figure
    """That it took."""
    volume: Name
    ended: Text
    """Why it ended before all was measured; empty: it did not."""
    notes: Annotated[list[Text], Field(max_length=20)]
    """What the one who ran it says of the machine."""
    machine: Machine
    model: Model
    engine: Engine
    parts: Annotated[dict[Name, Part], Field(max_length=20)]
    exactness: Annotated[list[Exactness], Field(max_length=1000)]
    service: Service
    agent: Annotated[list[Turn], Field(max_length=1000)]
    drafts: Annotated[list[Drafted], Field(max_length=100)]

    def to_json(self) -> bytes:
        return (self.model_dump_json(indent=1) + "\n").encode()


def read_report(path: Path) -> FieldReport:
    """Raises ReportError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise ReportError(f"{path} has more than {_MAX_BYTES:,} bytes: no report is so long")
    try:
        report = FieldReport.model_validate_json(data)
        date.fromisoformat(report.day)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ReportError(f"{path} is no report of luce fieldtest: {place}: {first['msg']}") from None
    except ValueError as error:
        raise ReportError(f"{path} is no report of luce fieldtest: day: {error}") from None
    return report


def schema() -> dict[str, Any]:
    """JSON Schema of the file, as the package has it for other programs."""
    data = pkgutil.get_data(__name__, SCHEMA_FILE)
    assert data is not None, "the schema lies beside this file"
    read: dict[str, Any] = json.loads(data)
    return read
