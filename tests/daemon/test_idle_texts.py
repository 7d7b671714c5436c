"""Texts that nobody runs are out of a computation's way, and whole when they come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.conftest import Start
from tests.daemon.exactness import Checked, status_of
from tests.daemon.same_tokens import NOISE_RANDOM
from tests.daemon_driver import random_prompt

N_TEXT = 600
TEXTS = [random_prompt(N_TEXT, seed=70 + i) for i in range(8)]


# Without a host tier idle texts can only be set aside in the pool.
@pytest.mark.parametrize("draft", [None, "simple-qwen3"])
def test_idle_texts_leave_what_a_step_looks_at_as_it_is(start: Start, test_models: Path, draft: str | None) -> None:
    arguments = ["--ctx", "1024", "--lanes", "2", "--pool", "8192", "--host-cache", "0"]
    if draft is not None:
        arguments += ["--draft", str(test_models / "drafts" / f"{draft}.gguf"), "--draft-adaptive", "off"]
    daemon = start(*arguments, model=test_models / "qwen3.gguf")
    checked = Checked(NOISE_RANDOM)
    checked.learn(daemon, TEXTS[0])
    alone = int(status_of(daemon)["cells_spanned"])
    checked.learn(daemon, *TEXTS[1:])
    fields = status_of(daemon)
    assert int(fields["cells_spanned"]) <= alone
    assert int(fields["pages_aside"]) > len(TEXTS) // 2 * (N_TEXT // 64)
    for text in TEXTS:
        ok = checked.generate("back", daemon, text)
        assert (ok.n_reused, ok.tier) == (N_TEXT // 64 * 64, "resident")
        assert int(status_of(daemon)["cells_spanned"]) <= alone
    checked.finish()
