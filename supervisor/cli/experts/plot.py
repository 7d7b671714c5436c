"""Pictures of hits by the share of experts that a device holds. Counts nothing."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

from luce.supervisor.cli.experts.hit_curves import chance, compare, spread_of
from luce.supervisor.cli.experts.profile_file import PHASES, ExpertProfile
from luce.supervisor.cli.experts.report import n_experts
from luce.supervisor.cli.pictures import save_figure

_PERCENTS = range(101)


def save_profile(pyplot: Any, profile: ExpertProfile, path: Path) -> None:
    """Hits, and how evenly each layer uses its experts. Raises Failure."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for phase in PHASES:
        curve = compare(profile, profile, phase, _PERCENTS).profile
        if curve is not None:
            axes[0].plot(_PERCENTS, [100 * hit for hit in curve], label=phase)
        effective = [spread_of(use.of(phase)).effective for use in profile.layers]
        layers = [use.layer for use in profile.layers]
        axes[1].plot(layers, [nan if n is None else n for n in effective], marker="o", label=phase)
    _name_hits(axes[0], "Hits", profile)
    axes[1].set(title="Experts in effect, by layer", xlabel="layer", ylim=(0, None))
    axes[1].grid(visible=True, alpha=0.3)
    axes[1].legend()
    save_figure(pyplot, figure, path)


def save_validation(pyplot: Any, profile: ExpertProfile, held_back: ExpertProfile, path: Path) -> None:
    """Raises Failure."""
    figure, axes = pyplot.subplots(1, len(PHASES), figsize=(11, 4), layout="constrained")
    for axis, phase in zip(axes, PHASES, strict=True):
        curves = compare(profile, held_back, phase, _PERCENTS)
        for name, curve in (("profile", curves.profile), ("best", curves.best)):
            if curve is not None:
                axis.plot(_PERCENTS, [100 * hit for hit in curve], label=name)
        _name_hits(axis, f"Hits on texts that were held back: {phase}", profile)
    save_figure(pyplot, figure, path)


def _name_hits(axis: Any, title: str, profile: ExpertProfile) -> None:
    by_chance = chance(n_experts(profile), _PERCENTS)
    axis.plot(_PERCENTS, [100 * hit for hit in by_chance], "--", color="grey", label="chance")
    axis.set(title=title, xlabel="experts held, %", ylabel="hits, %", xlim=(0, 100), ylim=(0, 100))
    axis.grid(visible=True, alpha=0.3)
    axis.legend()
