"""Each price says where it comes from, and what is made of them is what was measured."""

from __future__ import annotations

import tomllib
from dataclasses import fields

import numpy as np
import pytest

from scripts.sim.prices import PRICES_FILE, PriceError, Prices, load_prices, parse_override

TABLES = tomllib.loads(PRICES_FILE.read_text())


@pytest.mark.parametrize("name", TABLES)
def test_every_price_has_a_source(name: str) -> None:
    table = TABLES[name]
    given = table.keys() - {"about", "like", "sources"}
    assert given == table["sources"].keys()
    assert given <= {field.name for field in fields(Prices)}
    load_prices(name)


@pytest.mark.parametrize("name", ["27b-h100", "35b-a3b-h100"])
def test_prompts_take_the_time_that_was_measured(name: str) -> None:
    prices = load_prices(name)
    for n_tokens, speed in prices.reading:
        assert float(prices.read_s(0, n_tokens)) == pytest.approx(n_tokens / speed, rel=0.08)
    parts = prices.read_s(0, 5000) + prices.read_s(5000, 90_000)
    assert float(parts) == pytest.approx(float(prices.read_s(0, 90_000)))
    lanes, speed = prices.decoding[-1]
    step_s = float(prices.step_s(np.array(int(lanes)), np.array(0)))
    assert lanes / step_s == pytest.approx(speed)


def test_overrides() -> None:
    assert load_prices("27b-24g", dict([parse_override("host_bytes = 64e9")])).host_bytes == 64e9
    assert load_prices("27b-24g").reading == load_prices("27b-h100").reading
    for text, said in (("host=1", "no price 'host'"), ("host_bytes='x'", "cannot become 'x'")):
        with pytest.raises(PriceError, match=said):
            load_prices("27b-h100", dict([parse_override(text)]))
    with pytest.raises(PriceError, match="has no ="):
        parse_override("host_bytes")
    with pytest.raises(PriceError, match="take one of 27b-h100"):
        load_prices("nothing")
