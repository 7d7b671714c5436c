"""Configuration: what `luce serve` is made with, gathered from the command line, the environment and a TOML file.

Names, types and defaults are those of SupervisorConfig and ServeSettings, read from the classes themselves: an option
that is added there is known here. The first of these that names an option decides: a flag, LUCE_<OPTION>, the file, the
default. It must not know click; a command hands in what its flags are called and how they check a value.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from luce.supervisor.config import ConfigError, DaemonConfig, EngineConfig, SupervisorConfig
from luce.supervisor.config.values import read_environment_table, read_item, read_text
from luce.supervisor.http.answer_defaults import AnswerDefaults
from luce.supervisor.http.settings import ServeSettings

PREFIX = "LUCE_"
CONFIG_VARIABLE = "LUCE_CONFIG"

_T = TypeVar("_T", SupervisorConfig, ServeSettings)

# What the supervisor gives its engines itself.
_NOT_SETTABLE = frozenset({"embedding", "stream_fd", "mux", "die_with_parent"})
# Variables of ours that are no options.
_OTHER_VARIABLES = frozenset({"LUCE_CHECK_ANSWERS", "LUCE_DAEMON_BINARY", "LUCE_TEXT_LIBRARY", CONFIG_VARIABLE})
_ENGINES = "engines"
_PROFILES = "profiles"
_TABLES = frozenset({_ENGINES, _PROFILES})
_SECRETS = frozenset({"api_keys"})
_REMOVED = {"shared_prefixes": "it was removed: say cache_isolation (off or key)"}
_UNITS = re.compile(r"_(s|bytes)$")
_NEAR = 0.8  # how alike a variable's name has to be for it to be taken for a slip of the pen


@dataclass(frozen=True, slots=True)
class Flag:
    """An option's place on the command line."""

    name: str
    """Without its dashes in front: `host-cache`. The file and the environment call the option by it too."""
    check: Callable[[object], object]
    """Raises ValueError where the flag would refuse the value."""
    aliases: tuple[str, ...] = ()
    """Older names, in the same form; they work in the same places."""


@dataclass(frozen=True, slots=True)
class ApiKeyFile:
    """The one option that is neither class's: it adds to ServeSettings.api_keys."""

    api_key_file: Path | None = None  # one key a line; empty lines and those that begin with # do not count


@dataclass(frozen=True, slots=True)
class ModelSources:
    """Of a server with several models; what each of them is made with is in models_file."""

    models: Path | None = None  # a TOML file with a table for each, or a folder of GGUF files
    models_from: tuple[str, ...] = ()  # folders, or programs whose models are found (models.finding)


