"""What a command line asks for, as data. Every field holds what the line said and nothing else.

Defaults are the daemon's business: unset means as the daemon does it by default. Ranges that need no model are the
parser's; ids against the vocabulary and lengths against the context are nobody's here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_LOGPROBS = 100
MAX_MARKS = 4096
MAX_FILES = 4096


class SamplerKind(StrEnum):
    """The links of a sampler chain, by llama.cpp's names."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"


@dataclass(frozen=True, slots=True)
class SamplingArgs:
    temperature: float | None = None
    """>= 0; 0 is greedy."""
    top_p: float | None = None
    """0 < p <= 1."""
    top_k: int | None = None
    """>= 0; 0 is off."""
    min_p: float | None = None
    """0 <= p <= 1."""
    repeat_penalty: float | None = None
    """> 0; 1 is off."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_last_n: int | None = None
    """Tokens that the three penalties look back on; 0: none."""
    dry_multiplier: float | None = None
    """>= 0; 0 is off."""
    dry_base: float | None = None
    """> 0."""
    dry_allowed_length: int | None = None
    dry_last_n: int | None = None
    """Tokens that it looks back on."""
    dry_breakers: tuple[str, ...] | None = None
    """Texts that end a repetition; none of them empty."""
    typical_p: float | None = None
    """0 < p <= 1; 1 is off."""
    top_n_sigma: float | None = None
    """>= 0; 0 is off."""
    xtc_probability: float | None = None
    """0 <= p <= 1; 0 is off."""
    xtc_threshold: float | None = None
    """0 <= p <= 1; above 0.5 is off."""
    dynatemp_range: float | None = None
    """>= 0; 0 is off."""
    dynatemp_exponent: float | None = None
    """> 0."""
    order: tuple[SamplerKind, ...] | None = None
    """The chain's links, each once; what is not named is off."""
    seed: int | None = None
    """0 .. 2^64-1."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """A bias may be -inf: never that token."""


class TriggerKind(StrEnum):
    WORD = "word"
    PATTERN = "pattern"
    PATTERN_FULL = "full"
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class GrammarTrigger:
    kind: TriggerKind
    text: str = ""
    """Of all kinds but TOKEN."""
    token: int = 0
    """Of TOKEN."""


@dataclass(frozen=True, slots=True)
class ConstraintArgs:
    """What constrains the output, as llama.cpp's `common` defines it."""

    grammar: str | None = None
    """GBNF text."""
    grammar_path: str | None = None
    """Or the file that holds it."""
    grammar_lazy: bool = False
    triggers: tuple[GrammarTrigger, ...] = ()
    preserved: tuple[int, ...] = ()
    generation_prompt: str | None = None
    """Text that the template has already put before the answer."""
    think_budget: int | None = None
    """Tokens of reasoning, >= 0."""
    think_start: tuple[int, ...] = ()
    think_end: tuple[tuple[int, ...], ...] = ()
    """Alternatives; the first is the one that is forced."""
    think_message: tuple[int, ...] = ()
    """Forced before the end, once the budget is spent."""


@dataclass(frozen=True, slots=True)
class SnapshotPoint:
    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class PinSpan:
    begin: int
    end: int
    """One past the last."""


@dataclass(frozen=True, slots=True)
class ImageAt:
    """An image in the prompt: where its ids begin, and its file."""

    position: int
    path: str


@dataclass(frozen=True, slots=True)
class MemoryArgs:
    restore_slot: int | None = None
    restore_at: int | None = None
    """Only with restore_slot."""
    chain: tuple[int, ...] = ()
    """Thin slots that extend restore_slot, in order; only with it."""
    snapshots: tuple[SnapshotPoint, ...] = ()
    """No slot twice."""
    marks: tuple[int, ...] = ()
    """At most MAX_MARKS."""
    turn: int | None = None
    """Where the user's last message ends."""
    pins: tuple[PinSpan, ...] = ()
    """At most MAX_MARKS."""
    reuse: bool | None = None
    """Look for a prefix that is still there, without being told a slot."""
    salt: int | None = None
    """Sets the text apart from all that have another one, or none."""
    salt_from: int | None = None
    """From this position on; only with salt."""


