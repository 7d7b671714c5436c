"""A Ray cluster on this machine that serves luce.ray, for as long as stdin is open. Run as a program.

    python -m scripts.bench.ray.local_cluster '{"nodes": 2, "args": {"luce": {"port": 8080}, "replicas": 3}}'

Says `ready` when all replicas are there. `node` on stdin adds a machine in place of one that was killed, and is
answered with `node`; `args {…}` makes a new version of the application, and is answered with `ready`, or with
`failed "…"` where Serve gives it up. With `nodes` above 0 replicas lie on so many further nodes, and the ingress on the
head. It knows nothing of what is asked.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any

os.environ |= {  # before Ray looks
    "RAY_AUTH_MODE": "disabled",  # it is this machine's own
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_worker_niceness": "0",  # else whatever else runs here comes before it
}
import ray
from ray import serve
from ray.cluster_utils import Cluster

from luce.ray import build_app

OBJECT_STORE_BYTES = 80 << 20
REPLICAS_A_NODE = 4


def main(asked: dict[str, Any]) -> None:
    common_args: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0.1}, "health_period_s": 1.0}
    common = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = None
    if asked.get("nodes", 0) > 0:
        cluster = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 2, "resources": {"ingress": 1}})
        for _ in range(asked["nodes"]):
            _add_node(cluster)
        ray.init(address=cluster.address, log_to_driver=False)
        common_args["ray_actor_options"] = {"num_cpus": 0.1, "resources": {"engine": 1}}
        common_args["ingress_actor_options"] = {"num_cpus": 0, "resources": {"ingress": 0.1}}
    else:
        _init(num_cpus=2, log_to_driver=False, **common)
    with suppress(
        TimeoutError
    ):  # on a busy machine a proxy takes longer than Serve waits for it; it comes all the same
        serve.start(proxy_location=asked.get("proxy", "Disabled"), http_options={"port": asked.get("proxy_port", 8000)})
    _deploy(common_args | asked["args"])
    for line in sys.stdin:
        what, _, given = line.strip().partition(" ")
        if what == "node" and cluster is not None:
            _add_node(cluster)
            print("node", flush=True)
        elif what == "args":
            _deploy(common_args | json.loads(given))
    serve.shutdown()
    ray.shutdown()
    if cluster is not None:
        cluster.shutdown()


def _init(**options: Any) -> None:
    """Ray waits 30 s for its own processes, which is little on a machine that is busy."""
    for tries_left in reversed(range(5)):
        try:
            ray.init(**options)
        except Exception:
            if tries_left == 0:
                raise
            ray.shutdown()
        else:
            return


def _deploy(args: dict[str, Any]) -> None:
    try:
        serve.run(build_app(args), name="luce")
    except RuntimeError as error:  # Serve's own, with what its replicas have said
        print(f"failed {json.dumps(str(error))}", flush=True)
    else:
        print("ready", flush=True)


def _add_node(cluster: Cluster) -> None:
    cluster.add_node(
        num_cpus=1, resources={"engine": REPLICAS_A_NODE}, object_store_memory=OBJECT_STORE_BYTES, wait=True
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
