"""The options that several commands share: the engine's, from the table in luce.supervisor.config, and sampling.

A decorator adds them to a command; the matching reader turns click's values into the typed value below. Checks what can
be checked without the model; the daemon checks the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from luce.supervisor.cli.entry import EXIT_START_FAILED, Failure, say
from luce.supervisor.cli.model_files import NO_DRAFT, read_draft, read_model, read_packaged_draft
from luce.supervisor.cli.numbers import Bytes, KvOverrides, NumberOrAuto, PositionSpans, Real, Tokens, TokensOrAuto
from luce.supervisor.config import CACHE_TYPES, DaemonConfig, table
from luce.supervisor.config.table import PROCESS_OPTIONS, EngineOption, GoneOption
from luce.supervisor.engine.locate import NotInstalledError, find_luced

if TYPE_CHECKING:
    from luce.protocol import SamplingArgs

F = TypeVar("F", bound=Callable[..., Any])

_COUNTS: dict[str, type[click.IntRange]] = {
    "number": click.IntRange, "uint64": click.IntRange, "number_or_auto": NumberOrAuto, "tokens": Tokens,
    "tokens_or_auto": TokensOrAuto,
}  # fmt: skip

_MAX_INT32 = 2**31 - 1

NOT_NEGATIVE = click.IntRange(min=0, max=_MAX_INT32)

_MODEL_HELP = "GGUF file of the model; of a split model the first part. Without it: the small packaged model."


def model_option(function: F) -> F:
    return click.option("--model", metavar="FILE", type=click.Path(path_type=Path), help=_MODEL_HELP)(function)


def engine_options(function: F) -> F:
    """Every option of luced that shapes the engine."""
    for option in reversed(table.engine_options().values()):
        if option.field not in {*PROCESS_OPTIONS, "model"}:
            function = click_option(option.field)(function)
    return model_option(function)


def click_option(field: str) -> Callable[[F], F]:
    """An option of luced, by the table."""
    option = table.engine_options()[field]
    names = [f"--{name}" for name in (option.name, *option.aliases)]
    if option.takes is None:
        return click.option(*names, field, is_flag=True, help=option.help)
    metavar = None if option.choices or option.kind == "cache_type" else option.takes
    if option.kind == "overrides":  # given several times they add up, as in llama.cpp's programs
        return click.option(
            *names, field, type=KvOverrides(), multiple=True, callback=_joined, metavar=metavar, help=option.help
        )
    return click.option(*names, field, type=_type_of(option), metavar=metavar, help=option.help)


def _joined(_context: click.Context, _option: click.Parameter, values: tuple[tuple[str, ...], ...]) -> Any:
    return tuple(one for value in values for one in value) or None


def gone_options(function: F) -> F:
    """What older drivers took: accepted, and one line says that it does nothing."""
    for option in table.gone_options():
        function = click.option(
            f"--{option.name}",
            is_flag=option.takes is None,
            hidden=True,
            expose_value=False,
            callback=_tell_gone(option),
            type=None if option.takes is None else click.STRING,
        )(function)
    return function


def _tell_gone(option: GoneOption) -> Callable[[click.Context, click.Parameter, Any], None]:
    def tell(_context: click.Context, _option: click.Parameter, value: Any) -> None:
        if value and option.why is not None:
            say(f"--{option.name} does nothing any more: {option.why}")

    return tell


def _type_of(option: EngineOption) -> click.ParamType:  # type: ignore[type-arg]  # generic in newer versions of click
    if option.kind in _COUNTS:
        return _COUNTS[option.kind](option.least, option.most)
    match option.kind:
        case "choice":
            return click.Choice(option.choices)
        case "cache_type":
            return click.Choice(CACHE_TYPES)
        case "bytes":
            return Bytes()
        case "folder" | "path":
            return click.Path(path_type=Path, file_okay=option.kind == "path")
        case "spans":
            return PositionSpans()
        case "positive":
            return Real(min=0, min_open=True)
        case "factor":
            return Real(min=0)
        case "share":
            return Real(min=0, max=1, min_open=True)
        case _:
            return click.STRING


def sampling_options(function: F) -> F:
    """How the next token is chosen. The seed is the engine's --seed."""
    for option in reversed(_SAMPLING_OPTIONS):
        function = option(function)
    return function


_SAMPLING_OPTIONS = (
    click.option(
        "--temp", type=Real(min=0), metavar="T", help="Temperature; 0, the default, always takes the most likely token."
    ),
    click.option("--top-k", type=NOT_NEGATIVE, metavar="K", help="Use only the K most likely tokens; 0 is off."),
    click.option(
        "--top-p",
        type=Real(min=0, max=1, min_open=True),
        metavar="P",
        help="Use only the most likely tokens with a total probability of P; 1 is off.",
    ),
    click.option(
        "--min-p",
        type=Real(min=0, max=1),
        metavar="P",
        help="Use only tokens at least P times as likely as the most likely; 0 is off.",
    ),
    click.option(
        "--repeat",
        type=Real(min=0, min_open=True),
        metavar="R",
        help="Factor by which tokens that have occurred are less likely; 1 is off.",
    ),
    click.option(
        "--presence", type=Real(), metavar="P", help="Penalty subtracted once from tokens that have occurred."
    ),
    click.option(
        "--frequency", type=Real(), metavar="P", help="Penalty subtracted for each time that a token has occurred."
    ),
)


def read_engine_config(values: Mapping[str, Any], **fixed: Any) -> DaemonConfig:
    """The DaemonConfig of what `engine_options` collected. Raises Failure."""
    fields = table.engine_options().keys() - PROCESS_OPTIONS - {"model", "draft"}
    shaped = {field: values[field] for field in fields}
    model = read_model(values["model"])
    draft = values["draft"]
    if draft is not None:
        shaped["draft"] = None if draft == NO_DRAFT else read_draft(draft, model)
    elif values["model"] is None and wants_packaged_draft(
        mtp=values["mtp"], draft_max=values["draft_max"], draft_method=values["draft_method"]
    ):
        shaped["draft"] = read_packaged_draft()
    return DaemonConfig(model=model, **(shaped | fixed))


def wants_packaged_draft(*, mtp: bool, draft_max: int | None, draft_method: str | None) -> bool:
    """Whether the packaged model is to have its drafter: not if drafts come from elsewhere, or from nowhere."""
    return not mtp and draft_max != 0 and draft_method not in {"none", "mtp"}


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