class Reading(StrEnum):
    """How much of the prompt is read: all of it, parts of it, or parts where much of it is unknown."""

    FULL = "full"
    SPARSE = "sparse"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ReadingArgs:
    """Unset means as the daemon was started."""

    prefill: Reading | None = None
    share: float | None = None
    """0 < p <= 1: of the tokens that no memory has, so much is read."""
    n_from: int | None = None
    """Of AUTO: from so many such tokens on."""
    keep: tuple[PinSpan, ...] = ()
    """Read in any case; at most MAX_MARKS."""
    blocks: tuple[PinSpan, ...] = ()
    """Each read whole or not at all; at most MAX_MARKS."""


class GenerateForm(StrEnum):
    POSITIONAL = "positional"
    FILE = "file"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Generate:
    """All generating forms: `<path> <n_gen> …` and with a slot `RESTORE …` and `RESTORE_CHAIN …`,
    `generate <in> <n_gen> <out>`, and `gen id= …`."""

    form: GenerateForm = GenerateForm.NAMED
    id: int = 0
    """Named form; 0 in the others."""
    prompt: Sequence[int] = ()
    """Inline ids (named form only) …"""
    prompt_path: str | None = None
    """… or a file: exactly one of the two is given."""
    output_path: str | None = None
    """File form."""
    n_generate: int = 0
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    constraint: ConstraintArgs = field(default_factory=ConstraintArgs)
    memory: MemoryArgs = field(default_factory=MemoryArgs)
    reading: ReadingArgs = field(default_factory=ReadingArgs)
    images: tuple[ImageAt, ...] = ()
    """Positions rise; at most MAX_MARKS."""
    stop_tokens: tuple[int, ...] = ()
    n_least: int = 0
    """Before so many tokens none is chosen that would end the generation."""
    ignore_eos: bool = False
    n_logprobs: int = 0
    """0 .. MAX_LOGPROBS."""
    n_prompt_logprobs: int | None = None
    """0 .. MAX_LOGPROBS; None: none of the prompt's own …"""
    prompt_logprobs_from: int = 0
    """… else those from this position on."""
    n_generated_before: int = 0
    """The last so many prompt ids were generated by this request earlier."""
    priority: int = 0
    """Higher first."""


