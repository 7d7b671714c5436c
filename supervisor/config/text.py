"""A configuration as a TOML file that says where each value came from. Reading it gives the same configuration again,
but for the keys, which it does not show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from luce.supervisor.config import EngineConfig
from luce.supervisor.config.loading import Configuration, Setting
from luce.supervisor.http.answer_defaults import AnswerDefaults

_TABLES = ("engines", "profiles")


def configuration_text(configuration: Configuration) -> str:
    lines = [_line(setting) for name, setting in configuration.settings.items() if name not in _TABLES]
    names = {field: setting.option.name for field, setting in configuration.settings.items()}
    tables = [line for engine in configuration["engines"] for line in _engine_lines(engine, names)]
    profiles: Mapping[str, AnswerDefaults] = configuration["profiles"]
    tables += [line for name, profile in profiles.items() for line in _profile_lines(name, profile, names)]
    return "\n".join([*lines, *tables]) + "\n"


def _line(setting: Setting) -> str:
    option, value = setting.option, setting.value
    if option.is_secret:
        said = f"# {option.name}: {len(value)} of them, not shown"
    elif value is None and setting.origin == "default":
        said = f"# {option.name} is not set"
    else:
        said = f"{option.name} = {_toml(value)}"
    return f"{said:<40}  # {setting.origin}"


def _engine_lines(engine: EngineConfig, names: Mapping[str, str]) -> Iterator[str]:
    yield "\n[[engines]]"
    if engine.environment:
        yield "env = { " + ", ".join(f"{_toml(key)} = {_toml(text)}" for key, text in engine.environment.items()) + " }"
    if engine.binary is not None:
        yield f"binary = {_toml(engine.binary)}"
    for key, value in engine.options.items():
        yield f"{names[key]} = {_toml(value)}"


def _profile_lines(name: str, profile: AnswerDefaults, names: Mapping[str, str]) -> Iterator[str]:
    yield f"\n[profiles.{_toml(name)}]"
    for entry in fields(AnswerDefaults):
        value = getattr(profile, entry.name)
        if value is not None:
            yield f"{names[entry.name]} = {_toml(value)}"


def _toml(value: object) -> str:
    match value:
        case None:
            return '"none"'
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case Path():
            return json.dumps(str(value), ensure_ascii=False)
        case tuple() | list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        case _:
            return json.dumps(value, ensure_ascii=False)
