"""What is asked of the supervisor, what it answers, and what it can fail with: plain values for callers.

Knows token ids and the wire's words for sampling and constraints; knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from luce.protocol import (
    MAX_INT32,
    MAX_LOGPROBS,
    MAX_MARKS,
    ConstraintArgs,
    ErrorCode,
    GenerationStats,
    ReadingArgs,
    SamplingArgs,
    StopReason,
)
from luce.supervisor.engine.generation import TokenEvent
from luce.supervisor.engine.image_file import ImageFile

MAX_SEED = 2**64 - 1


def fields_of(record: Any, kind: type) -> dict[str, Any]:
    """The fields that a record has as one of this kind, to make another one of."""
    return {entry.name: getattr(record, entry.name) for entry in fields(kind)}


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt."""

    position: int
    """Where its ids begin."""
    file: ImageFile


@dataclass(frozen=True, slots=True)
class TextSalt:
    """Sets the memory of a text apart from all that have another one, or none."""

    value: int
    begin: int = 0
    """What stands before is common to all."""

    def __post_init__(self) -> None:
        if not 0 <= self.value <= MAX_SEED:
            raise ValueError(f"salt={self.value}: it must be from 0 to 2^64-1")
        if self.begin < 0:
            raise ValueError(f"salt.begin={self.begin}: it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Begun:
    """What there is of an answer already: it goes on from there."""

    tokens: Sequence[int]
    identity: str
    """Of the model that has generated them; no other one goes on with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(SamplingArgs):
    """One request, with how its tokens are chosen. Exactly one of `prompt_ids` and `prompt` is given; None elsewhere
    means the engine's own default. Without a seed the supervisor picks one, so that a restart does not change the text.

    A text in `prompt` is tokenised as `luce run` does it, spellings of control tokens included: it is for people and
    templates, not for what strangers write.
    """

    prompt_ids: Sequence[int] | None = field(default=None, repr=False)
    prompt: str | None = field(default=None, repr=False)
    max_tokens: int = 256
    stop_tokens: Sequence[int] = ()
    min_tokens: int = 0  # before so many, neither a stop token nor one of the model's end tokens is chosen
    ignore_eos: bool = False
    n_logprobs: int = 0  # above 0: token events carry the chosen token's logprob and those of so many others
    n_prompt_logprobs: int | None = None
    """Each token of the prompt behind the first comes with its logprob and those of so many others, before the answer;
    None: none does. The prompt is read whole, and what memory knows of it is not used."""
    constraint: ConstraintArgs = field(default_factory=ConstraintArgs)  # grammar, triggers, reasoning budget
    boundaries: Sequence[int] = ()
    """Positions in the prompt at which messages begin, ascending: where later prompts may part from this one. The text
    layer's `RenderedChat.marks` has them."""
    marks: Sequence[int] = ()
    """Further positions at which later prompts may part from this one: within messages, in any order."""
    turn: int | None = None
    """Where the user's last message ends, if that is known: once the user writes again, a template may leave out of
    what stands behind it what the model has reasoned."""
    pin: Sequence[tuple[int, int]] = ()
    """Positions of the prompt, from the first up to before the second, that the engine's bounded pool (`kvflash`) is to
    hold all the time: a system prompt, a file. Elsewhere all of a running text is there anyway."""
    reading: ReadingArgs = field(default_factory=ReadingArgs)
    """How much of the prompt is read, and of one that is read in parts what in any case, and what whole or not at all.
    Parts are chosen by the engine's `prefill_scorer`. A prompt with images is read whole."""
    images: Sequence[PromptImage] = ()
    """In the prompt, in the order of their positions; `Supervisor.image_ids` says which ids stand there for each."""
    reuse: bool = True  # False: no prefix of the prompt is taken from what the engine remembers
    salt: TextSalt | None = None
    """Only texts with the same one share memory with this one; None: those that have none either."""
    begun: Begun | None = field(default=None, repr=False)
    """Tokens that another supervisor, which is gone now, has generated for it by this `seed`. They count as the
    answer's, and do not come again."""
    client: str = ""  # who asks: the engine's time is shared fairly among clients
    session: str = ""  # what belongs together: with several engines, one that served it before is preferred
    priority: int = 0  # higher first
    queue_timeout_s: float | None = None  # how long it may wait for its turn; None: as the supervisor is configured
    timeout_s: float | None = None  # how long it may take in all; None: as long as it takes

    def __post_init__(self) -> None:
        if (self.prompt_ids is None) == (self.prompt is None):
            raise ValueError("a request has either prompt_ids or prompt")
        for name in ("max_tokens", "min_tokens"):
            if not 0 <= getattr(self, name) <= MAX_INT32:
                raise ValueError(f"{name}={getattr(self, name)}: it must be from 0 to 2^31-1")
        if not 0 <= self.n_logprobs <= MAX_LOGPROBS:
            raise ValueError(f"n_logprobs={self.n_logprobs}: it must be from 0 to {MAX_LOGPROBS}")
        if self.n_prompt_logprobs is not None and not 0 <= self.n_prompt_logprobs <= MAX_LOGPROBS:
            raise ValueError(f"n_prompt_logprobs={self.n_prompt_logprobs}: it must be from 0 to {MAX_LOGPROBS}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed={self.seed}: it must be from 0 to 2^64-1")
        for begin, end in self.pin:
            if not 0 <= begin < end:
                raise ValueError(f"pin=({begin}, {end}): it must begin at 0 or later, and before it ends")
        if len(self.pin) > MAX_MARKS:
            raise ValueError(f"pin has more than {MAX_MARKS} spans")
        if self.begun is not None and self.seed is None:
            raise ValueError("begun is of no use without the seed that its tokens were chosen by")
        _check_reading(self.reading)

    def sampling(self, seed: int) -> SamplingArgs:
        """As the wire has it."""
        return SamplingArgs(**fields_of(self, SamplingArgs) | {"seed": seed, "logit_bias": tuple(self.logit_bias)})


def _check_reading(reading: ReadingArgs) -> None:
    if reading.share is not None and not 0 < reading.share <= 1:
        raise ValueError(f"reading.share={reading.share}: it must be above 0 and at most 1")
    if reading.n_from is not None and reading.n_from < 0:
        raise ValueError(f"reading.n_from={reading.n_from}: it must be 0 or more")
    for name, spans in (("keep", reading.keep), ("blocks", reading.blocks)):
        if len(spans) > MAX_MARKS:
            raise ValueError(f"reading.{name} has more than {MAX_MARKS} spans")
        for span in spans:
            if not 0 <= span.begin < span.end:
                raise ValueError(f"reading.{name}: {span} must begin at 0 or later, and before it ends")


@dataclass(frozen=True, slots=True)
class PrefillEvent:
    """So much of the prompt has been read, or of the parts of it that are to be."""

    n_done: int
    n_total: int


@dataclass(frozen=True, slots=True)
class PromptTokenEvent:
    """A token of the prompt, where `n_prompt_logprobs` asked for it. Each comes once, in order, before the answer."""

    position: int
    """From 1: nothing comes before the first token that it could be foreseen by."""
    logprobs: tuple[tuple[int, float], ...]
    """That token first, then the likeliest there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvent(GenerationStats):
    """The last event of a request that was served to its end: the last engine's statistics, with the counts of the
    whole request. `prefill_s` begins when it had its turn. Never more are reused than were read."""

    queue_s: float
    """Waited for its turn."""
    seed: int
    n_resumes: int = 0
    """Times that it was begun again: engines lost under it, trials that it made way for."""

    @property
    def reason(self) -> StopReason:
        return self.stop


RequestEvent = TokenEvent | PrefillEvent | PromptTokenEvent | FinishedEvent


class RequestError(Exception):
    """A request was not served to its end. `code` is stable; the text is for people."""

    code: str = "internal"


class QueueFullError(RequestError):
    """Too many requests wait. `retry_after_s` is when a place is likely to be free."""

    code = "queue_full"

    def __init__(self, n_waiting: int, retry_after_s: float) -> None:
        super().__init__(f"{n_waiting} requests wait already: try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class DeadlineError(RequestError):
    """The request's own time was over."""

    code = "deadline"


class EngineKillerError(RequestError):
    """Three engines in a row have died of this request: it is not tried again."""

    code = "engine_killer"


class EngineFailedError(RequestError):
    """There is no engine, and none will be started any more."""

    code = "engine_failed"


class SupervisorClosedError(RequestError):
    """The supervisor is being left."""

    code = "closed"


class RequestRefusedError(RequestError):
    """The engine cannot serve this request. `code` is the daemon's."""

    def __init__(self, code: ErrorCode | str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = str(code)


class PromptTooLongError(RequestRefusedError):
    """The prompt does not fit into the context."""

    def __init__(self, n_prompt: int, n_ctx: int | None, text: str | None = None, *, number: int = 0) -> None:
        """`number`: which it is where a request has several texts."""
        said = f"the prompt has {n_prompt:,} tokens, but the context {n_ctx:,}" if text is None else text
        super().__init__(ErrorCode.PROMPT_TOO_LONG, said)
        self.told = said
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx
        self.number = number
