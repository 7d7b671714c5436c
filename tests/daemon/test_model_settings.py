"""What is not as the model's file says: rope scaling and overridden keys. The same as a file that says it, and never
served from memory of another setting."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

from luce.protocol import Err, ErrorCode
from luce.supervisor.text import TextModel
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate, refused, status_of
from tests.daemon.test_residency import Facts
from tests.daemon_driver import DaemonDriver, random_prompt
from tests.needles import SCORER

PROMPT = random_prompt(300)
CTX = ("--ctx", "1024", "--lanes", "1", "--draft-max", "0")
YARN = ("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "128")
UINT32, FLOAT32, STRING = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING
SETTINGS: dict[str, tuple[str, tuple[str, ...], Mapping[str, tuple[gguf.GGUFValueType, Any]]]] = {
    "yarn": (
        "qwen3",
        YARN,
        {
            "rope.scaling.type": (STRING, "yarn"),
            "rope.scaling.factor": (FLOAT32, 4.0),
            "rope.scaling.original_context_length": (UINT32, 128),
        },
    ),
    "yarn of two-dimensional positions": (
        "qwen35",
        YARN,
        {
            "rope.scaling.type": (STRING, "yarn"),
            "rope.scaling.factor": (FLOAT32, 4.0),
            "rope.scaling.original_context_length": (UINT32, 128),
        },
    ),
    "linear": (
        "qwen3",
        ("--rope-scaling", "linear", "--rope-freq-scale", "0.5"),
        {"rope.scaling.type": (STRING, "linear"), "rope.scaling.factor": (FLOAT32, 2.0)},
    ),
    "base": ("qwen3", ("--rope-freq-base", "50000"), {"rope.freq_base": (FLOAT32, 50000.0)}),
    "overridden base": (
        "qwen3",
        ("--override-kv", "qwen3.rope.freq_base=float:50000"),
        {"rope.freq_base": (FLOAT32, 50000.0)},
    ),
    "overridden experts": (
        "qwen3moe",
        ("--override-kv", "qwen3moe.expert_used_count=int:4"),
        {"expert_used_count": (UINT32, 4)},
    ),
}


def with_keys(model: Path, folder: Path, keys: Mapping[str, tuple[gguf.GGUFValueType, Any]]) -> Path:
    """A copy whose metadata says so."""
    reader = gguf.GGUFReader(model)
    architecture = reader.get_field(gguf.Keys.General.ARCHITECTURE)
    assert architecture is not None
    arch = str(architecture.contents())
    writer = gguf.GGUFWriter(folder / "changed.gguf", arch)
    new = {f"{arch}.{key}": MetadataDetails(kind, value) for key, (kind, value) in keys.items()}
    copy_with_new_metadata(reader, writer, new, [])
    return folder / "changed.gguf"


def told_of(daemon: DaemonDriver) -> tuple[list[int], list[tuple[float, ...]]]:
    answer = generate(daemon, PROMPT, "logprobs=2", 12)
    return answer.tokens, [tuple(value for _, value in line.entries) for line in answer.logprobs]


@pytest.mark.parametrize("name", SETTINGS)
def test_it_is_as_if_the_file_said_it(start: Start, test_models: Path, tmp_path: Path, name: str) -> None:
    family, options, keys = SETTINGS[name]
    model = test_models / f"{family}.gguf"
    with closing(start(*CTX, *options, model=model)) as daemon:
        by_options, identity = told_of(daemon), dict(daemon.ready.fields)["identity"]
    with closing(start(*CTX, model=with_keys(model, tmp_path, keys))) as daemon:
        assert told_of(daemon) == by_options
    with closing(start(*CTX, model=model)) as daemon:
        assert told_of(daemon) != by_options
        assert dict(daemon.ready.fields)["identity"] != identity


def test_memory_of_another_setting_is_none(start: Start, test_models: Path, tmp_path: Path) -> None:
    model, disk, snapshot = test_models / "qwen3.gguf", tmp_path / "disk", tmp_path / "slot.snap"
    settings = [(), YARN, (*YARN, "--yarn-beta-fast", "16"), ("--override-kv", "qwen3.rope.freq_base=float:50000")]
    for options in settings:
        with closing(start(*CTX, *options, "--disk-cache", str(disk), model=model)) as daemon:
            told = generate(daemon, PROMPT, f"snap={len(PROMPT)}:0", 4)
            assert told.ok.n_reused == 0, options
            if options == ():
                done(daemon, f"SAVE 0 {snapshot}")
            else:
                assert refused(daemon, f"LOAD 1 {snapshot}") == ErrorCode.BAD_SNAPSHOT
    for options in settings:
        with closing(start(*CTX, *options, "--disk-cache", str(disk), model=model)) as daemon:
            assert generate(daemon, PROMPT, "", 4).ok.n_reused >= len(PROMPT) - 64, options
            done(daemon, "park")
            done(daemon, "unpark")
            assert generate(daemon, PROMPT, "", 4).ok.n_reused >= len(PROMPT) - 64, options


def test_a_scaled_model_reads_longer_texts_by_itself(start: Start, test_models: Path) -> None:
    model = test_models / "qwen3.gguf"
    wide = ("--lanes", "1", "--draft-max", "0")
    for options, n_ctx in (((), 8192), (("--rope-scaling", "yarn", "--rope-scale", "2"), 16384)):
        with closing(start(*wide, *options, model=model)) as daemon:
            assert dict(daemon.ready.fields)["ctx"] == str(n_ctx)


def test_a_plan_is_of_the_model_as_it_is_set(luced: Path, test_models: Path) -> None:
    def plan(*options: str) -> subprocess.CompletedProcess[str]:
        command = [str(luced), "--model", str(test_models / "qwen3.gguf"), "--plan", "--plan-gpus", "8G", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for options, n_ctx in (
        ((), 8192),
        (("--override-kv", "qwen3.context_length=int:1280"), 1280),
        (("--rope-scaling", "yarn", "--rope-scale", "2"), 16384),
        (("--ctx", "12K"), 12288),
    ):
        assert f" ctx={n_ctx} " in plan(*options).stdout, options
    unread = plan("--override-kv", "qwen3.no_such_key=int:1")
    assert unread.returncode != 0
    assert "reads no such key" in unread.stdout


def test_parts_of_a_prompt_stand_where_they_stand(start: Start, tiny_model: Path) -> None:
    """Reading in parts shifts what RoPE sees: of scaled positions as well."""
    facts = Facts(TextModel(tiny_model), seed=9)
    scaled = ("--ctx", "8192", "--rope-scaling", "yarn", "--rope-scale", "2")
    daemon = start(*scaled, "--prefill-scorer", str(SCORER))
    prompt, code = facts.prompt(140, 0.6)
    first = generate(daemon, prompt, "prefill=sparse prefill_keep=0.3", 24)
    assert first.ok.n_read is not None
    assert facts.tells(first.tokens, code)
    while status_of(daemon)["prefill_repairs"] != "0":
        pass
    next_turn = [*prompt, *first.tokens, *facts.ids("\n<|im_start|>user\nAnd again?<|im_end|>\n")]
    told = generate(daemon, next_turn, "", 24)
    assert told.ok.n_reused >= len(prompt)
    assert told.tokens == generate(start(*scaled), next_turn, "", 24).tokens


@pytest.mark.parametrize(
    ("options", "text", "status"),
    [
        (("--override-kv", "qwen3.no_such_key=int:1"), "reads no such key", 64),
        (("--override-kv", "qwen3.rope.freq_base=int:1"), "expected float but got int", 64),
        (("--override-kv", "tokenizer.ggml.add_bos_token=bool:true"), "vocabulary", 64),
        (("--override-kv", "general.architecture=str:llama"), "another kind of file", 64),
        (("--override-kv", "qwen3.rope.freq_base=float:1,qwen3.rope.freq_base=float:2"), "twice", 64),
        (("--override-kv", "qwen3.rope.freq_base=float:nan"), "finite", 64),
        (("--override-kv", "qwen3.rope.freq_base=1"), "KEY=TYPE:VALUE", 64),
        (("--override-kv", "qwen3.block_count=int:1000000"), "qwen3", 2),
        (("--rope-scaling", "yarn", "--yarn-attn-factor", "1"), "--yarn-ext-factor 0", 64),
        (("--yarn-beta-fast", "2"), "--rope-scaling yarn", 64),
    ],
)
def test_what_cannot_be_is_refused(
    luced: Path, test_models: Path, options: tuple[str, ...], text: str, status: int
) -> None:
    daemon = DaemonDriver(luced, test_models / "qwen3.gguf", "--ctx", "256", *options)
    refusal = daemon.next_reply()
    assert isinstance(refusal, Err), refusal
    assert text in refusal.text
    assert daemon.wait() == status
    daemon.close()


def test_a_hybrid_model_without_attention_is_refused_by_name(luced: Path, test_models: Path) -> None:
    daemon = DaemonDriver(luced, test_models / "qwen35_recurrent.gguf")
    refusal = daemon.next_reply()
    assert isinstance(refusal, Err), refusal
    assert "all of its 3 layers are recurrent" in refusal.text
    assert daemon.wait() == 2
    daemon.close()
