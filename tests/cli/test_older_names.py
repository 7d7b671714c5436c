"""Older names of options: where an option can be set, its older names set it too, and say the same."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from luce.supervisor import find_luced
from luce.supervisor.cli.options import engine_options
from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config import ConfigError, table
from luce.supervisor.config.loading import read_configuration
from luce.supervisor.config.text import configuration_text

RENAMED = [option for option in table.engine_options().values() if option.aliases]
NAMES = [(option, name) for option in RENAMED for name in (option.name, *option.aliases)]
# One value for each kind: as it is written, and what it is then.
VALUES: dict[str, tuple[str, Any]] = {
    "bytes": ("2G", 2 << 30),
    "cache_type": ("q8_0", "q8_0"),
    "number": ("3", 3),
    "number_or_auto": ("auto", "auto"),
    "path": ("/s.gguf", Path("/s.gguf")),
    "text": ("q4_0", "q4_0"),
    "tokens": ("3K", 3 << 10),
    "tokens_or_auto": ("auto", "auto"),
    "spans": ("0:64,100:200", ("0:64", "100:200")),
}


def value_of(option: table.EngineOption) -> tuple[str, Any]:
    return (option.choices[-1], option.choices[-1]) if option.choices else VALUES[option.kind]


def luced(*arguments: str) -> str:
    ended = subprocess.run(
        [find_luced(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 64
    return ended.stdout


def test_the_renamed_ones_are_those() -> None:
    assert {alias: option.name for option in RENAMED for alias in option.aliases} == {
        "max-ctx": "ctx",
        "ctx-size": "ctx",
        "kv-k": "cache-type-k",
        "kv-v": "cache-type-v",
        "kvflash": "kv-offload",
        "kvflash-tau": "kv-offload-interval",
        "kvflash-policy": "kv-offload-policy",
        "kvflash-scorer": "kv-offload-scorer",
        "kvflash-scorer-cache-type": "kv-offload-scorer-cache-type",
        "kvflash-pin": "kv-offload-pin",
        "kvflash-layer": "kv-offload-layer",
        "draft-gate": "draft-adaptive",
        "spec-memory": "draft-state-memory",
    }


def test_luced_takes_both() -> None:
    for option, name in NAMES:
        assert f"--{name} needs a value: {option.takes}" in luced("--model", "m", f"--{name}")
    for name in ("kv-offload", "kvflash"):
        assert "--kv-offload 4097 is no multiple" in luced("--model", "m", f"--{name}=4097")
    for name in ("kv-offload-interval", "kvflash-tau"):  # what belongs together is checked under either name
        assert "--kv-offload-interval is for a pool" in luced("--model", "m", f"--{name}", "32")
    unasked = ["--model", "m", "--kvflash", "4096", "--kvflash-policy", "lru", "--kvflash-layer", "auto"]
    assert "asks no layer" in luced(*unasked)


def test_commands_take_both() -> None:
    @click.command()
    @engine_options
    def command(**values: Any) -> None:
        del values

    for option, name in NAMES:
        text, value = value_of(option)
        assert command.make_context("x", [f"--{name}", text]).params[option.field] == value


def test_the_environment_has_both() -> None:
    for option, name in NAMES:
        text, value = value_of(option)
        variable = f"LUCE_{name.replace('-', '_').upper()}"
        setting = read_configuration(known_flags(), {}, {variable: text}, None).settings[option.field]
        assert (setting.value, setting.origin) == (value, variable)


def test_a_file_has_both(tmp_path: Path) -> None:
    file = tmp_path / "luce.toml"
    for option, name in NAMES:
        text, value = value_of(option)
        written = [f'"{part}"' for part in text.split(",")]
        item = f"[{', '.join(written)}]" if option.kind == "spans" else text if text.isdigit() else written[0]
        for key in (name, name.replace("-", "_")):
            file.write_text(f"{key} = {item}\n[[engines]]\n{key} = {item}\n")
            configuration = read_configuration(known_flags(), {}, {}, file)
            assert configuration[option.field] == value
            assert configuration["engines"][0].options == {option.field: value}
            shown = configuration_text(configuration)
            assert shown.count(f"{option.name.replace('-', '_')} = ") == 2
            file.write_text(shown)
            assert read_configuration(known_flags(), {}, {}, file)["engines"][0].options == {option.field: value}


def test_one_option_under_two_names_is_refused(tmp_path: Path) -> None:
    both = {"LUCE_KVFLASH_TAU": "3", "LUCE_KV_OFFLOAD_INTERVAL": "4"}
    with pytest.raises(ConfigError, match="are one option: leave one of them out"):
        read_configuration(known_flags(), {}, both, None)
    (tmp_path / "luce.toml").write_text("kvflash_tau = 3\nkv_offload_interval = 4\n")
    with pytest.raises(ConfigError, match="kv_offload_interval is given twice"):
        read_configuration(known_flags(), {}, {}, tmp_path / "luce.toml")


def test_what_is_wrong_is_said_in_the_names_of_today(tmp_path: Path) -> None:
    (tmp_path / "luce.toml").write_text("kvflash_tau = 3\n")
    configuration = read_configuration(known_flags(), {}, {}, tmp_path / "luce.toml")
    with pytest.raises(ConfigError, match=r"luce\.toml: kv_offload_interval is for .* set kv_offload to a number"):
        configuration.supervisor_config(model=Path("m"))
