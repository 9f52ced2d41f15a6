"""Text embeddings from the op-dbus service of this machine, over D-Bus, as numpy arrays.

>>> from op_dbus import Embedder
>>> with Embedder() as embedder:
...     embeddings = embedder.embed(["disk full", "no space left on device"])
...     embeddings.vectors.shape
(2, 384)
"""

from ._aio import AsyncEmbedder
from ._jobs import AsyncJob, Progress
from ._sync import Embedder, Job
from .embeddings import Embeddings
from .errors import OpDbusError
from .options import Options
from .properties import Properties

__version__ = "0.1.0"

__all__ = [
    "AsyncEmbedder",
    "AsyncJob",
    "Embedder",
    "Embeddings",
    "Job",
    "OpDbusError",
    "Options",
    "Progress",
    "Properties",
]
