"""docs/reference/options.md and the typed configuration say what the table of options says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

from luce.supervisor.config import DaemonConfig
from luce.supervisor.config.table import engine_options
from scripts.make_reference import reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"


def test_the_reference_page_is_made_of_the_table() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run scripts/make_reference.py > docs/reference/options.md"


def test_the_table_and_the_configuration_have_the_same_options() -> None:
    assert engine_options().keys() - {
        "rpc_worker",
        "rpc_tensor_cache",
        "plan",
        "plan_gpus",
        "plan_host",
        "version",
        "help",
    } == {entry.name for entry in fields(DaemonConfig)}


def test_the_choices_of_the_table_are_those_of_the_types() -> None:
    hints = get_type_hints(DaemonConfig)
    for field, option in engine_options().items():
        if option.kind == "choice":
            (literal, _) = get_args(hints[field])
            assert set(option.choices) == set(get_args(literal)), field
