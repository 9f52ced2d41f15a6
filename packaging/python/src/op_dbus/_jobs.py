"""Jobs: work that goes on without a call that waits for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dbus_fast import Variant

from . import embeddings, errors, options
from ._bus import JOB, PROPERTIES, Bus, plain
from .embeddings import Embeddings

Framing = Literal["lines", "nul", "json-lines"]


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


Source = int | _HasDescriptor
"""A descriptor, or something open that has one."""

_LOOK_FIRST_S, _LOOK_MAX_S = 0.01, 1.0
"""Seconds between two looks at a job that is waited for; they grow, as it may take hours."""


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    state: str
    """``running``, ``done`` or ``failed``."""
    rows: int
    """Vectors that are done."""
    bytes_read: int
    """Bytes of the source that were read, a little ahead of the vectors."""
    bytes_total: int
    """Bytes that the source has; 0 for a pipe, which does not tell."""


class AsyncJob:
    """A job of :meth:`AsyncEmbedder.start`, in the hands of the client that started it."""

    def __init__(self, bus: Bus, path: str, encoding: str) -> None:
        self._bus = bus
        self._encoding = encoding
        self.path = path
        """The job's object on the bus."""
        self._fetching: asyncio.Task[Embeddings] | None = None

    async def progress(self) -> Progress:
        """How far it is. Raises ``UnknownObject`` once the result is fetched or the job cancelled."""
        call = self._bus.call("GetAll", "s", [JOB], "a{sv}", PROPERTIES, path=self.path)
        body, _ = await call
        values = plain(body[0])
        try:
            return Progress(
                state=str(values["State"]),
                rows=int(values["Rows"]),
                bytes_read=int(values["BytesRead"]),
                bytes_total=int(values["BytesTotal"]),
            )
        except KeyError as missing:
            raise errors.UnexpectedReply(f"a job has no property {missing}") from None

    async def result(self) -> Embeddings:
        """The vectors, once they are there, without a copy; then the job is gone.

        Raises what ended the job if that was an error, and ``UnknownObject`` where it was cancelled or
        its result fetched meanwhile. Where this is cancelled or times out the job goes on, and its
        result is for who asks next.
        """
        result = await self.fetched()
        self.let_go()
        return result

    async def fetched(self) -> Embeddings:
        """The result, which is kept until :meth:`let_go`: who asked for it may have gone by now."""
        pause = _LOOK_FIRST_S
        # ``Fetch`` takes the result away from the service, also for a caller that has gone.
        while self._fetching is None and (await self.progress()).state == "running":
            await asyncio.sleep(pause)
            pause = min(pause * 1.25, _LOOK_MAX_S)
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
            self._fetching.add_done_callback(_told)
        fetching = self._fetching
        try:
            await asyncio.wait([fetching])
            if fetching.cancelled() or fetching.exception() is not None:
                self.let_go()
            return fetching.result()
        finally:
            # It knows the error, which knows this frame.
            del fetching

    def let_go(self) -> None:
        """The result is in the hands of who asked for it, whose views alone hold its memory now."""
        self._fetching = None

    async def _fetch(self) -> Embeddings:
        call = self._bus.call("Fetch", "", [], "huua{sv}", JOB, path=self.path)
        (*shape, info), descriptors = await call
        return embeddings.from_descriptors(descriptors, [*shape, plain(info)], self._encoding)

    async def cancel(self) -> None:
        """Ends the job, whatever it does."""
        await self._bus.call("Cancel", "", [], "", JOB, path=self.path)

    def abandon(self) -> None:
        """Ends the job, which came when who started it had gone; nobody waits for that."""
        self._bus.end_job(self.path)


def _told(fetching: asyncio.Task[Embeddings]) -> None:
    """Nobody may ask again, so that its error counts as heard."""
    if not fetching.cancelled():
        fetching.exception()


def descriptor_of(source: Source) -> int:
    """The descriptor of a source. What a buffered writer holds back is the caller's to flush."""
    descriptor = source if isinstance(source, int) else source.fileno()
    os.fstat(descriptor)
    return descriptor


def travelling(framing: str, wanted: Mapping[str, Any]) -> dict[str, Variant]:
    """The options of a call that reads a descriptor."""
    return options.variants({**wanted, "framing": framing}, options.OF_SOURCES)
