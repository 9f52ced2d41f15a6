"""Reads `.npy` files with numpy, and prints of each its elements, its shape and the bytes of its first row.

    npy.py FILE...
"""

import json
import sys

import numpy as np

read = []
for path in sys.argv[1:]:
    rows = np.load(path, allow_pickle=False)
    read.append((rows.dtype.str, rows.shape, list(rows[:1].tobytes())))
json.dump(read, sys.stdout)
