"""A field report with something in every part."""

from __future__ import annotations

from typing import Any

from luce.supervisor.cli.fieldtest.report import FieldReport

REPORT: dict[str, Any] = {
    "format": 1,
    "day": "2026-11-27",
    "minutes": 12.5,
    "volume": "middle",
    "ended": "",
    "notes": ["nothing else ran"],
    "machine": {
        "system": "Linux", "architecture": "x86_64", "cpu": "A processor", "n_cpus": 16, "memory_bytes": 64 << 30,
        "gpus": [{"name": "A card / two names", "memory_bytes": 24 << 30}], "driver": "580.1", "load": 0.1,
    },
    "model": {
        "file": "Some-Model.Q4_K_M.gguf", "header_sha256": "0" * 64, "file_bytes": 1 << 30, "architecture": "qwen2",
        "n_parameters": 1 << 30, "n_context_trained": 32768, "weights": {"Q4_K": 0.8, "Q6_K": 0.2},
    },
    "engine": {
        "version": "0.1.0", "llama_cpp": "b11549", "options": ["--lanes 16"],
        "said": {"kv": "q8_0/q8_0", "lanes": "16"}, "plan": {"gpus": 1, "cache_type_k": "q8_0"},
    },
    "parts": {"agent": {"state": "done", "why": ""}, "drafts": {"state": "failed", "why": "the server is gone"}},
    "exactness": [
        {"check": "reuse", "case": "256 tokens", "verdict": "passed", "n_tokens": 56, "logprob_move": 0.0, "told": ""},
        {"check": "drafter", "case": "", "verdict": "left out", "n_tokens": 0, "logprob_move": None, "told": "none"},
    ],
    "service": {
        "load_s": [1.0, 3.0, 2.0], "process_bytes": 300 << 20, "gpu_bytes": None,
        "depths": [
            {"depth": 64, "n_prompt": 70, "n_samples": 2, "read_per_s": 300.0, "cold_first_token_s": 0.2,
             "warm_first_token_s": 0.1, "decoded_per_s": 50.0},
        ],
        "lanes": [{"n": 4, "n_answer": 64, "tokens_per_s": 120.0}],
    },
    "agent": [
        {"n_prompt": 1000, "n_new": 1000, "n_read": 1000, "first_token_s": 2.0, "cold_first_token_s": None,
         "n_calls": 1, "is_well_formed": True},
        {"n_prompt": 1400, "n_new": 300, "n_read": 303, "first_token_s": 0.5, "cold_first_token_s": 2.5, "n_calls": 0,
         "is_well_formed": False},
    ],
    "drafts": [
        {"kind": "edit", "drafted_per_s": 90.0, "plain_per_s": 60.0, "ratio": [1.5, 1.4, 1.6],
         "busy_ratio": [1.4, 1.3, 1.5], "n_drafted": 100,
         "n_accepted": 80, "is_same_text": True},
    ],
}  # fmt: skip


def report() -> FieldReport:
    return FieldReport.model_validate(REPORT)
