"""The models of a server that has several: a TOML file with a table for each, a folder, other programs' folders.

A table has options of the model's engine and of its answers, and says how the model takes turns; what it leaves out is
as the server has it. It must not know click.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.config.loading import (
    Configuration,
    Setting,
    from_item,
    names_in_files,
    read_profiles,
    read_toml,
    unknown_option,
)
from luce.supervisor.config.values import read_item
from luce.supervisor.fleet.fleet import FleetConfig, Member
from luce.supervisor.fleet.turns import TurnRules
from luce.supervisor.http.answer_defaults import AnswerDefaults
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.models.finding import FindingError, find_models

_OF_FLEET = {"turn": float | None, "linger": float | None, "drain": float | None, "default": str | None}
_OF_MEMBER = {
    "aliases": tuple[str, ...],
    "group": str | None,
    "resident": bool,
    "ends": bool,
    "lock_weights": bool,
}
_OF_ONE = frozenset(
    {"model", "engines", "embedding_model", "rerank_model", "draft", "mmproj", "chat_template", "profiles"}
)
"""What no model has from the server: it fits one."""
_OF_MODELS = frozenset(entry.name for kind in (SupervisorConfig, AnswerDefaults) for entry in fields(kind))

_Members = dict[str, tuple[Member, ServeSettings]]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    config: FleetConfig
    settings: Mapping[str, ServeSettings]
    default: str | None
    left_out: tuple[str, ...] = ()
    """Options that were given and fit one model: they count in its table only."""


def read_fleet(configuration: Configuration, fixed: Mapping[str, object]) -> FleetPlan:
    """What `models` and `models_from` name. `fixed`: options of all engines that the command has chosen itself. Raises
    ConfigError."""
    source: Path | None = configuration["models"]
    folders: list[str] = list(configuration["models_from"])
    members: _Members = {}
    file, of_fleet, most = Path(), dict[str, Any](), dict[str, int]()
    if source is not None and source.is_dir():
        folders.insert(0, str(source))
    elif source is not None:
        file = source
        tables, of_fleet, most = _sections(file)
        members = {name: _member(name, table, file, configuration, fixed) for name, table in tables.items()}
    if folders:
        members |= {name: one for name, one in _found(folders, configuration, fixed).items() if name not in members}
    if not members:
        places = [*([str(source)] if source is not None else []), *configuration["models_from"]]
        raise ConfigError(f"models: there is none in {', '.join(places)}")
    rules = TurnRules(
        **{f"{name}_s": of_fleet[name] for name in ("turn", "linger") if name in of_fleet},
        most=most,
    )
    default = of_fleet.get("default")
    if default is not None and default not in members:
        raise ConfigError(f"{file}: default: there is no model {default}")
    _check_profiles(members, file)
    config = FleetConfig(
        members=[member for member, _ in members.values()], rules=rules, drain_s=of_fleet.get("drain", 60.0)
    )
    left_out = tuple(name for name in sorted(_OF_ONE) if configuration.settings[name].origin != "default")
    return FleetPlan(config, {name: settings for name, (_, settings) in members.items()}, default, left_out)


def _check_profiles(members: _Members, file: Path) -> None:
    """A profile is a name of its own model."""
    owners = {name: member.name for member, _ in members.values() for name in (member.name, *member.aliases)}
    for name, (_, settings) in members.items():
        for profile in settings.profiles:
            if owners.setdefault(profile, name) != name:
                text = f"a name is one model's, and {owners[profile]} has it"
                raise ConfigError(f"{file}: models.{name}.profiles.{profile}: {text}")


def _sections(file: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """The models' tables, what is said of their turns, and how many of each group may be there at once."""
    content = read_toml(file)
    tables, groups = content.pop("models", {}), content.pop("groups", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{file}: models: each model is a table of its own, under [models.NAME]")
    if not isinstance(groups, dict) or not all(type(most) is int and most > 0 for most in groups.values()):
        raise ConfigError(f"{file}: groups: of each group, how many of its models may be loaded at once: big = 2")
    for name in content:
        if name not in _OF_FLEET:
            raise ConfigError(f"{file}: {unknown_option(name, [*_OF_FLEET, 'groups', 'models'])}")
    return tables, {name: _value(_OF_FLEET[name], item, file, name) for name, item in content.items()}, groups


def _member(
    name: str, table: Mapping[str, Any], file: Path, configuration: Configuration, fixed: Mapping[str, object]
) -> tuple[Member, ServeSettings]:
    names = names_in_files(
        setting.option for field, setting in configuration.settings.items() if field in _OF_MODELS | _OF_ONE
    )
    own: dict[str, Any] = {}
    settings: dict[str, Setting] = {}
    for key, item in table.items():
        place, known = f"models.{name}.{key}", key.replace("-", "_")
        if known in _OF_MEMBER:
            own[known] = _value(_OF_MEMBER[known], item, file, place)
        elif known == "profiles":
            options = {field: setting.option for field, setting in configuration.settings.items()}
            profiles = read_profiles(options, item, file)
            settings[known] = Setting(options[known], profiles, f"{file}: models.{name}")
        elif (option := names.get(known)) is not None:
            settings[option.field] = Setting(option, from_item(option, item, file, place), f"{file}: models.{name}")
        else:
            raise ConfigError(f"{file}: models.{name}: {unknown_option(key, [*names, *_OF_MEMBER])}")
    if "model" not in settings:
        raise ConfigError(f"{file}: models.{name}: it has to name its file (model)")
    return _made(name, own, settings, configuration, fixed)


def _found(folders: Sequence[str], configuration: Configuration, fixed: Mapping[str, object]) -> _Members:
    try:
        found = find_models(folders)
    except FindingError as error:
        raise ConfigError(f"models_from: {error}") from None
    option = configuration.settings["model"].option
    return {
        model.name: _made(model.name, {}, {"model": Setting(option, model.path, "models_from")}, configuration, fixed)
        for model in found
    }


def _made(
    name: str,
    own: Mapping[str, Any],
    settings: Mapping[str, Setting],
    configuration: Configuration,
    fixed: Mapping[str, object],
) -> tuple[Member, ServeSettings]:
    options = {field: configuration.settings[field].option for field in _OF_ONE}
    silent = {field: Setting(option, option.default, "default") for field, option in options.items()}
    configuration = configuration.overlaid({**silent, **settings})
    chosen = {field: value for field, value in fixed.items() if field not in settings}
    config = configuration.supervisor_config(model=configuration["model"], **chosen)
    member = Member(
        name=name,
        config=config,
        aliases=tuple(own.get("aliases", ())),
        group=(own["group"] or None) if "group" in own else "device",
        resident=own.get("resident", False),
        ends=own.get("ends", False),
        locks_weights=own.get("lock_weights", False),
    )
    if member.ends and config.disk_cache is None:
        text = "one that ends forgets its conversations: name a disk_cache, or leave out ends"
        raise ConfigError(f"models.{name}: {text}")
    return member, configuration.serve_settings(aliases=(name, *member.aliases))


def _value(annotation: Any, item: object, file: Path, place: str) -> Any:
    try:
        return read_item(annotation, item, file.absolute().parent)
    except ValueError as error:
        raise ConfigError(f"{file}: {place}: {error}") from None
