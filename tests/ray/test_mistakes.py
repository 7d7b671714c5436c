"""luce.ray on a real Ray: versions that cannot start are given up and told, and the next one is served.

Left out where Ray is not installed.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.ray.local_cluster import BrokenError, NotDeployedError, local_cluster, stream

pytest.importorskip("ray.serve", reason="left out: Ray is not installed (pip install '.[ray]')", exc_type=ImportError)


async def test_a_version_that_cannot_start_is_given_up_and_requests_hear_it(*, full: bool) -> None:
    if not full:
        pytest.skip("left out: --full starts a Ray")
    body = {"prompt": "Hello", "max_tokens": 2}
    with local_cluster(replicas=1) as cluster:
        assert await stream(cluster.url, body)
        with pytest.raises(NotDeployedError, match="EngineReplica"):
            await asyncio.to_thread(cluster.deploy, device="no-such-device")
        with pytest.raises(BrokenError, match=r"503: .*serve status.*engine_failed"):
            await stream(cluster.url, body)
        await asyncio.to_thread(cluster.deploy, device="none")
        assert await stream(cluster.url, body)
