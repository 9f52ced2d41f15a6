"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import numbers
import os
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Generic, Self, SupportsIndex, TypeVar, Unpack

from ._aio import AsyncEmbedder, several
from ._bus import BEFORE_FORK
from ._jobs import AsyncJob, Framing, Progress, Source
from .embeddings import Embeddings
from .errors import NotReachable
from .options import Options
from .properties import Properties

_T = TypeVar("_T")
_CLOSED = "this client is closed: make a new one"
_CLOSED_MEANWHILE = "this client was closed meanwhile"
_AT_THE_END = "Python is ending, and the clients' threads with it: ask and close them before, at the latest in atexit"


class Job:
    """A job of :meth:`Embedder.start`."""

    def __init__(self, job: AsyncJob, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._job = job
        self._wait = wait

    @property
    def path(self) -> str:
        """The job's object on the bus."""
        return self._job.path

    def progress(self) -> Progress:
        """See :meth:`AsyncJob.progress`."""
        progress: Progress = self._wait(self._job.progress())
        return progress

    def result(self) -> Embeddings:
        """See :meth:`AsyncJob.result`."""
        result: Embeddings = self._wait(self._job.result())
        return result

    def cancel(self) -> None:
        """See :meth:`AsyncJob.cancel`."""
        self._wait(self._job.cancel())


class Embedder:
    """A client of the service, connected from its construction until ``close`` or ``with`` ends.

    Threads may share it. It has an event loop on a thread of its own, so it also works where one
    runs already, as in a notebook.
    """

    def __init__(
        self, bus: str = "system", *, direct: bool = False, timeout: float | None = None
    ) -> None:
        """``bus`` is ``system``, ``session`` or a D-Bus address; ``direct`` has calls go past it.

        ``timeout`` is how many seconds a method may take, then it raises ``TimeoutError``; without
        one it waits as long as the service takes. See :class:`AsyncEmbedder` and its ``connect``,
        which is done here.
        """
        self._timeout = _seconds(timeout)
        self._client = AsyncEmbedder(bus, direct=direct)
        if sys.is_finalizing():
            raise RuntimeError(_AT_THE_END)
        self._process = os.getpid()
        self._closed = False
        self._waiting: set[_Call[Any]] = set()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run,
            args=[self._loop, self._waiting, self._ended],
            name="op-dbus client",
            daemon=True,
        )
        self._thread.start()
        # A bus takes so many connections of a user, and the thread would never end.
        self._lost = weakref.finalize(self, _lost, self._client, self._loop, self._process)
        self._lost.atexit = False
        try:
            self._wait(self._client.connect())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        if self._closed:
            raise RuntimeError(_CLOSED)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the bus and ends the thread. Vectors that were returned stay valid.

        A signal's handler may do that as well, whatever the program was doing.
        """
        if os.getpid() != self._process:
            # The thread and the connection are the other process's.
            return
        if sys.is_finalizing():
            # The thread has stopped where it was and would be waited for without end. The connection ends with the
            # process.
            return
        self._closed = True
        # One of those who close has it, without a lock: a signal's handler may close within a `close`.
        if self._lost.detach() is None:
            return
        ended = _end(self._client, self._loop)
        # A ``__del__`` may be called on the thread that ends, and that can't wait for itself.
        if threading.current_thread() is not self._thread:
            ended.result()
            # Not joined: a thread ends with a lock that this one may hold, if a signal came in a ``Thread.start``.
            self._ended.get()

    def embed(self, texts: Iterable[str], **options: Unpack[Options]) -> Embeddings:
        """See :meth:`AsyncEmbedder.embed`."""
        # Made on the caller's thread: a database's cursor works on no other, and what asks this client for its
        # next text would on the client's own wait for itself.
        return self._wait(self._client.embed(several("texts", texts), **options))

    def start(
        self, source: Source, *, framing: Framing = "lines", **options: Unpack[Options]
    ) -> Job:
        """See :meth:`AsyncEmbedder.start`."""
        client = self._client
        made: list[AsyncJob] = []

        async def starting() -> AsyncJob:
            made.append(await client.start(source, framing=framing, **options))
            return made[0]

        try:
            return Job(self._wait(starting()), self._wait)
        except BaseException:
            # The job may have come at the moment when the wait ended: the loop knows. One that would come later
            # ends with its call. A loop that is closed has left the bus, and the job ended with that.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_abandon, made)
            raise

    def similarity(self, first: str, second: str) -> float:
        """See :meth:`AsyncEmbedder.similarity`."""
        return self._wait(self._client.similarity(first, second))

    def rank(
        self, query: str, candidates: Iterable[str], count: SupportsIndex | None = None
    ) -> list[tuple[int, float]]:
        """See :meth:`AsyncEmbedder.rank`."""
        candidates = several("candidates", candidates)
        return self._wait(self._client.rank(query, candidates, count))

    def count_tokens(self, texts: Iterable[str]) -> list[int]:
        """See :meth:`AsyncEmbedder.count_tokens`."""
        return self._wait(self._client.count_tokens(several("texts", texts)))

    def properties(self) -> Properties:
        """See :meth:`AsyncEmbedder.properties`."""
        return self._wait(self._client.properties())

    def _wait(self, call: Coroutine[Any, Any, _T]) -> _T:
        if os.getpid() != self._process:
            call.close()
            raise RuntimeError(BEFORE_FORK)
        if sys.is_finalizing():
            call.close()
            raise RuntimeError(_AT_THE_END)
        if threading.current_thread() is self._thread:
            call.close()
            raise RuntimeError("a client can't be asked from its own thread, where its answer would come")
        if self._closed:
            call.close()
            raise RuntimeError(_CLOSED)
        asked = _Call(call)
        try:
            # Before the loop is asked, so that its thread tells this one, should that end before it comes to this.
            self._waiting.add(asked)
            try:
                self._loop.call_soon_threadsafe(self._begin, asked)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                asked.end()
            if not asked.wait(self._timeout):
                raise TimeoutError(f"no answer within {self._timeout} s: see timeout")
        except BaseException:
            # The time is over, or a signal's handler has raised.
            self._give_up(asked)
            raise
        finally:
            self._waiting.discard(asked)
        try:
            return asked.result()
        except asyncio.CancelledError:
            raise RuntimeError(_CLOSED_MEANWHILE) from None
        except NotReachable:
            # Of a call under way its connection tells first, as a rule; it does not know whose doing that was.
            if self._closed:
                raise RuntimeError(_CLOSED_MEANWHILE) from None
            raise

    def _begin(self, asked: _Call[Any]) -> None:
        """On the client's thread."""
        if self._closed:
            # ``_end`` may have looked already for what is left behind.
            asked.end()
        else:
            asked.begin()

    def _give_up(self, asked: _Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(asked.cancel)
        except RuntimeError:
            # The loop is closed: nothing of it goes on.
            asked.end()


class _Call(Generic[_T]):
    """A call that the client's thread makes, and that another one waits for.

    A signal's handler may come in wherever that one is, close the client there, and wait for its thread, which
    therefore must want no lock that who asks may hold. Futures of ``concurrent`` have such a lock.
    """

    def __init__(self, call: Coroutine[Any, Any, _T]) -> None:
        self._call = call
        self._task: asyncio.Task[_T] | None = None
        self._value: _T
        # Until it has begun.
        self._error: BaseException | None = asyncio.CancelledError()
        # Held until it has ended. Not a ``SimpleQueue``: its ``get`` waits without end where a signal's handler
        # takes longer than what is left of the time.
        self._ended = threading.Lock()
        self._ended.acquire()

    def begin(self) -> None:
        """In the loop."""
        self._task = asyncio.get_running_loop().create_task(self._call)
        self._task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[_T]) -> None:
        # Not handed on: whoever lets a task go last does so in Python code of ``asyncio``, out of which no exception
        # of a signal's handler gets.
        self._task = None
        if not task.cancelled():
            self._error = task.exception()
            if self._error is None:
                self._value = task.result()
        self._tell()

    def cancel(self) -> None:
        """In the loop."""
        if self._task is None:
            self._call.close()
        else:
            self._task.cancel()

    def end(self) -> None:
        """Tells who waits; a call that has not begun never will."""
        if self._task is None:
            self._call.close()
        self._tell()

    def _tell(self) -> None:
        # Perhaps once more.
        with contextlib.suppress(RuntimeError):
            self._ended.release()

    def wait(self, seconds: float | None) -> bool:
        """Until it has ended; whether that was in time."""
        return self._ended.acquire(timeout=-1 if seconds is None else seconds)

    def result(self) -> _T:
        """What it has ended with; ``CancelledError`` where it never began."""
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            # It knows this frame, and through it all that the callers hold: vectors, too, which would stay mapped
            # until the next collection of cycles.
            del error


