#!/usr/bin/env python3
"""One line for all alerts that say the same in other words, with their number.

    dedup-alerts.py < alerts.txt
"""

import argparse
import signal
import sys

import numpy as np
from op_dbus import Embedder


def main() -> None:
    arguments = argparse.ArgumentParser(description="one line for alerts that say the same")
    arguments.add_argument("--least", type=float, default=0.6, help="least cosine of the same")
    asked = arguments.parse_args()

    # Logs are not all UTF-8, and a text has no NUL.
    sys.stdin.reconfigure(errors="replace")
    text = sys.stdin.read().replace("\0", "\N{REPLACEMENT CHARACTER}")
    alerts = [line.strip() for line in text.split("\n") if line.strip()]
    with Embedder() as embedder:
        vectors = embedder.embed(alerts, normalize=True).vectors

    # An alert belongs to the first one that it is near enough to, or is the first of its kind.
    first_of_kind: list[int] = []
    times: dict[int, int] = {}
    for index, vector in enumerate(vectors):
        cosines = vectors[first_of_kind] @ vector
        if len(cosines) and cosines.max() >= asked.least:
            times[first_of_kind[int(np.argmax(cosines))]] += 1
        else:
            first_of_kind.append(index)
            times[index] = 1
    # Ends quietly when its reader has seen enough, as in `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for index in first_of_kind:
        print(f"{times[index]:3}  {alerts[index]}")


main()
