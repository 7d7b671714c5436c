"""Sessions that are drawn from, without transcripts and without a model."""

from __future__ import annotations

import numpy as np

from scripts.sim.trace_shape import Shape, TurnPool

POOL = TurnPool(np.array([200, 900, 3000]), np.array([40, 200, 400]), np.array([2.0, 5.0, 20.0]))

SHAPE = Shape(
    clients=("one", "other"),
    weights=np.array([0.5, 0.5]),
    head=np.array([8000, 4000]),
    side_head=np.array([3000, 2000]),
    first=np.array([100, 500]),
    main=(POOL, POOL),
    side=POOL,
    side_turns=np.array([1, 3]),
    side_share=0.1,
    mean_turns=20,
    window=60_000,
)
