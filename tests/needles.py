"""A long text that says nothing but one thing, the question for it, and the small model that finds it."""

from __future__ import annotations

import random
from pathlib import Path

from luce.supervisor.evaluating.tasks.haystack import FILLER

SCORER = Path(__file__).resolve().parent / "data" / "models" / "luce-tiny-scorer-Q8_0.gguf"
CODE = "73105"
FACT = f"The access code of the green owl is {CODE}."
QUESTION = "What is the access code of the green owl?"


def text_with_fact(n_sentences: int = 180, seed: int = 5) -> str:
    """With the packaged model about nine tokens a sentence; the fact stands in the middle."""
    rng = random.Random(seed)
    sentences = [rng.choice(FILLER) for _ in range(n_sentences)]
    sentences.insert(n_sentences // 2, FACT)
    return " ".join(sentences)