@dataclass(frozen=True, slots=True)
class Option:
    field: str
    name: str
    """As it is written in a file, and with LUCE_ before it, in capitals, in the environment."""
    annotation: Any
    default: object
    check: Callable[[object], object]
    aliases: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return self.variables[0]

    @property
    def variables(self) -> list[str]:
        """The one to use, and older ones."""
        return [PREFIX + name.upper() for name in (self.name, *self.aliases)]

    @property
    def is_secret(self) -> bool:
        return self.field in _SECRETS


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value, and who gave it: `--port`, `LUCE_PORT`, `luce.toml`, `default`."""

    option: Option
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """By field; every option is here."""

    def supervisor_config(self, *, model: Path, **fixed: object) -> SupervisorConfig:
        """Raises ConfigError."""
        return self._build(SupervisorConfig, model=model, **fixed)

    def serve_settings(self, **fixed: object) -> ServeSettings:
        """Raises ConfigError."""
        keys = (*self["api_keys"], *_keys_in(self["api_key_file"]))
        return self._build(ServeSettings, **({"api_keys": keys} | fixed))

    def check(self) -> None:
        """Whether both could be made. Raises ConfigError."""
        self.serve_settings()
        self.supervisor_config(model=self["model"] or Path())

    def overlaid(self, settings: Mapping[str, Setting]) -> Configuration:
        """With these in place of its own."""
        return Configuration({**self.settings, **settings})

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    def _build(self, kind: type[_T], **fixed: object) -> _T:
        values = {entry.name: self[entry.name] for entry in fields(kind) if entry.name in self.settings}
        try:
            return kind(**(values | fixed))
        except ConfigError as error:
            named = re.match(r"[a-z_]+", str(error))
            setting = None if named is None else self.settings.get(named[0])
            if setting is None or setting.origin == "default":
                raise
            text = re.sub(r"[a-z_]+", lambda field: self._written(field[0]), str(error))
            raise ConfigError(f"{setting.origin}: {text}") from error

    def _written(self, field: str) -> str:
        """An older name as people are to write it now."""
        setting = self.settings.get(field)
        return setting.option.name if setting is not None and field in setting.option.aliases else field


def known_options(flags: Mapping[str, Flag]) -> dict[str, Option]:
    """All options by their field. `flags` are those that the command line has, by field."""
    options = {}
    for kind in (SupervisorConfig, ServeSettings, ApiKeyFile, ModelSources):
        annotations = get_type_hints(kind, include_extras=True)
        for entry in fields(kind):
            if entry.name not in _NOT_SETTABLE:
                options[entry.name] = _option(entry, annotations[entry.name], flags.get(entry.name))
    return options


def _option(entry: Field[Any], annotation: Any, flag: Flag | None) -> Option:
    name, *aliases = (
        [_UNITS.sub("", entry.name)]
        if flag is None
        else [name.replace("-", "_") for name in (flag.name, *flag.aliases)]
    )
    # Only the model has no default of its own: without one, the packaged one is meant.
    default = None if entry.default is MISSING else entry.default
    if entry.default_factory is not MISSING:
        default = entry.default_factory()
    if entry.name == "model":
        annotation = Path | None
    check = (lambda value: value) if flag is None else flag.check
    return Option(entry.name, name, annotation, default, check, tuple(aliases))


def read_configuration(
    flags: Mapping[str, Flag], given: Mapping[str, object], environ: Mapping[str, str], file: Path | None
) -> Configuration:
    """`given` are the values of the flags that were used, by field; `file` comes before what LUCE_CONFIG names. Raises
    ConfigError."""
    options = known_options(flags)
    if file is None and environ.get(CONFIG_VARIABLE, "") != "":
        file = Path(environ[CONFIG_VARIABLE])
    settings = {name: Setting(option, option.default, "default") for name, option in options.items()}
    if file is not None:
        settings |= _from_file(options, file)
    settings |= _from_environment(options, environ)
    for name, value in given.items():
        settings[name] = Setting(options[name], value, "--" + options[name].name.replace("_", "-"))
    return Configuration(settings)


# The environment


def _from_environment(options: Mapping[str, Option], environ: Mapping[str, str]) -> dict[str, Setting]:
    settable = (option for option in options.values() if option.field not in _TABLES)
    by_variable = {variable: option for option in settable for variable in option.variables}
    settings: dict[str, Setting] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES:
            continue
        if (advice := _REMOVED.get(variable.removeprefix(PREFIX).lower())) is not None:
            raise ConfigError(f"{variable}: {advice}")
        option = by_variable.get(variable)
        if option is None:
            _refuse_slip(variable, by_variable)
        elif text != "" and option.field in settings:
            raise ConfigError(f"{variable} and {settings[option.field].origin} are one option: leave one of them out")
        elif text != "":  # as if it were not set: what launchers leave where they have no value …
            settings[option.field] = Setting(option, _from_text(option, variable, text), variable)
        elif option.is_secret:  # … but whoever wants keys must not be served without
            raise ConfigError(f"{variable} is empty: unset it, or give it a key")
    return settings


def _from_text(option: Option, variable: str, text: str) -> object:
    try:
        return _checked(option, read_text(option.annotation, text))
    except ValueError as error:
        shown = "" if option.is_secret else f"={text}"
        raise ConfigError(f"{variable}{shown}: {error}") from None


def _refuse_slip(variable: str, known: Iterable[str]) -> None:
    """The environment is not ours alone: only what is nearly an option of ours is refused."""
    near = difflib.get_close_matches(variable, known, n=1, cutoff=_NEAR)
    if near and not variable.startswith(near[0] + "_"):  # LUCE_PORT_80_TCP and the like are a container host's
        raise ConfigError(f"{variable}: there is no such option; did you mean {near[0]}?")


# The file


def _from_file(options: Mapping[str, Option], file: Path) -> dict[str, Setting]:
    return _from_table(options, read_toml(file), file)


def from_table(flags: Mapping[str, Flag], table: Mapping[str, Any], place: Path) -> dict[str, Setting]:
    """What such a file would say with this table in it. `place` stands in errors for its path. Raises ConfigError."""
    return _from_table(known_options(flags), table, place)


def _from_table(options: Mapping[str, Option], table: Mapping[str, Any], file: Path) -> dict[str, Setting]:
    names = names_in_files(options.values())
    settings: dict[str, Setting] = {}
    for key, item in table.items():
        option = names.get(key.replace("-", "_"))
        if option is None:
            raise ConfigError(f"{file}: {unknown_option(key, names)}")
        if option.field in settings:
            raise ConfigError(f"{file}: {option.name} is given twice, under two of its names")
        if option.field == _ENGINES:
            value: object = _engines(options, item, file)
        elif option.field == _PROFILES:
            value = read_profiles(options, item, file)
        else:
            value = from_item(option, item, file, key)
        settings[option.field] = Setting(option, value, str(file))
    return settings


def names_in_files(options: Iterable[Option]) -> dict[str, Option]:
    """An option answers to its own name and to its field's."""
    return {
        name: option
        for option in options
        for name in (_UNITS.sub("", option.field), option.field, *option.aliases, option.name)
    }


