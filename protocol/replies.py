"""What the daemon says on stdout, as data. How it becomes a line and back is reply_codec's."""

from __future__ import annotations

from dataclasses import dataclass

from .commands import PinSpan, Weights
from .errors import ErrorCode
from .records import GenerationStats

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GenerateOk(GenerationStats):
    """The final reply of a generating command."""

    id: int | None = None
    output_path: str | None = None
    """`generate` only."""
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
