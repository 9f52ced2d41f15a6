"""The installed package `op-dbus` with more texts than go into one call.

    long_lists.py BUS-ADDRESS
"""

import asyncio
import gc
import sys
import threading

from op_dbus import AsyncEmbedder, Embedder, Embeddings

BUS = sys.argv[1]


def texts_that_are_averaged(embedder: Embedder) -> None:
    """Each byte of them counts against the quota."""
    assert len(embedder.embed(["x" * 500] * 10_000, truncate="mean").truncated) == 10_000


def another_program_of_the_user_is_let_in(embedder: Embedder) -> None:
    found: list[Embeddings] = []
    bulk = threading.Thread(target=lambda: found.append(embedder.embed(["x" * 300] * 40_000)))
    with Embedder(BUS) as other:
        bulk.start()
        while bulk.is_alive():
            assert other.similarity("one", "one") > 0.999
        bulk.join()
    assert [len(embeddings) for embeddings in found] == [40_000]


async def what_was_copied_is_let_go() -> None:
    """Before the next call: the service's cgroup pays for it until then."""
    held: list[int] = []

    class Looking(AsyncEmbedder):
        async def _embed(self, *asked):
            held.append(mapped())
            return await super()._embed(*asked)

    async with Looking(BUS) as client:
        embeddings = await client.embed(["one"] * 20_000)
        assert held == [0] * 10 and mapped() == 0, held
        assert len(embeddings) == 20_000 and not embeddings.vectors.flags.writeable
        # What is one call stays where the service has put it.
        embeddings = await client.embed(["one"] * 2048)
        assert held == [0] * 11 and mapped() == 1, held
        del embeddings


def mapped() -> int:
    with open("/proc/self/maps") as lines:
        return sum("memfd:" in line for line in lines)


gc.disable()
with Embedder(BUS) as embedder:
    texts_that_are_averaged(embedder)
    another_program_of_the_user_is_let_in(embedder)
asyncio.run(what_was_copied_is_let_go())
