"""luce.ray: a model on many machines by Ray Serve.

`serve run luce.ray:app` serves what the environment and LUCE_CONFIG say; `luce.ray:build_app` takes its options from
Serve's own YAML (docs/ray.md). An Ingress speaks HTTP and knows the text; EngineReplicas, each with a Supervisor, know
token ids; PrefixRouter says which of them reads a prompt. May call luce.supervisor; nothing there may call this.
"""

from __future__ import annotations

from typing import Any

__all__ = ["app", "build_app"]


def __getattr__(name: str) -> Any:
    """Made when it is asked for: to import the package costs nothing, and starts nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from luce.ray.application import build_app

    return build_app({}) if name == "app" else build_app
