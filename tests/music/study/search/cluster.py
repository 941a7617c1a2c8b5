"""A Ray cluster of its own process: prints its address, then obeys lines: `kill`, `add`, `end`."""

import sys

from ray.cluster_utils import Cluster

SMALL = {"object_store_memory": 80 << 20}


def main(nodes):
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **SMALL}
    )
    workers = [cluster.add_node(num_cpus=1, **SMALL) for _ in range(nodes)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "kill":  # As a power cut would: no goodbye.
            cluster.remove_node(workers.pop(0), allow_graceful=False)
        elif word == "add":
            workers.append(cluster.add_node(num_cpus=1, **SMALL))
        print("done", flush=True)
        if word == "end":
            break
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
