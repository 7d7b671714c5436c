"""DaemonConfig and the finding of parts: no engine needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from luce.supervisor import DaemonConfig, NotInstalledError, SupervisorConfig, find_luced
from luce.supervisor.config import ConfigError, engine_environment
from luce.supervisor.config.table import engine_options


def test_unset_options_are_left_to_the_daemon() -> None:
    assert DaemonConfig(model=Path("m.gguf")).to_argv() == ["--model", "m.gguf"]


def test_zero_is_a_value() -> None:
    argv = DaemonConfig(model=Path("m.gguf"), queue=0, gpu_layers=0, seed=0, load_timeout=0).to_argv()
    for flag in ("--queue", "--gpu-layers", "--seed", "--load-timeout"):
        assert argv[argv.index(flag) + 1] == "0"


def test_speculation_becomes_arguments() -> None:
    config = DaemonConfig(
        model=Path("m"),
        draft=Path("d.gguf"),
        mtp=True,
        draft_max=0,
        draft_gate="off",
        draft_tree=0,
        spec_memory=1 << 30,
    )
    assert config.to_argv() == [
        "--model", "m", "--draft", "d.gguf", "--mtp", "--draft-max", "0", "--draft-adaptive", "off",
        "--draft-tree", "0", "--draft-state-memory", "1073741824",
    ]  # fmt: skip
    supervisor = SupervisorConfig(
        model=Path("m"), draft=Path("d"), engines=[{}, {"model": Path("n"), "draft": None, "mtp": True}]
    )
    first, second = map(supervisor.daemon_config, supervisor.engine_configs())
    assert (first.draft, first.mtp) == (Path("d"), False)
    assert (second.model, second.draft, second.mtp) == (Path("n"), None, True)


def test_a_pool_that_texts_may_outgrow_becomes_arguments() -> None:
    supervisor = SupervisorConfig(
        model=Path("m"),
        pool=4096,
        engines=[{}, {"pool": None, "kvflash": 2560, "kvflash_tau": 32, "kvflash_policy": "lru", "kvflash_layer": 0}],
    )
    first, second = map(supervisor.daemon_config, supervisor.engine_configs())
    assert first.to_argv() == ["--model", "m", "--pool", "4096"]
    expected = ["--model", "m", "--kv-offload", "2560", "--kv-offload-interval", "32", "--kv-offload-policy", "lru"]
    assert second.to_argv() == [*expected, "--kv-offload-layer", "0"]
    assert DaemonConfig(model=Path("m"), kvflash="auto").to_argv() == ["--model", "m", "--kv-offload", "auto"]
    pinned = DaemonConfig(model=Path("m"), kvflash=640, kvflash_pin=("0:64", "100:200"))
    assert pinned.to_argv() == ["--model", "m", "--kv-offload", "640", "--kv-offload-pin", "0:64,100:200"]
    scored = DaemonConfig(
        model=Path("m"), kvflash=640, kvflash_policy="draft", kvflash_scorer=Path("s"), kvflash_scorer_cache_type="f16"
    )
    expected = ["--kv-offload-policy", "draft", "--kv-offload-scorer", "s", "--kv-offload-scorer-cache-type", "f16"]
    assert scored.to_argv() == ["--model", "m", "--kv-offload", "640", *expected]


def test_how_a_bounded_pool_is_used_needs_one() -> None:
    model = Path("m")
    for used in ({"kvflash_tau": 32}, {"kvflash_policy": "lru"}, {"kvflash_pin": ("0:64",)}):
        (name,) = used
        with pytest.raises(ConfigError, match=rf"^{name} is for a pool that texts may outgrow: set kvflash"):
            SupervisorConfig(model=model, **used)
        with pytest.raises(ConfigError, match=rf"^{name} is for"):
            SupervisorConfig(model=model, engines=[{"kvflash": 640}, used])
        # Said for all, it is for those that have one.
        config = SupervisorConfig(model=model, engines=[{"kvflash": 640}, {"pool": 4096}], **used)
        bounded, other = map(config.daemon_config, config.engine_configs())
        assert getattr(bounded, name) == used[name]
        assert getattr(other, name) is None
        assert SupervisorConfig(model=model, kvflash="auto", **used).kvflash == "auto"


def test_every_field_becomes_an_argument() -> None:
    values = {
        field.name: True if field.type == "bool" else ("0:7",) if "tuple" in str(field.type) else 7
        for field in dataclasses.fields(DaemonConfig)
        if field.name != "model"
    }
    argv = DaemonConfig(model=Path("m.gguf"), **values).to_argv()  # type: ignore[arg-type]
    for name in values:
        assert f"--{engine_options()[name].name}" in argv


def test_the_binary_can_be_named(tmp_path: Path) -> None:
    program = tmp_path / "luced"
    program.touch(mode=0o755)
    assert find_luced({"LUCE_DAEMON_BINARY": str(program)}) == program
    with pytest.raises(NotInstalledError, match="correct or unset it"):
        find_luced({"LUCE_DAEMON_BINARY": str(tmp_path / "none")})
    assert find_luced({"LUCE_DAEMON_BINARY": ""}) == find_luced({})


def test_the_callers_openmp_settings_come_first() -> None:
    assert engine_environment({"A": "b"}) == {"A": "b", "GOMP_SPINCOUNT": "20000"}
    for own in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        assert engine_environment(own) == own


def test_each_engine_writes_a_trace_of_its_own() -> None:
    trace = Path("steps.json")
    with pytest.raises(ConfigError, match="a file of its own"):
        SupervisorConfig(model=Path("m"), trace=trace, engines=[{}, {}])
    for config in (
        SupervisorConfig(model=Path("m"), trace=trace),
        SupervisorConfig(model=Path("m"), trace=trace, engines=[{}, {"trace": Path("second.json")}]),
        SupervisorConfig(model=Path("m"), engines=[{}, {"trace": trace}]),
    ):
        assert config.daemon_config(config.engine_configs()[-1]).trace is not None
