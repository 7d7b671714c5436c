"""What the daemon says on stdout, as data. How it becomes a line and back is reply_codec's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .commands import PinSpan, Weights
from .errors import ErrorCode

Fields = tuple[tuple[str, str], ...]


class StopReason(StrEnum):
    EOS = "eos"
    LIMIT = "limit"
    STOP = "stop"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation did. A step is a call of the model behind the one that gave the first token."""

    n_drafted: int = 0
    """Tokens that were proposed and checked."""
    n_accepted: int = 0
    n_steps: int = 0
    n_speculated_steps: int = 0
    """Of them, those that checked drafted tokens."""
    draft_s: float = 0.0
    verify_s: float = 0.0
    """Of the speculated steps."""

    @property
    def acceptance(self) -> float | None:
        """None: nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted > 0 else None

    @property
    def tokens_per_step(self) -> float | None:
        """Those that a step has accepted, and the one that it gives anyway. None: there was no step."""
        return 1 + self.n_accepted / self.n_steps if self.n_steps > 0 else None

    @property
    def speculated_share(self) -> float | None:
        """Of the steps. None: there was none."""
        return self.n_speculated_steps / self.n_steps if self.n_steps > 0 else None

    def __add__(self, other: Speculation) -> Speculation:
        return Speculation(
            self.n_drafted + other.n_drafted,
            self.n_accepted + other.n_accepted,
            self.n_steps + other.n_steps,
            self.n_speculated_steps + other.n_speculated_steps,
            self.draft_s + other.draft_s,
            self.verify_s + other.verify_s,
        )


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """Experts that a text's tokens read, of a mixture whose experts lie partly in the host's memory."""

    n_hits: int = 0
    """The device had them."""
    n_misses: int = 0

    @property
    def hit_share(self) -> float | None:
        """None: nothing was read."""
        n_reads = self.n_hits + self.n_misses
        return self.n_hits / n_reads if n_reads > 0 else None

    def __add__(self, other: ExpertReads) -> ExpertReads:
        return ExpertReads(self.n_hits + other.n_hits, self.n_misses + other.n_misses)


@dataclass(frozen=True, slots=True)
class GenerateOk:
    """The final reply of a generating command."""

    id: int | None = None
    n_prompt: int = 0
    n_read: int | None = None
    """Of the prompt, where only parts of it were read."""
    n_generated: int = 0
    n_reused: int = 0
    tier: str = "none"
    miss: str = "off"
    """Why not more: none, no_tail, evicted, differs_at:<pos>, identity, off."""
    restored: int | None = None
    """Where a `restore=` began to compute."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    speculation: Speculation | None = None
    """Only where the engine speculates, and there was a step."""
    experts: ExpertReads | None = None
    """Only of a mixture whose experts lie in two memories."""
    output_path: str | None = None
    """`generate` only."""
    stop: StopReason = StopReason.LIMIT
    extra: Fields = ()
    """What a newer daemon says beyond this."""


@dataclass(frozen=True, slots=True)
class CompressOk:
    """The final reply to `compress`."""

    n_in: int
    """Tokens of the prompt."""
    n_out: int
    """Of them, those that would be read."""
    parts: tuple[PinSpan, ...] = ()
    """Where these stand in the prompt."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Err:
    code: ErrorCode | str
    """A plain str only if a newer daemon has a code that is not known here."""
    text: str = ""
    """For people: one line, at most 1000 bytes."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    word: str = ""


@dataclass(frozen=True, slots=True)
class PlainOk:
    """`ok` with nothing else: the reply to `quit`, `clear` and `free drafter`."""

    id: int | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    what: Weights = Weights.TARGET
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Unparked:
    what: Weights = Weights.TARGET
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """The reply to `embed`."""

    id: int
    n_tokens: int
    values: bytes = b""
    """Binary32, little endian."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The reply to `cancel`; the request itself still ends with its own."""

    id: int


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    n_done: int
    n_total: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    index: int
    """Of the generated token, from 0."""
    entries: tuple[tuple[int, float], ...]
    """The chosen token first, then the likeliest ones in falling order. -inf: cannot come."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    position: int
    """Of a token of the prompt."""
    entries: tuple[tuple[int, float], ...]
    """That token first, then the likeliest ones in falling order. -inf: cannot come."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A slot holds this now: the reply to `snapshot` and `load`."""

    slot: int
    cur_pos: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ThinTaken:
    slot: int
    begin: int
    end: int
    """One past the last."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class SlotFreed:
    slot: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class SlotList:
    slots: tuple[int, ...] = ()
    id: int | None = None


@dataclass(frozen=True, slots=True)
class SlotSaved:
    slot: int
    bytes: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class InlineSnapshot:
    """A point of `snap=` was reached. Not final."""

    slot: int
    cur_pos: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class InlineSnapshotFailed:
    """It will not be kept. Not final."""

    slot: int
    code: ErrorCode | str
    """A plain str only if a newer daemon has a code that is not known here."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class StatusLine:
    fields: Fields = ()


@dataclass(frozen=True, slots=True)
class TextsLine:
    """The reply to `texts`."""

    fields: Fields = ()

    @property
    def id(self) -> int | None:
        number = dict(self.fields).get("id", "")
        return int(number) if number.isascii() and number.isdigit() else None


@dataclass(frozen=True, slots=True)
class PagesLine:
    """Of nobody's request: pages that have come, gone or changed their place, once `pages` was sent."""

    pages: tuple[str, ...] = ()
    """Each as PROTOCOL.md has it: words with `:` between."""
    begins_anew: bool = False
    """What was told before is void: all pages that there are follow, in this line and the next ones."""


@dataclass(frozen=True, slots=True)
class FilesLine:
    """The reply to `files` and `write`."""

    id: int
    next: int
    """The number from which on there is more, or will be."""
    files: tuple[str, ...] = ()
    """Each its name, `:` and its bytes."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The reply to `adopt`."""

    id: int
    n_new: int
    n_known: int
    n_missing: int


@dataclass(frozen=True, slots=True)
class Probed:
    """The reply to `probe`."""

    id: int
    n_tokens: int
    n_known: int
    """Tokens that need not be computed, if the text is asked for now."""
    n_pages: int
    """Of its first pages those that are in memory or on disk."""


@dataclass(frozen=True, slots=True)
class ReadyLine:
    fields: Fields = ()


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Of nobody's request: the engine's pool has become smaller, for want of memory."""

    n_tokens: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Before the ready line: so much of the weights is read."""

    percent: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The last line: the engine ends, because memory ran out."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ImageDescribed:
    """`[image] id= ids=1,2,…`: what stands in a prompt for an image."""

    id: int
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownLine:
    """A line that only a newer daemon knows: to be logged and passed over, never an error."""

    text: str


SnapReply = SnapshotTaken | ThinTaken | SlotFreed | SlotList | SlotSaved | InlineSnapshot | InlineSnapshotFailed
Reply = (
    GenerateOk
    | CompressOk
    | Err
    | Pong
    | PlainOk
    | Parked
    | Unparked
    | Embedding
    | Cancelled
    | PrefillProgress
    | Logprobs
    | PromptLogprobs
    | SnapReply
    | StatusLine
    | TextsLine
    | PagesLine
    | FilesLine
    | Adopted
    | Probed
    | ReadyLine
    | PoolSize
    | LoadProgress
    | OutOfMemory
    | ImageDescribed
    | UnknownLine
)
