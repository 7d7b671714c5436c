"""The file of several models: what a table leaves out is the server's, and what is wrong is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.supervisor.cli.serve import known_flags
from luce.supervisor.config import ConfigError
from luce.supervisor.config.loading import read_configuration
from luce.supervisor.config.models_file import FleetPlan, read_fleet

TWO = """
turn = 20
default = "big"
[groups]
card = 2
[models.big]
model = "big.gguf"
aliases = ["gpt-5", "claude"]
group = "card"
ctx = 65536
temperature = 0.6
lock_weights = true
[models.big.profiles.thinker]
reasoning = "on"
[models.small]
model = "/elsewhere/small.gguf"
resident = true
group = ""
"""


def read(text: str, folder: Path, **given: object) -> FleetPlan:
    file = folder / "models.toml"
    file.write_text(text)
    configuration = read_configuration(known_flags(), {"models": file, **given}, {}, None)
    return read_fleet(configuration, {})


def test_two_models(tmp_path: Path) -> None:
    plan = read(TWO, tmp_path, ctx=1024, host="0.0.0.0", temperature=0.1, draft=Path("draft.gguf"))  # noqa: S104
    big, small = plan.config.members
    assert (big.name, big.aliases, big.group, big.locks_weights) == ("big", ("gpt-5", "claude"), "card", True)
    assert (small.resident, small.group) == (True, None)
    assert big.config.model == tmp_path / "big.gguf"
    assert (big.config.ctx, small.config.ctx) == (65536, 1024)
    assert (plan.settings["big"].temperature, plan.settings["small"].temperature) == (0.6, 0.1)
    assert plan.settings["big"].profiles.keys() == {"thinker"}
    assert plan.settings["small"].host == "0.0.0.0"  # noqa: S104
    assert small.config.draft is None, "the server's draft fits one model"
    assert plan.left_out == ("draft",)
    assert (plan.config.rules.turn_s, plan.config.rules.most, plan.default) == (20.0, {"card": 2}, "big")


def test_models_share_a_cache_store(tmp_path: Path) -> None:
    given = {"disk_cache": tmp_path, "cache_store": "s3://memory", "cache_store_rate": 1000}
    for member in read(TWO, tmp_path, **given).config.members:
        config = member.config
        assert (config.disk_cache, config.cache_store, config.cache_store_rate) == (tmp_path, "s3://memory", 1000)
    with pytest.raises(ConfigError, match="give each engine a disk_cache"):
        read(TWO, tmp_path, cache_store="s3://memory")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[models.a]\nctx = 5\n", "it has to name its file"),
        ('[models.a]\nmodel = "a.gguf"\nctxx = 5\n', r"models\.a: there is no option ctxx; did you mean ctx"),
        ('[models.a]\nmodel = "a.gguf"\nport = 5\n', "there is no option port"),
        ('[models.a]\nmodel = "a.gguf"\nresident = 3\n', r"models\.a\.resident"),
        ('[models.a]\nmodel = "a.gguf"\nends = true\n', "name a disk_cache"),
        ('turns = 3\n[models.a]\nmodel = "a.gguf"\n', "there is no option turns; did you mean turn"),
        ('default = "b"\n[models.a]\nmodel = "a.gguf"\n', "there is no model b"),
        ('[groups]\nbig = 0\n[models.a]\nmodel = "a.gguf"\n', "how many of its models"),
        ('[groups]\nbig = 2\n[models.a]\nmodel = "a.gguf"\n', "no model is in big"),
        ('[models.""]\nmodel = "a.gguf"\n', "name or alias is empty"),
        (
            '[models.a]\nmodel = "a.gguf"\nresident = true\n[models.b]\nmodel = "b.gguf"\n',
            "group device: it has room for 1, and 1 resident",
        ),
        (
            '[models.b]\nmodel = "b.gguf"\n[models.a]\nmodel = "a.gguf"\n[models.a.profiles.b]\ntop_k = 1\n',
            r"models\.a\.profiles\.b: a name is one model's, and b has it",
        ),
        ("models = 3\n", "a table of its own"),
        ("", "there is none in"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        read(text, tmp_path)


def test_a_folder_and_found_ones(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "one.gguf").symlink_to(tiny_model)
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "two.gguf").symlink_to(tiny_model)
    given = {"models": tmp_path / "x", "models_from": (str(tmp_path / "y"),)}
    plan = read_fleet(read_configuration(known_flags(), given, {}, None), {})
    assert [member.name for member in plan.config.members] == ["one", "two"], "the first serves what names no model"
    with pytest.raises(ConfigError, match="models_from: nowhere is no folder"):
        read_fleet(read_configuration(known_flags(), {"models_from": ("nowhere",)}, {}, None), {})
