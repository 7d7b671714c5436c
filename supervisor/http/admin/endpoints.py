"""Routes that say how things stand: health, metrics, the model under its names, the server's properties.

/health, /livez and /readyz say whether the server can answer, at once at all times, and nothing else: they are open
without a key. Must not know how answers are made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from aiohttp import web

from luce.supervisor.embedding.model import EmbeddingStatus
from luce.supervisor.http.admin import openapi
from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.admin.shapes import HEALTH, LANES, MODEL, MODELS, PROBE, PROPS
from luce.supervisor.http.app_context import (
    APP_CONTEXT,
    SERVED_MODELS,
    AppContext,
    Models,
    choose_model,
    context_of,
    watched_of,
)
from luce.supervisor.http.engine_metrics import ask_engines
from luce.supervisor.http.keys.key_ring import window_of
from luce.supervisor.model_backend import ModelBackend
from luce.supervisor.supervisor_status import LaneStatus

OPERATIONS = (
    Operation("get", "/health", "Whether the server can answer; open without a key", response=HEALTH),
    Operation("get", "/livez", "200 as long as the process serves; open without a key", response=PROBE),
    Operation("get", "/readyz", "Whether requests are to be sent here now; open without a key", response=PROBE),
    Operation("get", "/v1/models", "The model under its aliases, or its file's name", response=MODELS),
    Operation("get", "/v1/models/{model}", "One of them; any name is served", response=MODEL),
    Operation("get", "/slots", "The lanes, and which of them are at work", response=LANES),
    Operation("get", "/props", "The model, its context and its template", response=PROPS),
)

_DOCUMENT = web.AppKey("openapi_document", dict[str, Any])


def add_routes(router: web.UrlDispatcher) -> None:
    for path in ("/health", "/v1/health"):
        router.add_get(path, get_health)
    router.add_get("/livez", get_live)
    router.add_get("/readyz", get_ready)
    for path in ("/v1/models", "/models"):
        router.add_get(path, get_models)
        router.add_get(f"{path}/{{model:.+}}", get_model)
    router.add_get("/props", get_props)
    router.add_get("/slots", get_lanes)
    router.add_get("/metrics", get_metrics)
    router.add_get("/openapi.json", get_document)


async def get_health(request: web.Request) -> web.Response:
    """200 while requests are taken: `ok`, or `degraded` while an engine is started again; else 503."""
    status = watched_of(request.app).status()
    states = [engine.state.value for engine in status.engines]
    word = "ok" if all(state in {"ready", "away"} for state in states) else "degraded"
    if all(state in {"failed", "stopping"} for state in states):
        word = "failed"
    beside = {model.name: model.state.value for model in status.embeddings}
    if word == "ok" and any(state != "ready" for state in beside.values()):
        word = "degraded"
    body = {"status": word, "live": True, "ready": status.is_healthy, "engines": states}
    if beside:
        body["embeddings"] = beside
    headers = {"Retry-After": "10"} if word == "failed" else None
    return web.json_response(body, status=503 if word == "failed" else 200, headers=headers)


async def get_live(request: web.Request) -> web.Response:  # noqa: ARG001  that it answers is what it says
    return web.json_response({"status": "ok"})


async def get_ready(request: web.Request) -> web.Response:
    """503 while no engine is ready, and from the moment on at which the server is told to stop."""
    if not request.app[APP_CONTEXT].takes_requests():
        return web.json_response({"status": "stopping"}, status=503)
    if not watched_of(request.app).status().is_healthy:
        return web.json_response({"status": "no engine is ready"}, status=503)
    return web.json_response({"status": "ok"})


async def get_metrics(request: web.Request) -> web.Response:
    watched = watched_of(request.app)
    engine_metrics = await ask_engines(watched)
    body = context_of(request).metrics.render(watched.status(), engine_metrics)
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def get_models(request: web.Request) -> web.Response:
    served = request.app.get(SERVED_MODELS)
    models, data = _of_one(request) if served is None else _of_several(request, served)
    data += map(_embedding_model, watched_of(request.app).status().embeddings)
    return web.json_response(
        {
            "object": "list",
            "data": data,
            "has_more": False,
            "first_id": data[0]["id"],
            "last_id": data[-1]["id"],
            "models": models,
        }
    )


def _of_one(request: web.Request) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """In Ollama's words, and in those of the APIs."""
    context = context_of(request)
    names = context.model_names
    models = [_as_ollama(name, context.supervisor) for name in names]
    return models, [_model(request, name) for name in names]


def _of_several(request: web.Request, served: Models) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """With the state of each: whether it is on its device."""
    models, data = [], []
    for listed in served.listed():
        n_ctx = window_of(request, listed.n_ctx)
        for name in listed.names:
            models.append(_as_ollama(name, listed.supervisor))
            is_loaded = {"value": "loaded" if listed.state == "here" else "unloaded"}  # llama-server's word
            data.append(
                _listed(name, listed.created, n_ctx)
                | {"aliases": list(listed.names), "meta": {"n_ctx": n_ctx}}
                | {"state": listed.state, "status": is_loaded}
            )
    return models, data


def _as_ollama(name: str, supervisor: ModelBackend) -> dict[str, Any]:
    capabilities = ["completion", *(["multimodal"] if supervisor.has_images else [])]
    return {"name": name, "model": name, "type": "model", "capabilities": capabilities}


async def get_model(request: web.Request) -> web.Response:
    """Any name, because requests with any name are served; of several models those that there are."""
    await choose_model(request, request.match_info["model"])
    return web.json_response(_model(request, request.match_info["model"]))


