#!/usr/bin/env python3
"""The vectors of some texts, and which two are nearest to each other.

    embed.py "disk full" "no space left on device" "user logged in"
"""

import sys

import numpy as np
from op_dbus import Embedder

texts = sys.argv[1:]
with Embedder() as embedder:
    embeddings = embedder.embed(texts, normalize=True)

cosines = embeddings.vectors @ embeddings.vectors.T
np.fill_diagonal(cosines, -1)
first, second = np.unravel_index(cosines.argmax(), cosines.shape)
rows, dimensions = embeddings.vectors.shape
print(f"{rows} vectors of {dimensions} numbers, made by {embeddings.model} on {embeddings.device}")
print(f"nearest: {texts[first]!r} and {texts[second]!r}, cosine {cosines[first, second]:.2f}")
for index in embeddings.truncated:
    print(f"cut, because it is longer than the model reads: {texts[index][:60]!r}…")
