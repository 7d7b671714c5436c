"""`luce calibrate`: the packaged model finds its facts by the layer that it goes by unasked, and which layers are
tried."""

from __future__ import annotations

import json

from luce.supervisor.cli.calibration.command import best_layer, layers_to_try
from tests.cli.conftest import Run


def test_the_packaged_models_usual_layer_finds_its_facts(run: Run) -> None:
    result = run("luce", "calibrate", "--texts", "1", "--layer", "11", "--threads", "1", "--no-warmup", "--json")
    assert result.returncode == 0, result
    report = json.loads(result.stdout)
    assert report["layer"] == 11
    assert report["asked"] == 6
    assert report["found"]["11"] >= 5


def test_the_usual_or_the_last_of_the_best_layers_is_taken_and_none_where_none_finds_anything() -> None:
    assert best_layer({3: 4, 7: 6, 11: 6}, usual=3) == 11
    assert best_layer({3: 4, 7: 6, 11: 6}, usual=7) == 7
    assert best_layer({3: 6, 7: 5}, usual=11) == 3
    assert best_layer({3: 0, 7: 0}, usual=7) is None
    assert best_layer({}, usual=7) is None


def test_of_many_layers_some_of_the_later_ones_are_tried() -> None:
    assert layers_to_try([3, 7, 11], usual=7) == [3, 7, 11]
    chosen = layers_to_try(range(48), usual=47)
    assert len(chosen) == len(set(chosen)) == 8
    assert chosen[0] == 16
    assert chosen[-1] == 47
    assert layers_to_try(range(48), usual=9) == [9, *chosen]
    assert len(layers_to_try(range(9), usual=8)) == 8
