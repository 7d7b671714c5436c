"""What the routes of endpoints and text_endpoints take and give: models of their bodies, schemas of their answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from luce.supervisor.http.admin.openapi import NUMBER, TEXT, listed, record

Token = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]


class TokenizeBody(BaseModel):
    """`content` is a text, or a list of texts and ids that are taken as they stand; without one there are no tokens."""

    model_config = ConfigDict(extra="allow")

    prompt: StrictStr | None = Field(default=None, description="vLLM's word for a text in `content`")
    add_special_tokens: StrictBool = Field(default=True, description="vLLM's word for `add_special`, with `prompt`")

    content: StrictStr | list[StrictStr | Token] | None = None
    add_special: StrictBool = Field(default=False, description="with BOS and EOS, where the model wants them")
    parse_special: StrictBool = Field(default=True, description="spellings of control tokens become those tokens")
    with_pieces: StrictBool = Field(default=False, description="tokens as objects with their text")


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(extra="allow")

    tokens: list[Token] = Field(default_factory=list)


_N_CTX = {"type": ["integer", "null"]}

_STATE = {"enum": ["starting", "ready", "backoff", "away", "stopping", "failed"]}
PROBE = record({"status": {"type": "string"}})
HEALTH = record(
    {
        "status": {"enum": ["ok", "degraded", "failed"]},
        "live": {"const": True},
        "ready": {"type": "boolean"},
        "engines": listed(_STATE),
    },
    embeddings={"type": "object", "additionalProperties": _STATE},
)
MODEL = record(
    {
        "id": TEXT,
        "object": {"const": "model"},
        "created": NUMBER,
        "owned_by": TEXT,
        "aliases": listed(TEXT),
        "type": {"const": "model"},
        "display_name": TEXT,
        "created_at": {"type": "string", "format": "date-time"},
        "lifecycle": {"const": "active"},
        "max_input_tokens": _N_CTX,
        "max_tokens": _N_CTX,
        "max_model_len": _N_CTX,
        "context_length": _N_CTX,
        "context_window": _N_CTX,
        "max_context_length": _N_CTX,
        "meta": record({"n_ctx": _N_CTX}, n_ctx_train=NUMBER, n_vocab=NUMBER, n_embd=_N_CTX),
    },
    task={"enum": ["embedding", "rerank"]},
    state={"enum": ["here", "coming", "leaving", "away"]},
    status=record({"value": {"enum": ["loaded", "unloaded"]}}),
)
MODELS = record(
    {
        "object": {"const": "list"},
        "data": listed(MODEL, minItems=1),
        "has_more": {"const": False},
        "first_id": TEXT,
        "last_id": TEXT,
        "models": listed(record({"name": TEXT, "model": TEXT, "type": TEXT, "capabilities": listed(TEXT)})),
    }
)
LANES = listed(
    record(
        {"id": NUMBER, "n_ctx": _N_CTX, "is_processing": {"type": "boolean"}},
        n_prompt_tokens=NUMBER,
        n_prompt_tokens_processed=NUMBER,
        next_token=listed(record({"n_decoded": NUMBER})),
    )
)
_BOUNDED_POOL = record(
    {
        "asked": {"anyOf": [NUMBER, {"const": "auto"}]},
        "tokens": {"type": ["integer", "null"]},
        "tau": {"type": ["integer", "null"]},
        "policy": {"type": ["string", "null"]},
        "layer": {"anyOf": [NUMBER, {"enum": ["auto", None]}]},
        "scorer": {"type": ["string", "null"]},
        "pin": listed(TEXT),
    }
)
_READING = record(
    {
        "scorer": TEXT,
        "reading": {"enum": ["full", "auto", "sparse"]},
        "keep": {"type": ["number", "null"]},
        "from": {"type": ["integer", "null"]},
        "repair": {"enum": ["on", "off", None]},
    }
)
PROPS = record(
    {
        "model": TEXT,
        "model_alias": TEXT,
        "model_path": TEXT,
        "architecture": TEXT,
        "n_ctx": _N_CTX,
        "n_ctx_train": NUMBER,
        "n_vocab": NUMBER,
        "total_slots": NUMBER,
        "default_generation_settings": record({"n_ctx": _N_CTX, "params": {"type": "object"}}),
        "modalities": record({"vision": {"type": "boolean"}, "audio": {"const": False}}),
        "bos_token": TEXT,
        "eos_token": TEXT,
        "chat_template": TEXT,
        "chat_template_caps": {"type": "object"},
        "kvflash": {"anyOf": [_BOUNDED_POOL, {"type": "null"}]},
        "prefill": {"anyOf": [_READING, {"type": "null"}]},
        "speculation": TEXT,
        "is_sleeping": {"type": "boolean"},
        "build_info": TEXT,
    }
)
_PIECE = record({"id": NUMBER, "piece": {"anyOf": [TEXT, listed(NUMBER)]}})
TOKENS = record({"tokens": listed({"anyOf": [NUMBER, _PIECE]})}, count=NUMBER, max_model_len=_N_CTX)
CONTENT = record({"content": TEXT, "prompt": TEXT})
_SPELLING = {"type": ["string", "null"]}
TOKENIZER = record(
    {
        "tokenizer_class": TEXT,
        "bos_token": _SPELLING,
        "eos_token": _SPELLING,
        "add_bos_token": {"type": "boolean"},
        "chat_template": _SPELLING,
        "model_max_length": _N_CTX,
    }
)
PROMPT = record({"prompt": TEXT})
