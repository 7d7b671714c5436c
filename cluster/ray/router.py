"""PrefixRouter: asks the question that a request brings along which replica is the cheapest for it.

Ray pickles this module whole, so it keeps nothing but what it was made with; what is known of replicas lies in the
ingress' ReplicaBook, to which the question leads.
"""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from luce.ray.replica_book import Choice, Question


class PrefixRouter(RequestRouter):
    def initialize_state(self, *, choice: Choice = "price", seed: int | None = None, **_: Any) -> None:
        self._choice = choice
        self._draw = random.Random(seed)  # noqa: S311  no secret

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not pending_request.args:
            return [candidate_replicas]
        question = pending_request.args[0]
        if not isinstance(question, Question):  # not of our ingress: Ray takes the one with the shortest queue
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # where none is left, else Ray asks again without a pause
        return [[replica] for replica in question.ranked(candidate_replicas, self._choice, self._draw)]
