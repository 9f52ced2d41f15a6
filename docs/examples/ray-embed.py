#!/usr/bin/env python3
"""Lines of a file as vectors in an .npy file, embedded by Ray Data.

    ray-embed.py TEXTS VECTORS.npy --processes 4
    ray-embed.py TEXTS VECTORS.npy --address head:6379

On a cluster each machine has a service of its own, which its actors ask over their machine's bus.
"""

import argparse
import pathlib
import time

import numpy as np
import ray
from numpy.typing import NDArray
from op_dbus import Embedder


class Embed:
    """An actor: a process with one connection to the bus."""

    def __init__(self) -> None:
        self.embedder = Embedder()

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, NDArray]:
        embeddings = self.embedder.embed(batch["line"].tolist(), priority="bulk")
        space = np.full(len(embeddings), embeddings.space)
        return {"number": batch["number"], "vector": embeddings.vectors, "space": space}


def main() -> None:
    arguments = argparse.ArgumentParser(description="embeds lines with Ray Data")
    arguments.add_argument("texts", type=pathlib.Path)
    arguments.add_argument("vectors", type=pathlib.Path)
    arguments.add_argument("--processes", type=int, default=2, help="that embed at once")
    arguments.add_argument("--address", help="of a cluster that is there")
    arguments.add_argument("--lines", type=int, default=1024, help="that are embedded at a time")
    asked = arguments.parse_args()

    # As the service has them: `str.splitlines` ends a line at other signs, too, such as a form feed.
    with asked.texts.open(encoding="utf-8", newline="\n") as file:
        lines = [line.removesuffix("\n").removesuffix("\r") for line in file]
    if not lines:
        raise SystemExit(f"{asked.texts} is empty")
    if asked.address:
        ray.init(asked.address)
    else:
        ray.init(num_cpus=asked.processes, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"number": number, "line": line} for number, line in enumerate(lines)]
    data = ray.data.from_items(rows, override_num_blocks=-(-len(lines) // asked.lines))
    actors = ray.data.ActorPoolStrategy(size=asked.processes)
    data = data.map_batches(Embed, batch_size=asked.lines, compute=actors)
    started = time.perf_counter()
    # Batches come in any order.
    batches = list(data.iter_batches(batch_size=None))
    took = time.perf_counter() - started
    spaces = [str(space) for batch in batches for space in batch["space"]]
    # The precision behind the dash may be another on each machine.
    if len({space.rpartition("-")[0] for space in spaces}) > 1:
        raise SystemExit(f"machines embed in different spaces ({', '.join(sorted({*spaces}))})")
    order = np.concatenate([batch["number"] for batch in batches]).argsort()
    np.save(asked.vectors, np.concatenate([batch["vector"] for batch in batches])[order])
    print(f"{len(lines)} lines, {len(lines) / took:.0f} a second, in the space {spaces[0]}")


if __name__ == "__main__":
    main()
