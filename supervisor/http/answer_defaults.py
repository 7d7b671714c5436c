"""AnswerDefaults: what an answer is made with where its request does not say: sampling, reasoning, template arguments.
ModelDefaults: which of them are a request's, by the name under which it asks for the model.

A profile's come first, then the server's, then the model file's, then those built in. Must not know dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from luce.protocol import SamplingArgs
from luce.supervisor.config import ConfigError
from luce.supervisor.http.prompts.answer_request import AnswerRequest, ChatPrompt
from luce.supervisor.models.gguf_header import GgufError, read_gguf_header

Reasoning = Literal["on", "off", "auto"]

_FILE_KEYS = {
    "temperature": "temp",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "penalty_repeat",
    "repeat_last_n": "penalty_last_n",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
}
"""What GGUF files call them, behind general.sampling."""
_MOST = {
    "temperature": 100.0,
    "force_temperature": 100.0,
    "top_p": 1.0,
    "min_p": 1.0,
    "xtc_probability": 1.0,
    "xtc_threshold": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDefaults:
    """None: whatever comes next says it."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    force_temperature: float | None = None  # whatever a request says
    reasoning: Reasoning | None = None  # auto: as the template does it
    reasoning_budget: int | None = None  # tokens
    reasoning_effort: str | None = None
    preserve_thinking: Reasoning | None = None  # of earlier turns; auto: where the template's makers advise it
    template_arguments: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                raise ConfigError(f"{name}={value}: it must be from 0 to {most:g}")
        for name in ("top_k", "repeat_last_n"):
            if getattr(self, name) is not None and getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be 0 or more")
        for name in ("top_p", "repeat_penalty"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ConfigError(f"{name}={getattr(self, name)}: it must be above 0")

    def over(self, others: AnswerDefaults) -> AnswerDefaults:
        """These, and where they say nothing the others. Template arguments are put together."""
        values = {
            entry.name: getattr(others, entry.name) if getattr(self, entry.name) is None else getattr(self, entry.name)
            for entry in fields(AnswerDefaults)
        }
        arguments = {**(others.template_arguments or {}), **(self.template_arguments or {})}
        return AnswerDefaults(**values | {"template_arguments": arguments or None})

    @classmethod
    def of_file(cls, model: Path) -> Self:
        """What the model's makers have put into its file; nothing where it cannot be read or makes no sense."""
        try:
            metadata = read_gguf_header(model).metadata
            found = {name: metadata.get(f"general.sampling.{key}") for name, key in _FILE_KEYS.items()}
            values: dict[str, Any] = {name: value for name, value in found.items() if isinstance(value, int | float)}
            if values.get("repeat_last_n", 0) < 0:
                values["repeat_last_n"] = 2**31 - 1  # llama.cpp's word for the whole context
            return cls(**values)
        except (GgufError, ConfigError):
            return cls()


BUILT_IN = AnswerDefaults(temperature=0.8, top_p=0.95, top_k=40, min_p=0.05)
_SAMPLING = frozenset(entry.name for entry in fields(SamplingArgs)) & {entry.name for entry in fields(AnswerDefaults)}


class ModelDefaults:
    """Of one server."""

    def __init__(
        self,
        server: AnswerDefaults,
        profiles: Mapping[str, AnswerDefaults],
        of_file: AnswerDefaults | None = None,
    ) -> None:
        self._common = server.over(of_file or AnswerDefaults()).over(BUILT_IN)
        self._profiles = {name: profile.over(self._common) for name, profile in profiles.items()}

    def of(self, model: str) -> AnswerDefaults:
        """Any name is served: one that is no profile's gets what all have."""
        return self._profiles.get(model, self._common)

    def apply(self, request: AnswerRequest) -> AnswerRequest:
        """The request with all that it does not say."""
        defaults = self.of(request.model)
        unsaid = {name for name in _SAMPLING if getattr(request.sampling, name) is None}
        sampling = replace(request.sampling, **{name: getattr(defaults, name) for name in unsaid})
        if defaults.force_temperature is not None:
            sampling = replace(sampling, temperature=defaults.force_temperature)
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            prompt = self.complete(prompt, request.model)
        return replace(request, sampling=sampling, prompt=prompt)

    def complete(self, prompt: ChatPrompt, model: str) -> ChatPrompt:
        """What the model is to be told, with all that the request does not say of it."""
        defaults = self.of(model)
        thinking = prompt.thinking
        is_open = thinking is None or prompt.thinking_is_optional
        if is_open and not prompt.continues_last and defaults.reasoning in {"on", "off"}:
            thinking = defaults.reasoning == "on"
        budget, effort = prompt.thinking_budget, prompt.effort
        return replace(
            prompt,
            thinking=thinking,
            thinking_budget=defaults.reasoning_budget if budget is None else budget,
            effort=defaults.reasoning_effort if effort is None else effort,
            preserve_thinking=defaults.preserve_thinking or "auto",
            template_arguments={**(defaults.template_arguments or {}), **prompt.template_arguments},
        )
