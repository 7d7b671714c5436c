"""Configuration of `luce serve`: who decides, what a value may be, and how it says what is wrong."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from luce.supervisor.cli.serve import command, draft_answers, expert_profiles, known_flags
from luce.supervisor.config import ConfigError, SupervisorConfig
from luce.supervisor.config.loading import Configuration, known_options, read_configuration
from luce.supervisor.config.text import configuration_text
from luce.supervisor.http.answer_defaults import AnswerDefaults
from luce.supervisor.http.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path("/m.gguf")


def read(
    text: str = "", *, given: dict[str, object] | None = None, folder: Path | None = None, **environ: str
) -> Configuration:
    """Of a file with `text`, in `folder`."""
    file = None
    if folder is not None:
        file = folder / "luce.toml"
        file.write_text(text)
    return read_configuration(known_flags(), given or {}, environ, file)


def test_nothing_given_is_the_classes_own_defaults() -> None:
    configuration = read()
    assert configuration.serve_settings() == ServeSettings()
    assert configuration.supervisor_config(model=MODEL) == SupervisorConfig(model=MODEL)


def test_every_field_is_an_option_but_those_that_are_not_people_s() -> None:
    fields = {entry.name for kind in (SupervisorConfig, ServeSettings) for entry in dataclasses.fields(kind)}
    assert fields - set(known_options(known_flags())) == {"embedding", "stream_fd", "mux", "die_with_parent"}


def test_the_flag_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    text = "port = 1\nctx = 1\nlanes = 1\n"
    configuration = read(text, given={"port": 3}, folder=tmp_path, LUCE_PORT="2", LUCE_CTX="2")
    found = {name: (configuration[name], configuration.settings[name].origin) for name in ("port", "ctx", "lanes")}
    assert found == {"port": (3, "--port"), "ctx": (2, "LUCE_CTX"), "lanes": (1, str(tmp_path / "luce.toml"))}
    assert configuration.settings["host"].origin == "default"


def test_values_have_their_types(tmp_path: Path) -> None:
    text = """
        model = "models/m.gguf"
        ctx = 65536
        host-cache = "8G"
        disk_budget = 123
        slot_budget = "1K"
        max_body = "2m"
        flash_attn = true
        prefix_cache = "off"
        keep_alive = 2
        queue_timeout = "none"
        alias = ["a", "b"]
        cors_origins = "*"
        restore_answers = false
        [[engines]]
        env = { CUDA_VISIBLE_DEVICES = "0" }
        [[engines]]
        gpu_layers = 0
        host_cache = "1G"
    """
    configuration = read(text, folder=tmp_path)
    config = configuration.supervisor_config(model=configuration["model"])
    settings = configuration.serve_settings()
    assert config.model == tmp_path / "models/m.gguf"
    assert (config.ctx, config.host_cache, config.disk_budget, config.slot_budget) == (65536, 8 << 30, 123, 1024)
    assert (config.flash_attn, config.prefix_cache, config.queue_timeout_s) == ("on", "off", None)
    assert (settings.keep_alive_s, settings.aliases, settings.cors_origins) == (2.0, ("a", "b"), ("*",))
    assert (settings.restores_answers, settings.max_body_bytes) == (False, 2 << 20)
    first, second = config.engine_configs()
    assert first.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert second.options == {"gpu_layers": 0, "host_cache": 1 << 30}


@pytest.mark.parametrize("word", ["0", "false", "off", "no", "OFF", "False"])
def test_a_switch_of_the_environment_can_be_off(word: str) -> None:
    assert read(LUCE_RESTORE_ANSWERS=word).serve_settings().restores_answers is False


@pytest.mark.parametrize("word", ["1", "true", "on", "yes"])
def test_a_switch_of_the_environment_can_be_on(word: str, tmp_path: Path) -> None:
    configuration = read("restore_answers = false", folder=tmp_path, LUCE_RESTORE_ANSWERS=word)
    assert configuration.serve_settings().restores_answers is True


def test_the_environment_has_lists_numbers_and_sizes() -> None:
    configuration = read(LUCE_ALIAS="a, b,", LUCE_KEEP_ALIVE="0.5", LUCE_HOST_CACHE="2G", LUCE_GPU_LAYERS="0")
    assert configuration["aliases"] == ("a", "b")
    assert configuration["keep_alive_s"] == 0.5
    assert (configuration["host_cache"], configuration["gpu_layers"]) == (2 << 30, 0)
    for text, n_bytes in (("1.5G", 3 << 29), ("8 GiB", 8 << 30), ("2kb", 2048), ("0.3M", 314572)):
        assert read(LUCE_HOST_CACHE=text)["host_cache"] == n_bytes
    for text, n_tokens in (("40K", 40960), ("1m", 1 << 20), ("4096", 4096)):
        configuration = read(LUCE_CTX=text, LUCE_KV_OFFLOAD=text)
        assert (configuration["ctx"], configuration["kvflash"]) == (n_tokens, n_tokens)
    with pytest.raises(ConfigError, match=r"is not a number of tokens \(examples: 4096, 32K\)"):
        read(LUCE_CTX="40X")
    for text in ("1.5", "G", "8X", "8GG", "1e3", "-1"):
        with pytest.raises(ConfigError, match="is not a number of bytes"):
            read(LUCE_HOST_CACHE=text)


def test_an_empty_variable_is_as_if_unset_but_for_a_key() -> None:
    assert read(LUCE_CTX="").settings["ctx"].origin == "default"
    with pytest.raises(ConfigError, match=r"^LUCE_API_KEY is empty"):
        read(LUCE_API_KEY="")


def test_what_others_put_into_the_environment_does_not_matter() -> None:
    read(LUCE_DAEMON_BINARY="x", LUCE_SERVICE_HOST="10.0.0.1", LUCE_PORT_8080_TCP_ADDR="10.0.0.1", LUCID="1")


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        (
            "LUCE_PORT",
            "tcp://10.0.0.1:8080",
            "LUCE_PORT=tcp://10.0.0.1:8080: 'tcp://10.0.0.1:8080' is not a whole number",
        ),
        ("LUCE_PORT", "65536", "65536 is not in the range"),
        ("LUCE_CTX", "0", "LUCE_CTX=0: 0 is not in the range"),
        ("LUCE_CTX", "-1", "'-1' is not a number of tokens (examples: 4096, 32K)"),
        ("LUCE_KEEP_ALIVE", "nan", "nan is not a number"),
        ("LUCE_KEEP_ALIVE", "11", "11"),
        ("LUCE_RESTORE_ANSWERS", "maybe", "neither on"),
        ("LUCE_HOST_CACHE", "8X", "is not a number of bytes (examples: 1000, 64M, 8G)"),
        ("LUCE_FLASH_ATTN", "perhaps", "not one of auto, on, off"),
        ("LUCE_PROT", "1", "LUCE_PROT: there is no such option; did you mean LUCE_PORT?"),
        ("LUCE_CONFIG", "/no/such.toml", "/no/such.toml: No such file or directory"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(variable: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_configuration(known_flags(), {}, {variable: text}, None)
    assert said in str(caught.value)
    assert variable in str(caught.value) or variable == "LUCE_CONFIG"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "there is no option prot; did you mean port?"),
        ("zzz = 1", "there is no option zzz"),
        ("[serve]\nport = 1", "there is no option serve"),
        ('ctx = "many"', "ctx: 'many' is not a number of tokens"),
        ("ctx = 1.5", "ctx: 1.5 is not a whole number"),
        ("ctx = true", "ctx: True is not a whole number"),
        ("ctx = 0", "ctx: 0 is not in the range"),
        ("slots = -1", "slots: it must be 0 or more"),
        ("model = 5", "model: 5 is not a path"),
        ('model = "a\\u0000b"', "zero byte"),
        ("restore_answers = 1", "restore_answers: 1 is not true or false"),
        ("shared_prefixes = false", "say cache_isolation"),
        ("alias = [1]", "alias: it must be a list of texts"),
        ("keep_alive = inf", "keep_alive: inf is not a number"),
        ("keep_alive = 1\nkeep_alive_s = 1", "given twice"),
        ("ctx = 1\nctx = 2", "is not TOML"),
        ("ctx = ", "is not TOML"),
        ('engines = "two"', "engines: each engine is a table"),
        ("[[engines]]\nport = 1", "engines[0]: there is no option port"),
        ("[[engines]]\nlayers = 1", "engines[0]: there is no option layers; did you mean gpu_layers?"),
        ("[[engines]]\n[[engines]]\nctx = 'x'", "engines[1].ctx: 'x' is not a number of tokens"),
        ("[[engines]]\nenv = { A = 1 }", "engines[0].env: it must be a table of texts"),
        ("[[engines]]\nmux = true", "engines[0]: there is no option mux"),
        ("ctx = 2026-11-20", "ctx: datetime.date(2026, 11, 20) is not a whole number"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text, folder=tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "luce.toml"))
    assert said in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "luce.toml"
    file.write_bytes(b"alias = '\xff'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_configuration({}, {}, {}, file)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_configuration({}, {}, {}, tmp_path)


def test_what_a_class_refuses_names_who_said_it(tmp_path: Path) -> None:
    configuration = read("max_queue = 0\nping_interval = 0", folder=tmp_path)
    with pytest.raises(ConfigError, match=r"luce\.toml: ping_interval_s must be above 0"):
        configuration.supervisor_config(model=MODEL)


SPECULATION = {
    "draft": ("d.gguf", "d.gguf"), "mtp": ("on", True), "draft_max": ("0", 0), "draft_gate": ("off", "off"),
    "draft_accept": ("match", "match"),
    "draft_ngram": ("off", "off"), "draft_tree": ("8", 8), "spec_memory": ("2G", "2G"),
    "draft_cache_type_k": ("f16", "f16"), "draft_cache_type_v": ("q8_0", "q8_0"), "draft_gpu_layers": ("0", 0),
    "draft_threads": ("3", 3),
}  # fmt: skip


def test_speculation_is_set_by_file_environment_and_flag(tmp_path: Path) -> None:
    folder = tmp_path.absolute()
    expected = {
        "mtp": True, "draft_max": 0, "draft_gate": "off", "draft_accept": "match", "draft_ngram": "off",
        "draft_tree": 8, "spec_memory": 2 << 30,
        "draft_cache_type_k": "f16", "draft_cache_type_v": "q8_0", "draft_gpu_layers": 0, "draft_threads": 3,
    }  # fmt: skip

    def seen(configuration: Configuration, draft: Path) -> None:
        config = configuration.supervisor_config(model=MODEL)
        assert {name: getattr(config, name) for name in SPECULATION} == expected | {"draft": draft}

    text = "\n".join(f"{name} = {json.dumps(item)}" for name, (_, item) in SPECULATION.items())
    in_file = read(text, folder=folder)
    seen(in_file, folder / "d.gguf")
    environ: dict[str, Any] = {f"LUCE_{name.upper()}": text for name, (text, _) in SPECULATION.items()}
    seen(read("", folder=folder, **environ), Path("d.gguf"))
    seen(read(configuration_text(in_file), folder=folder), folder / "d.gguf")
    one = read(
        "draft_max = 3\n[[engines]]\ndraft = 'own.gguf'\nmtp = true\n[[engines]]", folder=folder, LUCE_DRAFT_MAX="4"
    )
    config = one.supervisor_config(model=MODEL)
    first, second = map(config.daemon_config, config.engine_configs())
    assert (first.draft, first.mtp, first.draft_max) == (folder / "own.gguf", True, 4)
    assert (second.draft, second.mtp, second.draft_max) == (None, False, 4)


def test_a_pool_that_texts_may_outgrow_is_set_by_file_environment_and_flag(tmp_path: Path) -> None:
    def seen(configuration: Configuration) -> tuple[object, ...]:
        config = configuration.supervisor_config(model=MODEL)
        return (config.pool, config.kvflash, config.kvflash_tau, config.kvflash_policy)

    in_file = read("kvflash = 2560\nkvflash-tau = 32\nkvflash_policy = 'lru'", folder=tmp_path)
    assert seen(in_file) == (None, 2560, 32, "lru")
    assert seen(read(LUCE_KVFLASH="2560", LUCE_KVFLASH_TAU="32", LUCE_KVFLASH_POLICY="query")) == (
        None,
        2560,
        32,
        "query",
    )
    assert seen(read(given={"kvflash": 640})) == (None, 640, None, None)
    assert seen(read(configuration_text(in_file), folder=tmp_path)) == (None, 2560, 32, "lru")
    for automatic in (read("kvflash = 'auto'", folder=tmp_path), read(LUCE_KVFLASH="auto")):
        assert seen(automatic)[1] == "auto"
        assert seen(read(configuration_text(automatic), folder=tmp_path))[1] == "auto"
    pinned = (
        read("kvflash = 640\nkvflash_pin = ['0:64', '100:200']", folder=tmp_path),
        read(LUCE_KVFLASH="640", LUCE_KVFLASH_PIN="0:64, 100:200"),
        read(given={"kvflash": 640, "kvflash_pin": ("0:64", "100:200")}),
    )
    for configuration in (*pinned, read(configuration_text(pinned[0]), folder=tmp_path)):
        assert configuration.supervisor_config(model=MODEL).kvflash_pin == ("0:64", "100:200")
    scored = read("kvflash = 640\nkvflash_policy = 'draft'\nkvflash-scorer = 's.gguf'", folder=tmp_path)
    assert scored.supervisor_config(model=MODEL).kvflash_scorer == tmp_path / "s.gguf"
    assert read(LUCE_KVFLASH="640", LUCE_KVFLASH_SCORER="s.gguf").supervisor_config(model=MODEL).kvflash_scorer == Path(
        "s.gguf"
    )
    for file, said in (("kvflash_layer = 0", 0), ("kvflash_layer = 'auto'", "auto"), ("kvflash_layer = 'none'", None)):
        of_file = read("kvflash = 640\n" + file, folder=tmp_path)
        assert of_file.supervisor_config(model=MODEL).kvflash_layer == said
        again = read(configuration_text(of_file), folder=tmp_path)
        assert again.supervisor_config(model=MODEL).kvflash_layer == said
    over_file = read("kvflash = 640\nkvflash_layer = 3", folder=tmp_path, LUCE_KVFLASH_LAYER="auto")
    assert over_file.supervisor_config(model=MODEL).kvflash_layer == "auto"
    assert read(LUCE_KVFLASH="640", LUCE_KVFLASH_LAYER="7").supervisor_config(model=MODEL).kvflash_layer == 7
    # One engine of several, and a file's pool that is not meant now.
    one = read("pool = 4096\n[[engines]]\npool = 'none'\nkvflash = 640\n[[engines]]", folder=tmp_path)
    config = one.supervisor_config(model=MODEL)
    first, second = map(config.daemon_config, config.engine_configs())
    assert ((first.pool, first.kvflash), (second.pool, second.kvflash)) == ((None, 640), (4096, None))
    assert seen(read("pool = 4096", folder=tmp_path, LUCE_POOL="none", LUCE_KVFLASH="640"))[:2] == (None, 640)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kvflash = 0", "kvflash"),
        ("kvflash = -64", "kvflash"),
        ("kvflash = '8X'", "kvflash"),
        ("kvflash = 64.5", "kvflash"),
        ("kvflash = true", "kvflash"),
        ("kvflash_tau = 0", "kvflash_tau"),
        ("kvflash_tau = 65537", "kvflash_tau"),
        ("kvflash_policy = 'newest'", "kvflash_policy"),
        ("kvflash_pin = '5'", "kvflash_pin"),
        ("kvflash_pin = '9:5'", "kvflash_pin"),
        ("kvflash_pin = '-1:5'", "kvflash_pin"),
        ("kvflash_pin = '0:5:9'", "kvflash_pin"),
        ("kvflash_pin = '0:2147483648'", "kvflash_pin"),
        ("kvflash_layer = -1", "kvflash_layer"),
        ("kvflash_layer = 'last'", "kvflash_layer"),
        ("kvflash_layer = 7.5", "kvflash_layer"),
    ],
)
def test_a_pool_that_cannot_be_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "luce.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"luce\.toml: {said}: "):
        read_configuration(known_flags(), {}, {}, tmp_path / "luce.toml")
    name, _, value = text.replace("'", "").partition(" = ")
    with pytest.raises(ConfigError, match=rf"LUCE_{said.upper()}="):
        read_configuration(known_flags(), {}, {f"LUCE_{name.upper()}": value}, None)


def test_to_have_no_draft_can_be_said(tmp_path: Path) -> None:
    said = [
        read("draft = 'none'", folder=tmp_path),
        read(LUCE_DRAFT="none"),
        read(given={"draft": None}),
    ]
    said.append(read(configuration_text(said[0]), folder=tmp_path))
    for configuration in said:
        assert configuration["draft"] is None
        assert configuration.settings["draft"].origin != "default"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("draft_max = 65", "draft_max"),
        ("draft_tree = 257", "draft_tree"),
        ("draft_gate = 'auto'", "draft_gate"),
        ("draft_accept = 'always'", "draft_accept"),
        ("mtp = 'yes'", "mtp"),
        ("draft_threads = 0", "draft_threads"),
        ("spec_memory = '2X'", "spec_memory"),
    ],
)
def test_speculation_that_cannot_be_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "luce.toml").write_text(text)
    with pytest.raises(ConfigError, match=rf"luce\.toml: {said}: "):
        read_configuration(known_flags(), {}, {}, tmp_path / "luce.toml")


def test_rejection_sampling_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    configuration = read("draft_accept = 'rejection'", folder=tmp_path)
    with pytest.raises(ConfigError, match="rejection was removed: leave it out"):
        configuration.supervisor_config(model=MODEL)
    engines = [{"draft_accept": "rejection"}, {}]
    with pytest.raises(ConfigError, match="rejection was removed"):
        SupervisorConfig(model=MODEL, engines=engines)


def test_keys_come_from_a_file_too_and_are_shown_nowhere(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\nfirst-secret\n\n  second-secret \n")
    configuration = read("api_key_file = 'keys'\n", folder=tmp_path, LUCE_API_KEY="third-secret")
    assert configuration.serve_settings().api_keys == ("third-secret", "first-secret", "second-secret")
    assert "secret" not in configuration_text(configuration)
    (tmp_path / "keys").write_text("# none\n")
    with pytest.raises(ConfigError, match="holds no key"):
        configuration.serve_settings()
    (tmp_path / "keys").unlink()
    with pytest.raises(ConfigError, match="No such file"):
        configuration.serve_settings()


def test_clients_that_are_kept_apart_are_not_drafted_from_each_other_s_answers() -> None:
    for given, answers in (
        ({}, None),
        ({"cache_isolation": "key"}, "off"),
        ({"cache_isolation": "key", "draft_answers": "on"}, "on"),
        ({"draft_answers": "off"}, "off"),
    ):
        configuration = read(given=dict(given))
        assert draft_answers(configuration, configuration.serve_settings()) == answers


def test_which_experts_are_used_most_is_kept_in_the_cache_folder_unless_told_otherwise(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": "/c"}
    assert expert_profiles(read(), environ) == Path("/c/luce-daemon/experts")
    assert expert_profiles(read(), {}) == Path.home() / ".cache/luce-daemon/experts"
    assert expert_profiles(read(given={"expert_profiles": Path("here")}), environ) == Path("here")
    for none in (
        read(given={"expert_profiles": None}),
        read('expert_profiles = "none"', folder=tmp_path),
        read(LUCE_EXPERT_PROFILES="none"),
    ):
        assert expert_profiles(none, environ) is None


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    text = """
        ctx = 4096
        alias = ["a \\"b\\"", "ü"]
        queue_timeout = "none"
        host_cache = "8G"
        disk_cache = "cache"
        restore_answers = false
        reasoning = "on"
        chat_template_kwargs = { a = 1, b = ["x", { c = "y" }] }
        [[engines]]
        env = { "A-B" = "0" }
        binary = "luced"
        lanes = 2
        [[engines]]
        [profiles.luce-fast]
        reasoning = "off"
        temperature = 0.5
        [profiles."a b"]
    """
    configuration = read(text, folder=tmp_path, LUCE_LANES="3")
    shown = tmp_path / "shown.toml"
    shown.write_text(configuration_text(configuration))
    again = read_configuration(known_flags(), {}, {}, shown)
    assert {name: setting.value for name, setting in again.settings.items()} == {
        name: setting.value for name, setting in configuration.settings.items()
    }
    lines = shown.read_text().splitlines()
    assert any(line.startswith("lanes = 3 ") and line.endswith("# LUCE_LANES") for line in lines)
    assert any(line.startswith("port = 8080 ") and line.endswith("# default") for line in lines)


def test_profiles_and_what_all_answers_are_made_with(tmp_path: Path) -> None:
    text = """
        temperature = 0.7
        reasoning-effort = "low"
        chat_template_kwargs = { preserve_thinking = true }
        [profiles.luce-think]
        reasoning = "on"
        reasoning_budget = 4096
        chat_template_kwargs = { b = 2 }
        [profiles.luce-fast]
        reasoning = "off"
        force_temperature = 0
    """
    settings = read(text, folder=tmp_path, LUCE_TOP_K="7").serve_settings()
    assert (settings.temperature, settings.top_k, settings.reasoning_effort) == (0.7, 7, "low")
    assert settings.template_arguments == {"preserve_thinking": True}
    assert settings.profiles == {
        "luce-think": AnswerDefaults(reasoning="on", reasoning_budget=4096, template_arguments={"b": 2}),
        "luce-fast": AnswerDefaults(reasoning="off", force_temperature=0),
    }
    assert read(LUCE_CHAT_TEMPLATE_KWARGS='{"a": [1]}').serve_settings().template_arguments == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profiles = 1", "profiles: each profile is a table of its own"),
        ("[profiles.a]\nport = 1", "profiles.a: there is no option port"),
        ("[profiles.a]\nreasonin = 'on'", "did you mean reasoning?"),
        ("[profiles.a]\nreasoning = 'maybe'", "profiles.a.reasoning: 'maybe' is not one of"),
        ("[profiles.a]\ntop_p = 2", "profiles.a: top_p=2.0: it must be from 0 to 1"),
        ("chat_template_kwargs = 'x'", "chat_template_kwargs: 'x' is not a table"),
    ],
)
def test_profiles_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text, folder=tmp_path)
    assert said in str(raised.value)


def test_the_variables_that_help_and_documents_name_are_there() -> None:
    told = command.epilog or ""
    told += (ROOT / "docs" / "configuration.md").read_text("utf-8")
    named = set(re.findall(r"LUCE_[A-Z][A-Z_]+", told))
    named -= {"LUCE_CHECK_ANSWERS", "LUCE_CONFIG", "LUCE_DAEMON_BINARY", "LUCE_TEXT_LIBRARY"}  # no options
    known = {variable for option in known_options(known_flags()).values() for variable in option.variables}
    assert named
    assert named <= known
