#!/usr/bin/env python3
"""Log lines in groups of the same subject, each under its most typical line.

    cluster-logs.py --groups 4 < log
"""

import argparse
import signal
import sys

import numpy as np
from numpy.typing import NDArray
from op_dbus import Embedder


def clusters(vectors: NDArray[np.float32], groups: int) -> tuple[NDArray, NDArray]:
    """k-means on the sphere: the group of each vector, and its cosine with the group's centre."""
    # Begins with vectors that are far from each other, so that every run finds the same.
    chosen = [0]
    while len(chosen) < groups:
        chosen.append(int((vectors @ vectors[chosen].T).max(axis=1).argmin()))
    centres = vectors[chosen]
    for _ in range(100):
        group = (vectors @ centres.T).argmax(axis=1)
        sums = np.array([vectors[group == number].sum(axis=0) for number in range(groups)])
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        moved = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
        if np.allclose(moved, centres):
            break
        centres = moved
    return group, (vectors * centres[group]).sum(axis=1)


def main() -> None:
    arguments = argparse.ArgumentParser(description="log lines in groups of the same subject")
    arguments.add_argument("--groups", type=int, default=4)
    asked = arguments.parse_args()

    # Logs are not all UTF-8, and a text has no NUL.
    sys.stdin.reconfigure(errors="replace")
    text = sys.stdin.read().replace("\0", "\N{REPLACEMENT CHARACTER}")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if not lines:
        return
    groups = max(1, min(asked.groups, len(lines)))
    with Embedder() as embedder:
        group, cosine = clusters(embedder.embed(lines, normalize=True).vectors, groups)
    # Ends quietly when its reader has seen enough, as in `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for number in range(groups):
        members = np.flatnonzero(group == number)
        if not len(members):
            # There are fewer kinds of lines than groups.
            continue
        print(f"# {len(members)} lines")
        for index in members[np.argsort(-cosine[members], kind="stable")]:
            print(f"  {lines[index]}")


main()
