"""Models without any attention, Mamba and RWKV, of random weights: what is remembered of a text is one state, and going
on with it gives the tokens of reading it all."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import gguf
import pytest

from luce.protocol import Err
from scripts.gguf_weights import Weights
from tests.daemon.conftest import Start
from tests.daemon.exactness import done, generate
from tests.daemon_driver import DaemonDriver, random_prompt

N_EMBD, N_FF, N_VOCAB, N_LAYER = 128, 256, 512, 2
PROMPT = random_prompt(200)


def mamba(w: gguf.GGUFWriter, t: Weights) -> None:
    inner, n_state, n_conv, rank = 2 * N_EMBD, 16, 4, 32
    w.add_layer_norm_rms_eps(1e-5)
    w.add_ssm_conv_kernel(n_conv)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(n_state)
    w.add_ssm_time_step_rank(rank)
    for block in (f"blk.{i}." for i in range(N_LAYER)):
        t.norm(f"{block}attn_norm.weight", N_EMBD)
        t.matrix(f"{block}ssm_in.weight", N_EMBD, 2 * inner)
        t.normal(f"{block}ssm_conv1d.weight", n_conv, inner, deviation=0.5)
        t.normal(f"{block}ssm_conv1d.bias", inner, deviation=0.1)
        t.matrix(f"{block}ssm_x.weight", inner, rank + 2 * n_state)
        t.matrix(f"{block}ssm_dt.weight", rank, inner)
        t.normal(f"{block}ssm_dt.bias", inner, deviation=0.1, mean=-2.0)
        t.normal(f"{block}ssm_a", n_state, inner, deviation=0.05, mean=-0.5)
        t.norm(f"{block}ssm_d", inner)
        t.matrix(f"{block}ssm_out.weight", inner, N_EMBD)


def rwkv7(w: gguf.GGUFWriter, t: Weights, head_size: int = 64) -> None:
    rank = 32
    w.add_layer_norm_eps(1e-5)
    w.add_wkv_head_size(head_size)
    w.add_decay_lora_rank(rank)
    w.add_iclr_lora_rank(rank)
    w.add_value_residual_mix_lora_rank(rank)
    w.add_gate_lora_rank(rank)
    w.add_token_shift_count(2)
    for name in ("token_embd_norm", "output_norm"):
        t.normal(f"{name}.bias", N_EMBD, deviation=0.1)
    t.norm("token_embd_norm.weight", N_EMBD)
    for block in (f"blk.{i}." for i in range(N_LAYER)):
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            t.norm(f"{block}{name}.weight", N_EMBD)
            t.normal(f"{block}{name}.bias", N_EMBD, deviation=0.1)
        for name in "wavg":
            if name != "g":
                t.normal(f"{block}time_mix_{name}0.weight", N_EMBD, deviation=0.3)
            t.matrix(f"{block}time_mix_{name}1.weight", N_EMBD, rank)
            t.matrix(f"{block}time_mix_{name}2.weight", rank, N_EMBD)
        t.normal(f"{block}time_mix_lerp_fused.weight", N_EMBD, 1, 1, 6, deviation=0.2, mean=0.5)
        for name in ("k_k", "k_a", "r_k"):
            t.normal(f"{block}time_mix_{name}.weight", N_EMBD, deviation=0.2, mean=0.5)
        for name in ("key", "value", "receptance", "output"):
            t.matrix(f"{block}time_mix_{name}.weight", N_EMBD, N_EMBD)
        t.normal(f"{block}channel_mix_lerp_k.weight", N_EMBD, 1, 1, deviation=0.2, mean=0.5)
        t.matrix(f"{block}channel_mix_key.weight", N_EMBD, N_FF)
        t.matrix(f"{block}channel_mix_value.weight", N_FF, N_EMBD)


def write_model(path: Path, architecture: str, build: Callable[[gguf.GGUFWriter, Weights], None]) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    writer.add_vocab_size(N_VOCAB)
    writer.add_block_count(N_LAYER)
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(0)
    weights = Weights(writer, 7)
    weights.matrix("token_embd.weight", N_EMBD, N_VOCAB, gain=math.sqrt(N_EMBD))
    weights.matrix("output.weight", N_EMBD, N_VOCAB, gain=6.0)
    weights.norm("output_norm.weight", N_EMBD)
    build(writer, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("build", [mamba, rwkv7])
def test_a_recurrent_model_goes_on_as_if_it_had_read_all(
    start: Start, tmp_path: Path, build: Callable[[gguf.GGUFWriter, Weights], None]
) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, build.__name__, build)
    with closing(start("--ctx", "1024", "--lanes", "2", model=model)) as daemon:
        cold = generate(daemon, PROMPT, "reuse=0", 24)
        assert len(set(cold.tokens)) > 4
        turn = [*PROMPT, *cold.tokens, *random_prompt(40)]
        expected = generate(daemon, turn, "reuse=0", 24).tokens
        assert expected != cold.tokens
        again = generate(daemon, PROMPT, "", 24)
        assert again.tokens == cold.tokens
        next_turn = generate(daemon, turn, "", 24)
        assert next_turn.tokens == expected
        assert next_turn.ok.n_reused > 0
        done(daemon, "park")
        done(daemon, "unpark")
        assert generate(daemon, turn, "", 24).tokens == expected


def test_heads_that_kernels_would_write_behind_are_refused(luced: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    write_model(model, "rwkv7", lambda writer, weights: rwkv7(writer, weights, head_size=32))
    with closing(DaemonDriver(luced, model, "--threads", "1", "--no-warmup")) as daemon:
        refusal = daemon.next_reply()
        assert isinstance(refusal, Err), refusal
        assert "wkv.head_size 32 must be a multiple of 64" in refusal.text
        assert daemon.wait() == 2
