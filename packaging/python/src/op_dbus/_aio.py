"""The client for programs with an event loop."""

from __future__ import annotations

import asyncio
import math
import operator
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from . import embeddings, errors, options
from ._bus import EMBEDDER, PROPERTIES, Bus, UnknownMethod, plain
from ._jobs import AsyncJob, Framing, Source, descriptor_of, travelling
from .embeddings import Embeddings
from .options import Options
from .properties import Properties

_T = TypeVar("_T")
_CALL_TEXTS_MAX, _CALL_BYTES_MAX = 2048, 2 * 1024 * 1024
"""Texts in one call, and their bytes: a few batches, and a part of ``quota_tokens``, which all programs of a
user share. With ``truncate="mean"`` each byte counts there as a token."""
_IN_MESSAGE_BYTES_MAX = 64 * 1024
"""Replies up to this many bytes come in the message: a memfd and its mapping would cost more."""
_UNKNOWN_ROW_BYTES = 4096 * 4
"""How many bytes a vector of a kind is taken for until the first of them is here."""
_ROOM_S = 120.0
"""Seconds that each further call of a long list waits for room in the queue, at most until ``deadline_ms``."""
_LATE_S = 5.0
"""Seconds past ``deadline_ms`` until the service, which keeps it by itself, is waited for no more."""