async def get_props(request: web.Request) -> web.Response:
    context = context_of(request)
    info, n_ctx = context.text.info, window_of(request, context.n_ctx)
    template: dict[str, Any] = {"chat_template": "", "chat_template_caps": {}}
    if info.has_template or context.settings.chat_template is not None:
        known = context.text.template
        template = {"chat_template": known.source, "chat_template_caps": dict(known.capabilities)}
    status = context.supervisor.status()
    return web.json_response(
        {
            "model": context.supervisor.model.stem,
            "model_alias": context.model_names[0],
            "model_path": context.supervisor.model.name,  # without its folder: that is nobody's business
            "architecture": info.architecture,
            "n_ctx": n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_vocab": info.n_vocab,
            "total_slots": sum(engine.lanes for engine in status.engines),
            "default_generation_settings": {"n_ctx": n_ctx, "params": _sampled_with(context)},
            "modalities": {"vision": context.supervisor.has_images, "audio": False},
            "bos_token": _spelling(context, info.bos),
            "eos_token": _spelling(context, info.eos),
            **template,
            "kvflash": await _bounded_pool(context.supervisor),
            "prefill": _reading(context.supervisor),
            "speculation": next((e.info.speculation for e in status.engines if e.info is not None), "none"),
            "is_sleeping": all(engine.is_parked for engine in status.engines),
            "build_info": f"luce-daemon {metadata.version('luce-daemon')}",
        }
    )


async def get_lanes(request: web.Request) -> web.Response:
    """As llama-server's slots, without what is said in them. The numbers count the lanes of all engines; those at work
    come first, because which row of its batch an engine gave a request is not known here."""
    lanes: list[dict[str, Any]] = []
    for engine in context_of(request).supervisor.status().engines:
        n_ctx = window_of(request, None if engine.info is None else engine.info.ctx)
        for number in range(engine.lanes):
            lane = {"id": len(lanes), "n_ctx": n_ctx, "is_processing": number < engine.n_running}
            lanes.append(lane | (_work_of(engine.running[number]) if number < len(engine.running) else {}))
    return web.json_response(lanes)


def _work_of(lane: LaneStatus) -> dict[str, Any]:
    return {
        "n_prompt_tokens": lane.n_prompt,
        "n_prompt_tokens_processed": lane.n_read,
        "next_token": [{"n_decoded": lane.n_generated}],
    }


async def get_document(request: web.Request) -> web.Response:
    return web.json_response(request.app[_DOCUMENT])


async def _bounded_pool(supervisor: ModelBackend) -> dict[str, Any] | None:
    """The first engine's pool that texts may outgrow, as large as it is now. What is null is as the engine does it by
    itself."""
    config = supervisor.config.daemon_config(supervisor.config.engine_configs()[0])
    if config.kvflash is None:
        return None
    info = next((engine.info for engine in supervisor.status().engines), None)
    n_now = (await ask_engines(supervisor))[0].get("pool") if info is not None else None
    return {
        "asked": config.kvflash,
        "tokens": n_now if isinstance(n_now, int) or info is None else info.kvflash,
        "tau": config.kvflash_tau,
        "policy": config.kvflash_policy,
        "layer": config.kvflash_layer,
        "scorer": config.kvflash_scorer.name if config.kvflash_scorer is not None else None,  # without its folder
        "pin": list(config.kvflash_pin or ()),
    }


def _reading(supervisor: ModelBackend) -> dict[str, Any] | None:
    """How much of prompts is read where a request does not say, and whose choice it is. What is null is as the engine
    does it by itself."""
    config = supervisor.config.daemon_config(supervisor.config.engine_configs()[0])
    if config.prefill_scorer is None:
        return None
    return {
        "scorer": config.prefill_scorer.name,  # without its folder
        "reading": config.prefill or "full",
        "keep": config.prefill_keep,
        "from": config.prefill_from,
        "repair": config.prefill_repair,
    }


def set_up(app: web.Application, operations: list[Operation]) -> None:
    """What these routes need besides the context: the document of all routes."""
    app[_DOCUMENT] = openapi.document(operations, version=metadata.version("luce-daemon"))


def _model(request: web.Request, name: str) -> dict[str, Any]:
    """In the words of both APIs, and of vLLM, OpenRouter and LM Studio for the context, by which agents compact: none
    minds the others'."""
    context = context_of(request)
    n_ctx, info = window_of(request, context.n_ctx), context.text.info
    return _listed(name, context.created, n_ctx) | {
        "aliases": list(dict.fromkeys(context.settings.aliases)),
        "meta": {"n_ctx": n_ctx, "n_ctx_train": info.n_ctx_train, "n_vocab": info.n_vocab},
    }


def _listed(name: str, created: int, n_ctx: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "luce",
        "aliases": [],
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": n_ctx,
        "max_model_len": n_ctx,
        "context_length": n_ctx,
        "context_window": n_ctx,
        "max_context_length": n_ctx,
    }


def _embedding_model(model: EmbeddingStatus) -> dict[str, Any]:
    """Of a model that writes no answers: behind those that do, since clients take the first one that they find."""
    return _listed(model.model, model.created, model.n_ctx) | {
        "task": model.name,
        "meta": {"n_ctx": model.n_ctx, "n_embd": model.n_values if model.name == "embedding" else None},
    }


def _sampled_with(context: AppContext) -> dict[str, Any]:
    """What requests that do not say are sampled with; a seed of null: each with its own."""
    defaults = context.defaults.of(context.model_names[0])
    return {
        "seed": context.supervisor.config.seed,
        "temperature": defaults.temperature,
        "top_k": defaults.top_k,
        "top_p": defaults.top_p,
        "min_p": defaults.min_p,
    }


def _spelling(context: AppContext, token: int | None) -> str:
    return "" if token is None else context.text.piece(token, special=True).decode("utf-8", "replace")
