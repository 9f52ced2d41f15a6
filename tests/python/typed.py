"""Read by mypy, never run: what the package's types promise to a caller."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from op_dbus import AsyncEmbedder, Embedder, Job, Progress, Properties

with Embedder("session") as embedder:
    assert_type(embedder.embed(["one"], level="low", deadline_ms=5).vectors, NDArray[Any])
    assert_type(embedder.embed(["one"], encoding="i8").dimensions, int)
    assert_type(embedder.rank("one", ["two"]), list[tuple[int, float]])
    embedder.rank("one", ["two"], np.int64(1))
    assert_type(embedder.properties(), Properties)
    with open("texts", "rb") as texts:
        assert_type(embedder.start(texts, framing="nul", level="low"), Job)
        assert_type(embedder.start(texts.fileno()).progress(), Progress)
        embedder.start(texts, framing="words")  # type: ignore[arg-type]
    embedder.start("texts")  # type: ignore[arg-type]
    embedder.embed(["one"], truncate="middle")  # type: ignore[arg-type]
    embedder.embed(["one"], encoding="f64")  # type: ignore[arg-type]
    embedder.embed(["one"], levle="low")  # type: ignore[call-arg]

Embedder("session", timeout=1.5).close()
Embedder(direct="yes")  # type: ignore[arg-type]


async def main() -> None:
    async with AsyncEmbedder(direct=True) as embedder:
        assert_type((await embedder.embed(["one"])).truncated, tuple[int, ...])
        assert_type(await embedder.similarity("one", "two"), float)