def _seconds(timeout: float | None) -> float | None:
    """``timeout`` as it was given. Raises ``TypeError`` or ``ValueError`` where nothing can be waited for that long."""
    if timeout is None:
        return None
    right = "or None to wait as long as the service takes"
    if not isinstance(timeout, numbers.Real) or isinstance(timeout, bool):
        raise TypeError(f"timeout is a {type(timeout).__name__}; a number of seconds is right, {right}")
    # A NaN is neither more nor less than anything.
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        most = int(threading.TIMEOUT_MAX)
        raise ValueError(f"timeout is {timeout}; more than 0 and up to {most} seconds is right, {right}")
    return float(timeout)


def _abandon(jobs: list[AsyncJob]) -> None:
    for job in jobs:
        job.abandon()


def _run(
    loop: asyncio.AbstractEventLoop, waiting: set[_Call[Any]], ended: queue.SimpleQueue[None]
) -> None:
    """The thread of a client, until its loop is stopped."""
    loop.run_forever()
    loop.close()
    for asked in list(waiting):
        asked.end()
    ended.put(None)


def _end(
    client: AsyncEmbedder, loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[None]:
    """Ends a client and then its loop."""

    async def end() -> None:
        # By this calls under way fail; none is left behind that a thread waits for.
        await client.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    ended = asyncio.run_coroutine_threadsafe(end(), loop)
    ended.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    return ended


def _lost(client: AsyncEmbedder, loop: asyncio.AbstractEventLoop, process: int) -> None:
    """Ends a client that nobody holds any more, on whatever thread that was found."""
    if os.getpid() == process:
        _end(client, loop)
        warnings.warn("an Embedder was not closed: use `with`", ResourceWarning, stacklevel=2)