def read_toml(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{file} is not TOML: it is nested too deep") from None


def from_item(option: Option, item: object, file: Path, key: str) -> object:
    try:
        return _checked(option, read_item(option.annotation, item, file.absolute().parent))
    except ValueError as error:
        raise ConfigError(f"{file}: {key}: {error}") from None


def _checked(option: Option, value: object) -> object:
    if value is not None and get_origin(option.annotation) is not tuple:
        option.check(value)
    return value


def unknown_option(key: str, known: Iterable[str]) -> str:
    if (advice := _REMOVED.get(key.replace("-", "_"))) is not None:
        return f"{key}: {advice}"
    near = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"there is no option {key}" + (f"; did you mean {near[0]}?" if near else "")


def _engines(options: Mapping[str, Option], item: object, file: Path) -> tuple[EngineConfig, ...]:
    if not isinstance(item, list) or not all(isinstance(table, dict) for table in item):
        raise ConfigError(f"{file}: engines: each engine is a table of its own, under [[engines]]")
    of_engine = {entry.name for entry in fields(DaemonConfig)} - _NOT_SETTABLE | {"binary"}
    names = names_in_files(option for option in options.values() if option.field in of_engine)
    return tuple(_engine(names, table, file, f"engines[{number}]") for number, table in enumerate(item))


def _engine(names: Mapping[str, Option], table: Mapping[str, Any], file: Path, place: str) -> EngineConfig:
    values: dict[str, Any] = {}
    for key, item in table.items():
        if key in {"env", "environment"}:
            try:
                values["environment"] = read_environment_table(item)
            except ValueError as error:
                raise ConfigError(f"{file}: {place}.{key}: {error}") from None
        elif (option := names.get(key.replace("-", "_"))) is not None:
            values[option.field] = from_item(option, item, file, f"{place}.{key}")
        else:
            raise ConfigError(f"{file}: {place}: {unknown_option(key, [*names, 'env'])}")
    return EngineConfig(**values)


def read_profiles(options: Mapping[str, Option], item: object, file: Path) -> dict[str, AnswerDefaults]:
    if not isinstance(item, dict) or not all(isinstance(table, dict) for table in item.values()):
        raise ConfigError(f"{file}: profiles: each profile is a table of its own, under [profiles.NAME]")
    of_profile = {entry.name for entry in fields(AnswerDefaults)}
    names = names_in_files(option for option in options.values() if option.field in of_profile)
    return {name: _profile(names, table, file, f"profiles.{name}") for name, table in item.items()}


def _profile(names: Mapping[str, Option], table: Mapping[str, Any], file: Path, place: str) -> AnswerDefaults:
    values: dict[str, Any] = {}
    for key, item in table.items():
        option = names.get(key.replace("-", "_"))
        if option is None:
            raise ConfigError(f"{file}: {place}: {unknown_option(key, names)}")
        values[option.field] = from_item(option, item, file, f"{place}.{key}")
    try:
        return AnswerDefaults(**values)
    except ConfigError as error:
        raise ConfigError(f"{file}: {place}: {error}") from None


def _keys_in(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise ConfigError(f"api_key_file {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"api_key_file {file} is not UTF-8 text") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {file} holds no key: write one a line")
    return keys
