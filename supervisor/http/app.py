"""create_app: the whole of the HTTP side as one aiohttp application, for a server of ours or under a path of another.

Puts the parts together; knows no policy.
"""

from __future__ import annotations

import asyncio
from importlib import metadata
from types import ModuleType

from aiohttp import web

from luce.supervisor.http.admin import compress_endpoint, slot_endpoints, status, text_endpoints
from luce.supervisor.http.admin import endpoints as admin
from luce.supervisor.http.admin.openapi import Operation
from luce.supervisor.http.answer_defaults import AnswerDefaults, ModelDefaults
from luce.supervisor.http.answering.answerer import ChatAnswerer
from luce.supervisor.http.answering.key_limits import KeyLimits
from luce.supervisor.http.answering.shutdown_gate import ShutdownGate
from luce.supervisor.http.anthropic import endpoint as anthropic
from luce.supervisor.http.anthropic.betas import tell_window
from luce.supervisor.http.app_context import APP_CONTEXT, SERVED_MODELS, AppContext, file_time
from luce.supervisor.http.embeddings import endpoint as embeddings
from luce.supervisor.http.embeddings import rerank
from luce.supervisor.http.keys.key_ring import KEY_RING, KeyRing, keys_of
from luce.supervisor.http.metrics import Metrics
from luce.supervisor.http.openai_chat import endpoint as openai_chat
from luce.supervisor.http.openai_completions import endpoint as openai_completions
from luce.supervisor.http.openai_responses import endpoint as openai_responses
from luce.supervisor.http.served_models import ServedFleet, ServedModels
from luce.supervisor.http.settings import ServeSettings
from luce.supervisor.http.streams import endpoints as streams
from luce.supervisor.http.streams import resumable_answer
from luce.supervisor.http.transport.access_control import add_headers, check_access
from luce.supervisor.http.transport.body import MENDED_SAID
from luce.supervisor.http.transport.middleware import account_request, choose_by_query
from luce.supervisor.http.transport.origins import check_origin
from luce.supervisor.http.transport.schema_notes import collect_schema_notes, tell_schema_notes
from luce.supervisor.http.transport.served_hosts import check_host
from luce.supervisor.http.window import endpoints as window
from luce.supervisor.http.window import memory_endpoints, pages
from luce.supervisor.model_backend import ModelBackend
from luce.supervisor.text import TextModel

SHUTDOWN_GATE = web.AppKey("gate", ShutdownGate)
_MODULES: tuple[ModuleType, ...] = (
    admin,
    slot_endpoints,
    text_endpoints,
    compress_endpoint,
    openai_chat,
    openai_completions,
    openai_responses,
    anthropic,
    embeddings,
    rerank,
    status,
    window,
    memory_endpoints,
    pages,
    streams,
)


async def create_app(served: ModelBackend | ServedFleet, settings: ServeSettings | None = None) -> web.Application:
    """The application over a supervisor (or what stands for one), or the models of a fleet, that outlives it. Mount it
    under a path with add_subapp.

    Raises TextError or OSError if the chat template cannot be used, ConfigError if the file of keys cannot.
    """
    chosen = ServeSettings() if settings is None else settings
    name = served.name if isinstance(served, ServedFleet) else served.model.stem
    metrics = Metrics(version=metadata.version("luce-daemon"), model=name)
    keys = KeyRing(await asyncio.to_thread(keys_of, chosen))
    gate = ShutdownGate()
    app = web.Application(
        middlewares=[
            window.note_request,
            account_request,
            check_host,
            check_origin,
            check_access,
            choose_by_query,
            collect_schema_notes,
        ],
        client_max_size=chosen.max_body_bytes,
    )
    texts: list[TextModel] = []

    async def open_context(supervisor: ModelBackend, settings: ServeSettings) -> AppContext:
        text = await _open_text(supervisor, settings)
        if settings.chat_template is not None:  # else the text is the supervisor's
            texts.append(text)
        of_file = await asyncio.to_thread(AnswerDefaults.of_file, supervisor.model)
        defaults = ModelDefaults(settings, settings.profiles, of_file)
        answerer = KeyLimits(ChatAnswerer(supervisor, text, settings, metrics, defaults), keys, metrics)
        return AppContext(
            supervisor=supervisor,
            text=text,
            settings=settings,
            answerer=gate.before(answerer),
            metrics=metrics,
            defaults=defaults,
            hold=gate.hold,
            created=file_time(supervisor.model),
            takes_requests=lambda: not gate.is_closing and not gate.is_closed,
        )

    if isinstance(served, ServedFleet):
        app[SERVED_MODELS] = models = ServedModels(served, open_context)
        app[APP_CONTEXT] = await models.context(None)
    else:
        app[APP_CONTEXT] = await open_context(served, chosen)
    app[SHUTDOWN_GATE] = gate
    app[KEY_RING] = keys
    app[MENDED_SAID] = set()
    app.on_response_prepare.append(add_headers)
    app.on_response_prepare.append(tell_window)
    app.on_response_prepare.append(tell_schema_notes)

    async def close_texts(_: web.Application) -> None:
        for text in texts:
            await asyncio.to_thread(text.close)

    app.on_cleanup.append(close_texts)
    operations: list[Operation] = []
    for module in _MODULES:
        module.add_routes(app.router)
        operations += module.OPERATIONS
    admin.set_up(app, operations)
    resumable_answer.set_up(app)
    window.set_up(app)
    pages.set_up(app)
    return app


async def _open_text(supervisor: ModelBackend, settings: ServeSettings) -> TextModel:
    if settings.chat_template is None:
        return await supervisor.text()
    template = await asyncio.to_thread(settings.chat_template.read_text, "utf-8")
    return await asyncio.to_thread(TextModel, supervisor.model, chat_template=template)
