#!/usr/bin/env python3
"""The vectors of some texts, and which two are nearest to each other.

    embed.py "disk full" "no space left on device" "user logged in"
"""

import os
import signal
import sys

import numpy as np
from op_dbus import Embedder

# Arguments are not all UTF-8.
texts = [os.fsencode(text).decode(errors="replace") for text in sys.argv[1:]]
if not texts:
    sys.exit("usage: embed.py TEXT…")
with Embedder() as embedder:
    embeddings = embedder.embed(texts, normalize=True)

# Ends quietly when its reader has seen enough, as in `| head`.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
rows, dimensions = embeddings.vectors.shape
print(f"{rows} vectors of {dimensions} numbers, made by {embeddings.model} on {embeddings.device}")
if rows > 1:
    cosines = embeddings.vectors @ embeddings.vectors.T
    np.fill_diagonal(cosines, -np.inf)
    first, second = np.unravel_index(cosines.argmax(), cosines.shape)
    print(f"nearest: {texts[first]!r} and {texts[second]!r}, cosine {cosines[first, second]:.2f}")
for index in embeddings.truncated:
    print(f"cut, because it is longer than the model reads: {texts[index][:60]!r}…")