class AsyncEmbedder:
    """A client of the service; ``async with`` connects it, in the event loop that it then belongs to.

    Calls may overlap; 64 of them are sent at a time, and others wait here for their turn. A call that
    is cancelled while it waits is not sent. One that was sent is not taken back from the service, whose
    work ends with it anyway, at the latest at ``deadline_ms`` or when this client leaves the bus.
    """

    def __init__(self, bus: str = "system", *, direct: bool = False) -> None:
        """``bus`` is ``system``, ``session`` or a D-Bus address.

        With ``direct`` a connection is opened past the bus for everything but jobs: the same calls in
        the name of the same user, which no bus forwards. For programs that call all the time: each
        user may have 16 of them. It ends with the service; ``connect`` makes a new one.
        """
        if not isinstance(bus, str):
            raise TypeError(f"bus is a {type(bus).__name__}; a str is right, such as 'session'")
        if not isinstance(direct, bool | np.bool_):
            raise TypeError(f"direct is a {type(direct).__name__}; a bool is right")
        self._address = bus
        self._direct = bool(direct)
        self._bus: Bus | None = None
        self._line: Bus | None = None
        self._connecting: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._leaving = False
        self._limits: Properties | None = None
        self._row_bytes: dict[tuple[Any, ...], int] = {}
        self._has_descriptors = True

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        # An ``Embedder`` has one of these, and so is refused as well.
        raise TypeError("a client can't be pickled: make one in each process")

    async def connect(self) -> None:
        """Connects to the bus; the service itself is started by the first call, with ``direct`` here.

        Where it is connected already nothing is done, unless that connection has ended: then there is a new one.

        Raises ``NotReachable`` where there is no bus or no room on it; with ``direct`` also
        ``QuotaExceeded`` and ``Overloaded`` where too many are open, ``NoSpace`` by a service that has no file
        descriptor or thread for it, ``ShuttingDown``, and ``Failed`` by a service that is too old for it.
        """
        async with self._turn():
            if self._bus is not None:
                if self._bus.lives() and (self._line is None or self._line.lives()):
                    return
                await self._leave()
                # Another service may be there now.
                self._limits, self._has_descriptors = None, True
            self._bus = await Bus.connect(self._address)
            if self._direct and not self._leaving:
                try:
                    self._line = await self._bus.direct()
                except BaseException:
                    await self._leave()
                    raise

    async def close(self) -> None:
        """Leaves the bus; calls under way fail, and the service forgets them.

        Where ``connect`` is under way this waits for its end, so that no connection comes after it.
        """
        self._leaving = True
        turn = self._turn()
        try:
            if turn.locked() and self._bus is not None:
                # By this ``OpenDirect`` fails, which otherwise takes as long as the service does.
                self._bus.close()
            async with turn:
                await self._leave()
        finally:
            self._leaving = False

    def _turn(self) -> asyncio.Lock:
        """What one task at a time connects or closes in. A lock stays with the loop in which it was waited for."""
        loop = asyncio.get_running_loop()
        if self._connecting is None or self._connecting[0] is not loop:
            self._connecting = loop, asyncio.Lock()
        return self._connecting[1]

    async def _leave(self) -> None:
        connections = [one for one in (self._line, self._bus) if one is not None]
        self._line = self._bus = None
        # All of them before this waits, which may be cancelled.
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed()

    async def embed(self, texts: Iterable[str], **options: Unpack[Options]) -> Embeddings:
        """Vectors of ``texts``, in their order.

        Up to 2,048 texts of together 2 MiB are one call to the service, and the vectors are a view of
        what it sent, without a copy. More are several calls, one after the other and all in the vector
        space of the first, and the vectors of each are copied into one array as they come. Where the
        service's limits are smaller, so are the calls. Where the queue is full by then, all but the first
        wait for room, each for 120 s, and come back when the service says. ``deadline_ms`` is for all of
        them together, from when the first is asked.
        """
        wanted: dict[str, Any] = dict(options)
        deadline = _Deadline(wanted)
        texts = await self._checked(texts, deadline.patience())
        kind = tuple(wanted.get(key) for key in ("level", "dimensions", "encoding"))
        parts: list[Embeddings] = []
        whole: NDArray[Any] | None = None
        start = 0

        def ask(some: list[str], by_descriptor: bool) -> Awaitable[Embeddings]:
            return self._embed(some, deadline.into(wanted), by_descriptor)

        try:
            async for part in self._in_calls(texts, ask, kind, deadline):
                end = start + len(part)
                columns, dtype = part.vectors.shape[1], part.vectors.dtype
                self._row_bytes[kind] = columns * dtype.itemsize
                wanted.setdefault("expect_space", part.space)
                if whole is None and end < len(texts):
                    whole = np.empty((len(texts), columns), dtype)
                if whole is not None:
                    # At once: the memory of what came is the service's until it is let go.
                    part = embeddings.copied(part, whole[start:end])
                parts.append(part)
                start = end
        except errors.WrongSpace:
            if "expect_space" in options:
                raise
            # It is asked for here alone: the caller has no index to embed again.
            sentence = "the model was changed between two calls for these texts"
            raise errors.WrongSpace(f"{sentence}: embed them again") from None
        return parts[0] if whole is None else embeddings.joined(parts, whole)

    async def start(
        self, source: Source, *, framing: Framing = "lines", **options: Unpack[Options]
    ) -> AsyncJob:
        """Starts embedding the texts of ``source`` as a job, which this client need not wait for.

        ``source`` is an open file, a pipe, or a descriptor of either, and no path; the service reads it
        by itself, a file from its start. What was written to a file object is flushed before.
        ``framing`` says how texts follow one another: ``lines``, ``nul`` or ``json-lines``. The job ends
        when this client leaves the bus, and where this is cancelled or times out before it is here.
        """
        wanted = travelling(framing, options)
        bus = self._on_the_bus()
        try:
            body, _ = await bus.call(
                "StartEmbedFromFd",
                "ha{sv}",
                [0, wanted],
                "o",
                descriptors=[descriptor_of(source)],
                seconds=_Deadline(options).patience(),
            )
        except UnknownMethod:
            raise errors.Failed("this service is older than jobs: embed the texts") from None
        return AsyncJob(bus, str(body[0]), _encoding(options))

    async def similarity(self, first: str, second: str) -> float:
        """Cosine of the vectors of two texts, from -1 to 1."""
        await self._checked([first, second])
        body, _ = await self._connected().call("Similarity", "ss", [first, second], "d")
        return float(body[0])

    async def rank(
        self, query: str, candidates: Iterable[str], count: SupportsIndex | None = None
    ) -> list[tuple[int, float]]:
        """Index and cosine of the ``count`` candidates nearest to ``query``, best first.

        All of them without ``count``. Equal cosines keep the order of the candidates. In errors ``query``
        is text 0, and the first of the candidates text 1. Of more than 2,047 candidates, or 2 MiB, the
        vectors come here to be compared, as those of ``embed`` do.
        """
        candidates = several("candidates", candidates)
        try:
            most = None if count is None else operator.index(count)
        except TypeError:
            raise TypeError(f"count is a {type(count).__name__}; an int is right") from None
        texts = await self._checked([query, *candidates])
        most = len(texts) - 1 if most is None else min(most, len(texts) - 1)
        if most < 0:
            raise ValueError(f"count is {most}; 0 or more is right")
        if await self._end_of_call(texts, 0) == len(texts):
            asked = [query, texts[1:], most]
            try:
                body, _ = await self._connected().call("Rank", "sasu", asked, "a(ud)")
                return [(int(index), float(cosine)) for index, cosine in body[0]]
            except errors.TooLarge:
                pass  # For one call: below they are several.
        embeddings = await self.embed(texts, normalize=True)
        if len(embeddings.truncated):
            warnings.warn(
                f"{len(embeddings.truncated)} of {len(texts)} texts were longer than the model reads "
                "and ranked by their beginnings",
                stacklevel=2,
            )
        vectors = embeddings.vectors
        # `@` adds some rows up in another order, and equal texts would differ by where they stand.
        cosines = np.einsum("ij,j->i", vectors[1:], vectors[0], dtype=np.float64).clip(-1, 1)
        best = np.argsort(-cosines, kind="stable")[:most]
        return [(int(index), float(cosines[index])) for index in best]

    async def count_tokens(self, texts: Iterable[str]) -> list[int]:
        """Tokens of each text with the default prompt, before truncation; nothing is embedded.

        Long lists are several calls, as those of ``embed`` are, and all of one model: ``WrongSpace`` is raised where
        that was changed in between.
        """
        texts = await self._checked(texts)
        if not texts:
            return []
        model = ""

        async def ask(some: list[str], by_descriptor: bool) -> list[int]:
            nonlocal model
            # "" while none serves: looked at again.
            if not model and len(some) < len(texts):
                model = await self._fingerprint()
            return await self._counted(some)

        counts = [count async for part in self._in_calls(texts, ask) for count in part]
        if model and await self._fingerprint() not in (model, ""):
            sentence = "the model was changed between two calls for these texts"
            raise errors.WrongSpace(f"{sentence}: count them again")
        return counts

    async def properties(self) -> Properties:
        """What the service says about itself now."""
        return await self._properties(None)

    async def _properties(self, seconds: float | None) -> Properties:
        line = self._connected()
        asked = line.call("GetAll", "s", [EMBEDDER], "a{sv}", PROPERTIES, seconds=seconds)
        body, _ = await asked
        return Properties.from_reply(plain(body[0]))

    async def _fingerprint(self) -> str:
        """What tells the model that serves from others; empty while none does."""
        return (await self.properties()).vector_space.partition("-")[0]

    def _on_the_bus(self) -> Bus:
        if self._bus is None:
            raise errors.NotReachable("this client is not connected: use it in `async with`, or call connect")
        return self._bus

    def _connected(self) -> Bus:
        """What calls take: past the bus, or over it."""
        return self._line or self._on_the_bus()

    async def _constant(self, seconds: float | None) -> Properties:
        """The limits, which don't change while a service runs."""
        if self._limits is None:
            self._limits = await self._properties(seconds)
        return self._limits

    async def _checked(self, texts: Iterable[str], seconds: float | None = None) -> list[str]:
        """Refuses what can't travel: the bus would disconnect us for it."""
        checked = several("texts", texts)
        bytes_max = (await self._constant(seconds)).text_bytes_max
        for index, text in enumerate(checked):
            if not isinstance(text, str):
                raise TypeError(f"text {index} is a {type(text).__name__}; a str is right")
            size = len(options.sendable(f"text {index}", text))
            if size > bytes_max:
                sentence = f"text {index} has {size} bytes, and text_bytes_max is {bytes_max}"
                raise errors.TooLarge(f"{sentence}: split it")
        return checked

    async def _in_calls(
        self,
        texts: list[str],
        ask: Callable[[list[str], bool], Awaitable[_T]],
        kind: tuple[Any, ...] = (),
        deadline: _Deadline | None = None,
    ) -> AsyncIterator[_T]:
        """What ``ask`` answers for one part of ``texts`` after the other; where there are none, for that.

        It is told whether the answer comes in a descriptor, as many vectors of a ``kind`` do.
        """
        deadline = deadline or _Deadline({})
        start, bytes_max, room_s = 0, _CALL_BYTES_MAX, 0.0
        while True:
            row_bytes = self._row_bytes.get(kind, _UNKNOWN_ROW_BYTES) if kind else 0
            end = await self._end_of_call(texts, start, row_bytes, deadline.patience(), bytes_max)
            bytes_expected = (end - start) * row_bytes
            by_descriptor = self._has_descriptors and bytes_expected > _IN_MESSAGE_BYTES_MAX
            try:
                # Not kept in here, where it would stay during the next call.
                yield await ask(texts[start:end], by_descriptor)
            except UnknownMethod:
                if not by_descriptor:
                    raise
                # Once: from now on replies come in messages, whose size is limited.
                self._has_descriptors = False
                continue
            except (errors.Overloaded, errors.QuotaExceeded) as reason:
                pause = errors.pause_of(reason)
                if pause > room_s or pause >= deadline.left():
                    raise
                room_s -= pause
                await asyncio.sleep(pause)
                continue
            except errors.OpDbusError as reason:
                if isinstance(reason, errors.TooLarge):
                    # Another service may run by now, with other limits.
                    self._limits = None
                    if end - start > 1 and not errors.is_about_text(reason):
                        # What a call counts as is the service's to say, by its model and options.
                        bytes_max = sum(map(_bytes_of, texts[start:end])) // 2
                        continue
                raise errors.about_texts(start, end - start, reason) from None
            if end == len(texts):
                return
            # By a refusal of a later call what is here already would be lost.
            start, room_s = end, _ROOM_S

    async def _end_of_call(
        self,
        texts: list[str],
        start: int,
        row_bytes: int = 0,
        seconds: float | None = None,
        bytes_max: int = _CALL_BYTES_MAX,
    ) -> int:
        """How far from ``start`` on the texts fit one call, for the service and for the bus."""
        limits = await self._constant(seconds)
        rows_max = min(limits.texts_per_call_max, _CALL_TEXTS_MAX)
        if row_bytes and not self._has_descriptors:
            rows_max = min(rows_max, limits.inline_reply_bytes_max // row_bytes)
        size = 0
        for end in range(start, len(texts)):
            size += _bytes_of(texts[end])
            if end > start and (end - start == rows_max or size > bytes_max):
                return end
        return len(texts)

    async def _counted(self, texts: list[str]) -> list[int]:
        """One call, which is answered in the message."""
        body, _ = await self._connected().call("CountTokens", "as", [texts], "au")
        if len(body[0]) != len(texts):
            raise errors.UnexpectedReply("CountTokens answered for another number of texts")
        return [int(count) for count in body[0]]

    async def _embed(
        self, texts: list[str], wanted: dict[str, Any], by_descriptor: bool
    ) -> Embeddings:
        """One call. Raises ``UnknownMethod`` where the service does not have this one."""
        method = self._embed_to_descriptor if by_descriptor else self._embed_packed
        asked = [texts, options.variants(wanted)]
        answer = await method(asked, _encoding(wanted), _Deadline(wanted).patience())
        if len(answer) != len(texts):
            raise errors.UnexpectedReply(f"{len(answer)} vectors came for {len(texts)} texts")
        return answer

    async def _embed_packed(
        self, asked: list[Any], encoding: str, seconds: float | None
    ) -> Embeddings:
        line = self._connected()
        call = line.call("EmbedPacked", "asa{sv}", asked, "ayuua{sv}", seconds=seconds)
        (packed, rows, dimensions, info), _ = await call
        layout = embeddings.Layout(rows, dimensions, encoding)
        vectors = embeddings.packed_view(packed, layout)
        return embeddings.from_reply(vectors, dimensions, plain(info))

    async def _embed_to_descriptor(
        self, asked: list[Any], encoding: str, seconds: float | None
    ) -> Embeddings:
        line = self._connected()
        call = line.call("EmbedToFd", "asa{sv}", asked, "huua{sv}", seconds=seconds)
        (*shape, info), descriptors = await call
        return embeddings.from_descriptors(descriptors, [*shape, plain(info)], encoding)


class _Deadline:
    """``deadline_ms`` of all calls for one list together."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        deadline = options.variants(wanted).get("deadline_ms")
        self._seconds: float = deadline.value / 1000 if deadline else math.inf
        self._begun: float | None = None

    def left(self) -> float:
        """Seconds, endless ones without a deadline."""
        if self._begun is None:
            return self._seconds
        return self._seconds - (asyncio.get_running_loop().time() - self._begun)

    def patience(self) -> float | None:
        """Seconds until a call is waited for no more: a service that hangs keeps no deadline by itself."""
        return None if self._seconds == math.inf else max(self.left(), 0.0) + _LATE_S

    def into(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Options of the next call, with what those before have left. Time runs from the first."""
        if self._seconds == math.inf:
            return wanted
        if self._begun is None:
            self._begun = asyncio.get_running_loop().time()
            return wanted
        left_ms = int(self.left() * 1000)
        if left_ms <= 0:
            sentence = f"deadline_ms ({self._seconds * 1000:.0f}) passed before all texts were embedded"
            raise errors.DeadlineExceeded(f"{sentence}: allow more time or send less")
        return wanted | {"deadline_ms": left_ms}


def several(what: str, texts: Iterable[str]) -> list[str]:
    """All of some texts. What would be taken for others is refused: one text for its letters or its bytes,
    a mapping for its keys, a table for the names of its columns; and a set, whose order nobody knows."""
    kind, right = type(texts).__name__, "a sequence of str is right"
    if isinstance(texts, str | bytes | bytearray):
        raise TypeError(f"{what} is a {kind}; {right}, such as [text]")
    if isinstance(texts, Mapping):
        raise TypeError(f"{what} is a {kind}; {right}, such as its values()")
    if isinstance(texts, set | frozenset):
        raise TypeError(f"{what} is a {kind}, which has no order; {right}, such as sorted(…) of it")
    shape = getattr(texts, "shape", None)
    if isinstance(shape, tuple) and len(shape) > 1:
        raise TypeError(f"{what} is a {kind} of {len(shape)} dimensions; {right}, such as one column of it")
    try:
        return list(texts)
    except TypeError as reason:
        # Of what can be walked it is the caller's own; numpy's arrays of no dimensions only look so.
        if isinstance(texts, Iterable) and shape != ():
            raise
        raise TypeError(f"{what} is a {kind}; {right}, such as [text]") from reason


def _bytes_of(text: str) -> int:
    """A text travels with its length and up to four bytes of padding."""
    return len(text.encode()) + 8


def _encoding(wanted: Mapping[str, Any]) -> str:
    return str(wanted.get("encoding", "f32"))
