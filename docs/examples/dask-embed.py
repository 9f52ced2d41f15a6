#!/usr/bin/env python3
"""Lines of a file as vectors in an .npy file, embedded by the processes of a Dask cluster.

    dask-embed.py TEXTS VECTORS.npy --processes 4
    dask-embed.py TEXTS VECTORS.npy --scheduler tcp://head:8786

On a cluster each machine has a service of its own, which its Dask workers ask over their machine's bus.
"""

import argparse
import pathlib
import time

import numpy as np
from dask.distributed import Client, LocalCluster
from numpy.typing import NDArray
from op_dbus import Embedder


def embed(lines: list[str]) -> tuple[NDArray[np.float32], str]:
    """On a worker: the vectors of some lines, and the space that they are in."""
    # What a worker keeps from one part to the next can't be this program's, which is sent to it anew. To
    # connect takes milliseconds.
    with Embedder() as embedder:
        embeddings = embedder.embed(lines, priority="bulk")
    return embeddings.vectors, embeddings.space


def main() -> None:
    arguments = argparse.ArgumentParser(description="embeds lines on a Dask cluster")
    arguments.add_argument("texts", type=pathlib.Path)
    arguments.add_argument("vectors", type=pathlib.Path)
    arguments.add_argument("--processes", type=int, default=2, help="of a cluster on this machine")
    arguments.add_argument("--scheduler", help="of a cluster that is there")
    arguments.add_argument("--lines", type=int, default=1024, help="that are embedded at a time")
    asked = arguments.parse_args()

    # As the service has them: `str.splitlines` ends a line at other signs, too, such as a form feed.
    with asked.texts.open(encoding="utf-8", newline="\n") as file:
        lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
    if not lines:
        raise SystemExit(f"{asked.texts} is empty")
    parts = [lines[start : start + asked.lines] for start in range(0, len(lines), asked.lines)]
    if asked.scheduler:
        cluster = asked.scheduler
    else:
        cluster = LocalCluster(
            n_workers=asked.processes, threads_per_worker=1, dashboard_address=None
        )
    with Client(cluster) as client:
        client.wait_for_workers(1)
        started = time.perf_counter()
        # In the order of the lines, whoever is done first.
        embedded = client.gather(client.map(embed, parts, pure=False))
        took = time.perf_counter() - started
    spaces = [space for _, space in embedded]
    # The precision behind the dash may be another on each machine.
    if len({space.rpartition("-")[0] for space in spaces}) > 1:
        raise SystemExit(f"machines embed in different spaces ({', '.join(sorted({*spaces}))})")
    np.save(asked.vectors, np.concatenate([vectors for vectors, _ in embedded]))
    print(f"{len(lines)} lines, {len(lines) / took:.0f} a second, in the space {spaces[0]}")


if __name__ == "__main__":
    main()