@dataclass(frozen=True, slots=True)
class Compress:
    """The prompt ids that a sparse reading would read: `compress <path> <keep_x1000> [<scorer>] [nopark]`,
    `compress id= share= [keep=] [blocks=] prompt=`."""

    share: float
    """0 < p <= 1, of the prompt; without an id a multiple of 1/1000."""
    prompt: tuple[int, ...] = ()
    """Inline ids (by name only) …"""
    prompt_path: str | None = None
    """… or a file: exactly one of the two is given."""
    keep: tuple[PinSpan, ...] = ()
    """As in ReadingArgs, by name only."""
    blocks: tuple[PinSpan, ...] = ()
    scorer: str | None = None
    """The file of the small model, without an id only; unset: the daemon's."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """The vector of a text, from a daemon that was started for that: `embed id= prompt=`."""

    id: int = 0
    prompt: tuple[int, ...] = ()
    """Inline ids …"""
    prompt_path: str | None = None
    """… or a file: exactly one of the two is given."""


@dataclass(frozen=True, slots=True)
class Cancel:
    id: int


@dataclass(frozen=True, slots=True)
class Status:
    id: int | None = None
    check: bool = False
    """Also check the books."""


@dataclass(frozen=True, slots=True)
class Ping:
    word: str = ""


@dataclass(frozen=True, slots=True)
class Quit:
    pass


# The slots' commands and what else concerns the memory. Without an id they are written in capitals, with one by name.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keep the state after a generation: `SNAPSHOT <slot>`, `snapshot id= slot= [of=]`."""

    slot: int
    of: int | None = None
    """The request whose state it is, by name only; unset: the last positional generation."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ThinSnapshot:
    """Keep only the attention KV of a range: `SNAPSHOT_THIN <slot> <from> <to>`, `thin id= slot= from= to= [of=]`."""

    slot: int
    begin: int
    end: int
    """One past the last; begin < end."""
    of: int | None = None
    id: int | None = None


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """`FREE_SNAPSHOT <slot>`, `free id= slot=`."""

    slot: int
    id: int | None = None


@dataclass(frozen=True, slots=True)
class FreeScorer:
    """Drop the small model that says what of a prompt is read: `free drafter`."""


@dataclass(frozen=True, slots=True)
class ListSlots:
    """`LIST_SLOTS`, `list id=`."""

    id: int | None = None


@dataclass(frozen=True, slots=True)
class SaveSlot:
    """One snapshot becomes one file: `SAVE <slot> <path>`, `save id= slot= path=`."""

    slot: int
    path: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class LoadSlot:
    """And back: `LOAD <slot> <path>`, `load id= slot= path=`."""

    slot: int
    path: str
    id: int | None = None


class Weights(StrEnum):
    TARGET = "target"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class Park:
    """Give the weights' memory back: `park [target|draft]`, `park id= [what=]`."""

    what: Weights = Weights.TARGET
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Unpark:
    """Take it again, in the same two forms."""

    what: Weights = Weights.TARGET
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """Drop every page and tail that neither a slot nor a running request holds: `CLEAR [disk]`, `clear id= [disk=]`."""

    disk: bool = False
    """The disk cache's too."""
    id: int | None = None


@dataclass(frozen=True, slots=True)
class ListTexts:
    """What is remembered, a run of pages each: `texts id= [from=] [n=]`."""

    first: int = 0
    n_most: int | None = None
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class HoldText:
    """Keep the text that ends with this page from leaving memory, or no longer: `hold id= page= [on=]`."""

    page: str
    """Its name, as `texts` tells it."""
    on: bool = True
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class ForgetText:
    """Drop the run that ends with this page, and all behind it: `forget id= page=`."""

    page: str
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class WatchPages:
    """Tell which pages come and go from now on, or no longer: `pages id= [on=]`."""

    on: bool = True
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class AdoptFiles:
    """Files that have been put into the disk cache's folder: `adopt id= files=`."""

    files: tuple[str, ...] = ()
    """Their names, without folders, of the most wanted first; MAX_FILES at most."""
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class ListFiles:
    """The files that the disk cache has, in the order in which they came: `files id= [since=] [n=]`."""

    since: int = 0
    """From this number on, as the last reply said."""
    n_most: int | None = None
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class WriteText:
    """Write the text that ends with this page to disk now: `write id= page=`."""

    page: str
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class ProbeText:
    """From where a text could be gone on with, without reading it: `probe id= [salt=] [salt_from=] prompt=`."""

    prompt: tuple[int, ...] = ()
    """Inline ids …"""
    prompt_path: str | None = None
    """… or a file: exactly one of the two is given."""
    salt: int | None = None
    salt_from: int | None = None
    """Only with salt."""
    id: int | None = None
    """Required on the line."""


@dataclass(frozen=True, slots=True)
class DescribeImage:
    """The ids that stand in a prompt for the image in a file: `image id= path= [salt=]`."""

    path: str
    id: int | None = None
    """Required on the line."""
    salt: int | None = None
    """Of the text that will hold it."""


MemoryCommand = Snapshot | ThinSnapshot | FreeSlot | ListSlots | SaveSlot | LoadSlot | Park | Unpark | Clear
TextCommand = ListTexts | HoldText | ForgetText | WatchPages | AdoptFiles | ListFiles | WriteText | ProbeText
Command = (
    Generate
    | Compress
    | Embed
    | Cancel
    | Status
    | Ping
    | Quit
    | MemoryCommand
    | TextCommand
    | FreeScorer
    | DescribeImage
)
