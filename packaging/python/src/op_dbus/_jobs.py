"""Jobs: work that goes on without a call that waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
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

_GONE = (
    "the job is gone: it was cancelled, its result was fetched elsewhere or by nobody in time, or the "
    "service or the client's connection ended; start it again"
)
_LOOK_FIRST_S, _LOOK_MAX_S = 0.01, 1.0
"""Seconds between two looks at a job that is waited for; they grow, as it may take hours."""


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    state: str
    """``running``, ``done`` or ``failed``, of which ``result`` raises why."""
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
        self._fetching: asyncio.Task[Embeddings | errors.OpDbusError] | None = None
        self._end: Progress | None = None

    async def progress(self) -> Progress:
        """How far it is, or was at its end once ``result`` was asked for then.

        Raises ``UnknownObject`` where the job is gone without a result, as once it was cancelled.
        """
        if self._end is None:
            try:
                body, _ = await self._call("GetAll", "s", [JOB], "a{sv}", PROPERTIES)
            except errors.UnknownObject:
                # It is gone as well once its result was fetched, which may have been meanwhile.
                if self._end is None:
                    raise
            else:
                return _progress(plain(body[0]))
        return self._end

    async def result(self) -> Embeddings:
        """The vectors, once they are there, without a copy. This keeps them for whoever asks again.

        Raises what ended the job if that was an error, and ``UnknownObject`` where it was cancelled or
        its result fetched elsewhere. Where this is cancelled or times out the job goes on, and its
        result is for who asks next.
        """
        pause = _LOOK_FIRST_S
        while self._fetching is None:
            progress = await self.progress()
            if progress.state == "running":
                await asyncio.sleep(pause)
                pause = min(pause * 1.25, _LOOK_MAX_S)
            elif self._fetching is None:
                self._end = progress
                # ``Fetch`` takes the result away from the service, also for a caller that has gone.
                self._fetching = asyncio.create_task(self._fetch(progress.state == "failed"))
                self._fetching.add_done_callback(self._fetched)
        fetching = self._fetching
        try:
            if not fetching.done():
                await asyncio.wait([fetching])
            result = fetching.result()
        finally:
            # It may know an error, which knows this frame.
            del fetching
        if isinstance(result, errors.OpDbusError):
            raise type(result)(str(result))
        return result

    async def _fetch(self, has_failed: bool) -> Embeddings | errors.OpDbusError:
        """The result, or what the job has failed with."""
        try:
            body, descriptors = await self._call("Fetch", "", [], "huua{sv}")
        except errors.OpDbusError as reason:
            # A bus that takes no replies refuses before the job is asked, which knows its reason still.
            if not has_failed or (isinstance(reason, errors.Overloaded) and await self._stays()):
                raise
            # It is kept as the result is, and not with it the frames of who asked first.
            return type(reason)(str(reason))
        *shape, info = body
        return embeddings.from_descriptors(descriptors, [*shape, plain(info)], self._encoding)

    async def _stays(self) -> bool:
        """Whether the service has the job still."""
        try:
            await self._call("GetAll", "s", [JOB], "a{sv}", PROPERTIES)
        except errors.OpDbusError:
            return False
        return True

    def _fetched(self, fetching: asyncio.Task[Embeddings | errors.OpDbusError]) -> None:
        # Nobody may ask again, so that its error counts as heard.
        if fetching.cancelled() or fetching.exception() is not None:
            # The service may have it still, as where it had no descriptor left.
            self._fetching = self._end = None

    async def cancel(self) -> None:
        """Ends the job, whatever it does; nothing where it is gone already. A result that is here stays."""
        with contextlib.suppress(errors.UnknownObject):
            await self._call("Cancel", "", [], "")

    async def _call(
        self, member: str, signature: str, body: list[Any], answer: str, interface: str = JOB
    ) -> tuple[list[Any], list[int]]:
        try:
            call = self._bus.call(member, signature, body, answer, interface, path=self.path)
            return await call
        except errors.UnknownObject:
            raise errors.UnknownObject(_GONE) from None

    def abandon(self) -> None:
        """Ends the job, which came when who started it had gone; nobody waits for that."""
        self._bus.end_job(self.path)


def _progress(values: dict[str, Any]) -> Progress:
    try:
        return Progress(
            state=str(values["State"]),
            rows=int(values["Rows"]),
            bytes_read=int(values["BytesRead"]),
            bytes_total=int(values["BytesTotal"]),
        )
    except KeyError as missing:
        raise errors.UnexpectedReply(f"a job has no property {missing}") from None


def descriptor_of(source: Source) -> int:
    """The descriptor of a source that has all that was written to it."""
    descriptor: object = None if isinstance(source, bool) else source
    if not isinstance(source, int):
        # Files in memory have the method as well, which raises.
        with contextlib.suppress(io.UnsupportedOperation):
            descriptor = source.fileno() if hasattr(source, "fileno") else None
    if not isinstance(descriptor, int):
        sentence = f"source is a {type(source).__name__}; an open file, a pipe or a descriptor is right"
        raise TypeError(f"{sentence}, such as open(path, 'rb')")
    flush = getattr(source, "flush", None)
    if flush is not None:
        # The service reads the file by itself, and would not find the last texts there.
        flush()
    os.fstat(descriptor)
    return descriptor


def travelling(framing: str, wanted: Mapping[str, Any]) -> dict[str, Variant]:
    """The options of a call that reads a descriptor."""
    return options.variants({**wanted, "framing": framing}, options.OF_SOURCES)
