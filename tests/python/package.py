"""The installed package `op-dbus` against a daemon: prints one JSON object for the test.

    package.py BUS-ADDRESS
"""

import asyncio
import contextlib
import copy
import fcntl
import gc
import io
import json
import math
import os
import pathlib
import pickle
import resource
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from types import MappingProxyType

import numpy as np

import op_dbus
from op_dbus import AsyncEmbedder, Embedder, Embeddings, OpDbusError, errors
from op_dbus.embeddings import Layout, from_reply, packed_view, sealed_view

BUS = sys.argv[1]
MANY = 18_000


def refused(kind: type[Exception], words: str, call) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


class Column(list):
    """Texts as a column of a table has them."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self),)


class Table:
    """Texts as pandas has them: who walks it finds the names of its columns."""

    shape = (2, 1)

    def __iter__(self) -> Iterator[str]:
        return iter(["text"])


class Once:
    """Texts whose walk has the next one and no more, as Python allows."""

    class Walk:
        def __init__(self) -> None:
            self.left = ["one"]

        def __next__(self) -> str:
            if not self.left:
                raise StopIteration
            return self.left.pop()

    def __iter__(self) -> Walk:
        return self.Walk()


class Faulty:
    """Texts that can't be walked for a reason of their own."""

    def __iter__(self) -> Iterator[str]:
        raise TypeError("mine")


def vectors_of_two(embedder: Embedder) -> Embeddings:
    embeddings = embedder.embed(["one", "two"])
    assert embeddings.vectors.dtype == np.float32 and not embeddings.vectors.flags.writeable
    assert len(embeddings) == 2 and np.asarray(embeddings) is not None
    assert np.array_equal(np.asarray(embeddings), embeddings.vectors)
    assert embeddings.__array__(np.dtype(np.float32), copy=False) is not None
    for kind in (np.float16, np.float64):
        asked = (np.dtype(kind), False)
        refused(ValueError, f"{kind.__name__} needs a copy", lambda: embeddings.__array__(*asked))
        assert np.asarray(embeddings, kind).dtype == kind
    first, second = (row / np.linalg.norm(row) for row in embeddings.vectors)
    assert abs(embedder.similarity("one", "two") - first @ second) < 1e-5
    properties = embedder.properties()
    assert embeddings.space == properties.vector_space and embeddings.truncated == ()
    assert embeddings.vectors.shape == (2, properties.dimensions)
    assert embeddings.model == properties.model and embeddings.tokens > 0
    assert embedder.embed([]).vectors.shape[0] == 0
    return embeddings


def every_encoding(embedder: Embedder) -> None:
    """In messages, in memfds, in several calls and from a job: what numpy makes of the floats."""
    texts = [f"line {number}" for number in range(MANY)]
    exact = embedder.embed(texts).vectors
    bytes_of = np.rint(exact * (127 / np.abs(exact).max(axis=1, keepdims=True)))
    kinds = {"f32": exact, "f16": exact.astype(np.float16), "i8": bytes_of.astype(np.int8)}
    kinds["b1"] = np.packbits(exact > 0, axis=1)
    for encoding, expected in kinds.items():
        for count in (0, 2, 2000, MANY):
            found = embedder.embed(texts[:count], encoding=encoding)
            assert found.vectors.dtype == expected.dtype and not found.vectors.flags.writeable
            assert found.dimensions == exact.shape[1]
            # Sums may end in another last bit in another batch, and a half or a byte then beside it.
            apart = np.abs(found.vectors.astype(float) - expected[:count])
            assert apart.shape == expected[:count].shape, (encoding, apart.shape)
            if encoding == "b1":
                assert np.count_nonzero(apart) <= apart.size / 1000
            else:
                assert np.all(apart <= (1 if encoding == "i8" else 1e-3)), encoding
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write("\n".join(texts[:100]).encode())
            result = embedder.start(file, encoding=encoding).result()
        assert result.vectors.dtype == expected.dtype and result.dimensions == exact.shape[1]
        assert result.vectors.shape == expected[:100].shape
    bits = embedder.embed(["one"], encoding="b1")
    signs = np.unpackbits(bits.vectors, axis=1, count=bits.dimensions)
    assert np.array_equal(signs, embedder.embed(["one"]).vectors > 0)
    refused(errors.InvalidArgument, "encoding", lambda: embedder.embed(["one"], encoding="f64"))


def many_texts(embedder: Embedder) -> None:
    """More than one call takes: the order is kept, and so are the indices of what was cut."""
    assert embedder.properties().texts_per_call_max < MANY
    texts = [f"line {number}" for number in range(MANY)]
    texts[MANY - 2] = "word " * 1_000
    embeddings = embedder.embed(texts)
    assert embeddings.truncated == (MANY - 2,), embeddings.truncated
    assert embeddings.truncated_count == 1
    whole = {"truncate": "error"}
    refused(errors.TooLong, f"text {MANY - 2} has", lambda: embedder.embed(texts, **whole))
    for index in (0, 1, MANY // 2, MANY - 1):
        alone = embedder.embed([texts[index]]).vectors[0]
        assert np.allclose(embeddings.vectors[index], alone, atol=1e-5), index
    counts = embedder.count_tokens(texts)
    assert len(counts) == MANY and counts[MANY - 2] > 1_000
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ranks = embedder.rank("line 4321", texts, 3)
    assert [str(one.message)[:11] for one in told] == ["1 of 18001 "], told
    assert len(ranks) == 3 and ranks[0][0] == 4321 and ranks[0][1] > 0.999, ranks
    assert embedder.rank("line 3", texts[:10], 2)[0][0] == 3
    assert len(embedder.rank("line 3", (text for text in texts[:10]))) == 10
    # Rows that a product of the matrix would take by fours or by eights, with some left over.
    for query in ("one", "two"):
        ranks = embedder.rank(query, ["one"] * 16_389)
        assert [index for index, _ in ranks] == list(range(16_389)), query
        assert len({cosine for _, cosine in ranks}) == 1 and ranks[0][1] <= 1, ranks[0]
    # Texts of more bytes than go into one message.
    large = ["x" * 1_000_000] * 40
    assert len(embedder.embed(large).truncated) == 40


def refusals(embedder: Embedder) -> None:
    no_order = ({"one"}, frozenset(["one"]))
    tables = (Table(), np.array([["one"]]))
    one = ("one", b"one", bytearray(b"one"), None, 1, np.array("one"))
    for texts in (*one, {"one": "two"}, MappingProxyType({}), *no_order, *tables):
        for call in (embedder.embed, embedder.count_tokens):
            refused(TypeError, f"texts is a {type(texts).__name__}", lambda: call(texts))
            refused(TypeError, "; a sequence of str is right, such as", lambda: call(texts))
        refused(TypeError, "candidates is a", lambda: embedder.rank("one", texts))
    # Those that have an order and one dimension.
    told = {"one": "two"}
    for texts in (told.keys(), told.values(), np.array(["one"]), Column(["one"]), Once()):
        assert len(embedder.embed(texts)) == len(embedder.count_tokens(texts)) == 1, texts
    refused(TypeError, "mine", lambda: embedder.embed(Faulty()))
    refused(TypeError, "text 1 is a int", lambda: embedder.embed(["one", 2]))
    refused(TypeError, "the options are level,", lambda: embedder.embed(["one"], levle="low"))
    # numpy has a bool of its own.
    assert len(embedder.embed(["one"], normalize=np.bool_(True), deadline_ms=np.int64(60_000))) == 1
    refused(TypeError, "normalize is a int", lambda: embedder.embed(["one"], normalize=1))
    refused(ValueError, "deadline_ms is -1", lambda: embedder.embed(["one"], deadline_ms=-1))
    refused(errors.InvalidArgument, "text 0 has a NUL", lambda: embedder.embed(["a\0b"]))
    refused(errors.InvalidArgument, "not Unicode", lambda: embedder.embed(["\ud800"]))
    refused(errors.InvalidArgument, "truncate", lambda: embedder.embed(["one"], truncate="no"))
    # Of a model that was not trained for it.
    refused(errors.InvalidArgument, "dimensions is 8", lambda: embedder.embed(["one"], dimensions=8))
    words = "option device has a NUL"
    refused(errors.InvalidArgument, words, lambda: embedder.embed(["one"], device="a\0b"))
    words = "option prompt is not Unicode"
    refused(errors.InvalidArgument, words, lambda: embedder.embed(["one"], prompt="\ud800"))
    refused(errors.InvalidArgument, "NUL", lambda: embedder.start(0, framing="a\0b"))
    refused(TypeError, "framing is a int", lambda: embedder.start(0, framing=1))
    refused(errors.TooLarge, "text_bytes_max", lambda: embedder.embed(["x" * 40_000_000]))
    long = "word " * 1_000
    refused(errors.TooLong, "tokens", lambda: embedder.embed([long], truncate="error"))
    wrong = "0" * 64 + "-f32"
    refused(errors.WrongSpace, "space", lambda: embedder.embed(["one"], expect_space=wrong))
    refused(errors.NotReachable, "no connection", lambda: Embedder("unix:path=/nowhere"))
    refused(errors.NotReachable, "the bus is ''", lambda: Embedder(""))
    for client in (Embedder, AsyncEmbedder):
        refused(TypeError, "bus is a NoneType; a str is right", lambda: client(None))
        for direct in ("x", 1, None):
            words = f"direct is a {type(direct).__name__}; a bool is right"
            refused(TypeError, words, lambda: client(BUS, direct=direct))
    for timeout in (-1, 0, -0.0, math.nan, math.inf, np.float32(-1), 10**400):
        words = f"timeout is {timeout}; more than 0"
        refused(ValueError, words, lambda: Embedder(BUS, timeout=timeout))
    for timeout in ("3", True, [3], 3j):
        words = f"timeout is a {type(timeout).__name__}; a number of seconds"
        refused(TypeError, words, lambda: Embedder(BUS, timeout=timeout))
    for timeout in (60, np.int64(60), threading.TIMEOUT_MAX):
        with Embedder(BUS, timeout=timeout) as client:
            assert len(client.embed(["one"])) == 1
    for number, texts in enumerate((("a\0b", ["two"]), ("one", ["a\0b"]))):
        words = f"text {number} has a NUL"
        refused(errors.InvalidArgument, words, lambda: embedder.rank(*texts))
    refused(TypeError, "count is a str", lambda: embedder.rank("one", ["two"], count="1"))
    assert embedder.rank("one", ["two", "one"], count=np.int64(1))[0][0] == 1
    for name in ("DBus.Error.Spawn.ChildExited", "systemd1.NoSuchUnit", "DBus.Error.TimedOut"):
        assert isinstance(errors.from_reply(f"org.freedesktop.{name}", ""), errors.NotReachable)
    for source in ("texts.txt", pathlib.Path("texts.txt"), io.BytesIO(b"one"), ["one"], None, True):
        words = f"source is a {type(source).__name__}; an open file"
        refused(TypeError, words, lambda: embedder.start(source))
    closed = Embedder(BUS)
    closed.close()
    refused(RuntimeError, "closed", lambda: closed.similarity("one", "two"))
    refused(RuntimeError, "closed", closed.__enter__)


def memfd(content: bytes, seals: int) -> int:
    descriptor = os.memfd_create("vectors", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def sealed_files() -> None:
    numbers = np.arange(6, dtype="<f4")
    bulk = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    sealed = memfd(numbers.tobytes(), bulk | fcntl.F_SEAL_SEAL)
    floats = Layout(2, 3, "f32")
    view = sealed_view(sealed, floats)
    refused(errors.UnexpectedReply, "24 bytes", lambda: sealed_view(sealed, Layout(3, 3, "f32")))
    # A bit for each of 25 dimensions needs four bytes.
    assert sealed_view(sealed, Layout(6, 25, "b1")).shape == (6, 4)
    refused(errors.UnexpectedReply, "older than the encoding", lambda: Layout(2, 3, "f64"))
    os.close(sealed)
    assert np.array_equal(view.ravel(), numbers) and not view.flags.writeable
    for seals in (0, bulk, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE):
        open_to_others = memfd(numbers.tobytes(), seals)
        refused(errors.UnexpectedReply, "seals", lambda: sealed_view(open_to_others, floats))
        os.close(open_to_others)
    # What a message brings may be writable.
    assert not packed_view(bytearray(24), floats).flags.writeable
    with tempfile.TemporaryFile() as file:
        refused(errors.UnexpectedReply, "memfd", lambda: sealed_view(file.fileno(), floats))


def vectors_that_are_kept(embedder: Embedder) -> None:
    """They cost no descriptor, of which a program may have 1,024, and their memory goes with them."""
    before = descriptors()
    kept = [embedder.embed(["one"] * 100).vectors for _ in range(5)]
    assert descriptors() == before and mapped() == 5, (descriptors(), mapped())
    last = kept[-1][99:]
    kept.clear()
    assert mapped() == 1 and last.any()
    refused(ValueError, "WRITEABLE", lambda: last.setflags(write=True))
    del last
    unmapped_but(0)
    # Nor more of the mappings that a process may have than leave it some.
    most, op_dbus.embeddings._MAPPINGS_MAX = op_dbus.embeddings._MAPPINGS_MAX, 3
    kept = [embedder.embed(["one"] * 100).vectors for _ in range(5)]
    assert mapped() == 3 and all(np.array_equal(kept[0], one) for one in kept)
    assert len(embedder.embed(["one"] * 1000)) == 1000
    unmapped_but(3)
    refused(ValueError, "WRITEABLE", lambda: kept[-1].setflags(write=True))
    kept.clear()
    op_dbus.embeddings._MAPPINGS_MAX = most
    unmapped_but(0)


def unmapped_but(kept: int) -> None:
    """The client's own thread may hold a result for a moment after it has handed it over."""
    until = time.monotonic() + 60
    while mapped() != kept:
        assert time.monotonic() < until, (mapped(), kept)


def mapped() -> int:
    with open("/proc/self/maps") as lines:
        return sum("memfd:" in line for line in lines)


def jobs(embedder: Embedder) -> None:
    texts = [f"line {number}" for number in range(3000)]
    with tempfile.NamedTemporaryFile() as file:
        file.write("\n".join(texts).encode())
        file.flush()
        job = embedder.start(file)
        while job.progress().state == "running":
            pass
        progress = job.progress()
        size = os.fstat(file.fileno()).st_size
        assert (progress.state, progress.rows) == ("done", 3000), progress
        assert progress.bytes_read == progress.bytes_total == size, progress
        vectors = job.result().vectors
        assert vectors.shape[0] == 3000 and not vectors.flags.writeable
        assert np.allclose(vectors[7], embedder.embed(["line 7"]).vectors[0], atol=1e-5)
        # Who asks again has the same, and nothing is left to cancel.
        job.cancel()
        assert job.result().vectors is vectors and job.progress() == progress
        failing = embedder.start(file, framing="json-lines")
        for _ in range(2):
            refused(errors.InvalidArgument, "line 1", failing.result)
            assert failing.progress().state == "failed"
            failing.cancel()
    with tempfile.TemporaryFile("w+") as file:
        # What is still in this program's own buffer is part of it.
        file.write("one\ntwo\n")
        assert len(embedder.start(file).result()) == 2
    read_end, write_end = os.pipe()
    job = embedder.start(read_end, truncate="start")
    assert job.progress().state == "running" and job.progress().bytes_total == 0
    for _ in range(2):
        job.cancel()
        refused(errors.UnknownObject, "the job is gone: it was cancelled", job.progress)
        refused(errors.UnknownObject, "start it again", job.result)
    os.close(read_end)
    os.close(write_end)
    # Who gives up on a result does not take it along.
    read_end, write_end = os.pipe()
    job = embedder.start(read_end)
    # The service has its own by now.
    os.close(read_end)
    embedder._timeout = 0.2
    refused(TimeoutError, "no answer within 0.2 s", job.result)
    embedder._timeout = None
    os.write(write_end, b"one\ntwo\n")
    os.close(write_end)
    while job.progress().state == "running":
        pass
    assert len(job.result()) == 2
    refused(errors.InvalidArgument, "framing", lambda: embedder.start(0, framing="words"))
    refused(OSError, "Bad file descriptor", lambda: embedder.start(9999))


def threads_share_a_client(embedder: Embedder) -> None:
    texts = [f"thread {number}" for number in range(8)]
    found: dict[str, np.ndarray] = {}

    def embed(text: str) -> None:
        found[text] = embedder.embed([text]).vectors[0]

    threads = [threading.Thread(target=embed, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for row, text in zip(embedder.embed(texts).vectors, texts):
        assert np.allclose(row, found[text], atol=1e-5), text


def texts_are_made_by_who_asks(embedder: Embedder) -> None:
    """On no thread of the client's, and what makes them may ask it as well."""
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        rows = database.execute("VALUES ('one'), ('two')")
        found = embedder.embed(text for (text,) in rows).vectors
    assert np.allclose(found, embedder.embed(["one", "two"]).vectors, atol=1e-5)
    threads = set()

    class Lazy(Sequence):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index):
            threads.add(threading.get_ident())
            return ["one", "two"][index]

    assert len(embedder.embed(Lazy())) == len(embedder.count_tokens(Lazy())) == 2
    assert embedder.rank("two", Lazy(), 1)[0][0] == 1
    assert threads == {threading.get_ident()}
    with Embedder(BUS, timeout=60) as asked:
        counts = (str(asked.count_tokens([text])[0]) for text in ("one", "two"))
        assert len(asked.embed(counts)) == 2

        class Asking:
            def fileno(self) -> int:
                return asked.count_tokens(["one"])[0]

        refused(RuntimeError, "from its own thread", lambda: asked.start(Asking()))
    # As by a collection of cycles, which runs on any thread.
    closed = Embedder(BUS)
    closed._loop.call_soon_threadsafe(closed.close)
    closed._thread.join(60)
    assert not closed._thread.is_alive()


def past_the_bus(embedder: Embedder, expected: Embeddings) -> None:
    """The same answers, refusals and jobs; calls do take the direct connection."""
    embeddings = vectors_of_two(embedder)
    assert np.array_equal(embeddings.vectors, expected.vectors)
    assert embedder.properties().vector_space == expected.space
    nested = embedder._client._connected().call("OpenDirect", "", [], "h")
    refused(errors.InvalidArgument, "over the bus", lambda: embedder._wait(nested))
    refused(errors.InvalidArgument, "truncate", lambda: embedder.embed(["one"], truncate="no"))
    # More than one call takes, with vectors that come in a memfd.
    texts = [f"line {number}" for number in range(MANY)]
    assert np.allclose(embedder.embed(texts).vectors[1], embedder.embed([texts[1]]).vectors[0])
    threads_share_a_client(embedder)
    jobs(embedder)


def places_past_the_bus_are_counted() -> None:
    """Behind all else that opens them: one that is closed may have its place for a moment longer."""
    with contextlib.ExitStack() as held:
        taken, until = 0, time.monotonic() + 60
        while taken < 16:
            try:
                held.enter_context(Embedder(BUS, direct=True))
                taken += 1
            except errors.QuotaExceeded:
                assert time.monotonic() < until, "the places of closed connections are not free"
        refused(errors.QuotaExceeded, "16 of 16 direct", lambda: Embedder(BUS, direct=True))


async def a_connection_ends(complaints: list[str]) -> None:
    """When it is closed, under calls as well, and when its bus is: the client says so."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    async with AsyncEmbedder(BUS, direct=True) as embedder:
        # In this order: the call is on its way when the connection is closed.
        leaving = (embedder.embed(["one"] * 3000), embedder.close())
        ended, _ = await asyncio.gather(*leaving, return_exceptions=True)
        assert isinstance(ended, errors.NotReachable), ended
        await connects_again(embedder)
    async with AsyncEmbedder(BUS, direct=True) as embedder:
        await embedder.embed(["one"])
        embedder._bus.close()
        await embedder._line.closed()
        (ended,) = await asyncio.gather(embedder.embed(["one"]), return_exceptions=True)
        assert isinstance(ended, errors.NotReachable), ended
        await connects_again(embedder)
    async with AsyncEmbedder(BUS, direct=True) as embedder:
        await embedder.embed(["one"])
        # As when the service goes while nobody waits for it: the loop has not heard of it yet.
        embedder._line._connection._sock.shutdown(socket.SHUT_RDWR)
        (ended,) = await asyncio.gather(embedder.embed(["one"]), return_exceptions=True)
        assert isinstance(ended, errors.NotReachable), ended
        await connects_again(embedder)


async def connects_again(embedder: AsyncEmbedder) -> None:
    """A client whose connection has ended, as it stands; one that is connected stays as it is."""
    await embedder.connect()
    assert len(await embedder.embed(["one"])) == 1
    connections = embedder._bus, embedder._line
    await embedder.connect()
    assert (embedder._bus, embedder._line) == connections


async def who_connects_at_once_connects_once(embedder: AsyncEmbedder) -> None:
    before = len(descriptors())
    await asyncio.gather(*(embedder.connect() for _ in range(5)))
    assert embedder._line is not None
    await embedder.close()
    assert len(descriptors()) == before, descriptors()


async def an_asynchronous_client_that_nobody_holds_is_closed(direct: bool) -> None:
    """But not while a job of its own is held."""
    before = len(descriptors())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        embedder = AsyncEmbedder(BUS, direct=direct)
        await embedder.connect()
        connections = [bus._connection for bus in (embedder._bus, embedder._line) if bus]
        for connection in connections:
            assert not os.get_inheritable(connection._fd)
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"one\ntwo\n")
            job = await embedder.start(file)
        del embedder
        assert len(await job.result()) == 2 and not told
        del job
        for connection in connections:
            await connection.wait_for_disconnect()
    assert [one.category for one in told] == [ResourceWarning], told
    assert len(descriptors()) == before, descriptors()


def a_client_outlives_its_loop(direct: bool) -> None:
    """It is closed all the same, when nobody holds it any more."""
    embedder = AsyncEmbedder(BUS, direct=direct)
    asyncio.run(embedder.connect())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del embedder
    assert [one.category for one in told] == [ResourceWarning], told


def a_client_belongs_to_its_loop(direct: bool) -> None:
    """Another loop hears of no answer; there it can be closed, and connected anew."""
    before = len(descriptors())
    embedder = AsyncEmbedder(BUS, direct=direct)
    asyncio.run(embedder.connect())
    words = "another event loop"
    asyncio.run(refused_in_time(RuntimeError, words, embedder.embed(["one"])))
    asyncio.run(embedder.close())
    assert len(descriptors()) == before, descriptors()

    words = "not connected: use it in `async with`"
    asyncio.run(refused_in_time(errors.NotReachable, words, embedder.embed(["one"])))

    async def again() -> int:
        async with embedder:
            return len(await embedder.embed(["one"]))

    assert asyncio.run(again()) == 1


async def calls_overlap(direct: bool) -> None:
    async with AsyncEmbedder(BUS, direct=direct) as embedder:
        texts = [f"text {number}" for number in range(30)]
        answers = await asyncio.gather(*(embedder.embed([text]) for text in texts))
        together = await embedder.embed(texts)
        for row, answer in zip(together.vectors, answers):
            assert np.allclose(row, answer.vectors[0], atol=1e-5)
        # More than the socket holds, with descriptors behind it; and more than a bus lets wait.
        large = ["x " * 20_000]
        answers = await asyncio.gather(*(embedder.embed(large) for _ in range(40)))
        assert all(answer.truncated == (0,) for answer in answers)
        sources = [tempfile.TemporaryFile(buffering=0) for _ in range(4)]
        for source in sources:
            source.write(b"one\ntwo\n")
        starting = [embedder.start(source) for source in sources]
        *_, jobs = await asyncio.gather(
            *(embedder.embed(large) for _ in range(20)), asyncio.gather(*starting)
        )
        for job in jobs:
            assert len(await job.result()) == 2
        for source in sources:
            source.close()
        assert len(await asyncio.gather(*(embedder.similarity("a", "b") for _ in range(200)))) == 200
        cancelled = asyncio.create_task(embedder.embed(texts * 100))
        await asyncio.sleep(0)
        cancelled.cancel()
        (ended,) = await asyncio.gather(cancelled, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended
        assert (await embedder.rank("text 7", texts, 1))[0][0] == 7
        assert len(await embedder.count_tokens(texts)) == 30
        leaving = asyncio.create_task(embedder.embed(texts * 100))
        await asyncio.sleep(0)
        await embedder.close()
        (ended,) = await asyncio.gather(leaving, return_exceptions=True)
        assert isinstance(ended, errors.NotReachable), ended


async def calls_are_numbered_in_32_bits(direct: bool) -> None:
    """After the last number comes the first."""
    async with AsyncEmbedder(BUS, direct=direct) as embedder:
        connection = embedder._connected()._connection
        connection._serial = 0xFFFF_FFFD
        for _ in range(4):
            assert await embedder.count_tokens(["one"])
        # Its limits were asked for as well.
        assert connection._serial == 3, connection._serial


async def a_model_changes_between_two_calls() -> None:
    class Changing(AsyncEmbedder):
        async def _embed(self, texts, wanted, *asked):
            if "expect_space" in wanted:
                # As if the vectors of the first call had been of another model.
                wanted["expect_space"] = "0" * 64 + "-f32"
            return await super()._embed(texts, wanted, *asked)

    async with Changing(BUS) as client:
        try:
            await client.embed(["one"] * MANY)
        except errors.WrongSpace as error:
            assert "embed them again" in str(error), error
        else:
            raise AssertionError("vectors of two models")


def a_client_is_sent_to_no_process(embedder: Embedder) -> None:
    for client in (embedder, AsyncEmbedder(BUS)):
        for send in (pickle.dumps, copy.deepcopy):
            refused(TypeError, "a client can't be pickled: make one in", lambda: send(client))


def who_may_open_no_more_is_told(embedder: Embedder) -> None:
    """And nothing is lost but the reply."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        words = "as where this process may open no more"
        refused(errors.UnexpectedReply, words, lambda: embedder.embed(["one"] * 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(embedder.embed(["one"] * 1000)) == 1000


def a_fork_has_no_client(embedder: Embedder) -> None:
    with warnings.catch_warnings():
        # Python warns of threads, which is what this is about.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            refused(RuntimeError, "before a fork", lambda: embedder.embed(["one"]))
            embedder.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(embedder.embed(["one"])) == 1


async def a_fork_has_no_asynchronous_client(direct: bool) -> None:
    """It would read what the other process has asked for."""
    async with AsyncEmbedder(BUS, direct=direct) as embedder:
        expected = (await embedder.embed(["one"])).vectors.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                asyncio.run(refused_in_time(RuntimeError, "before a fork", embedder.embed(["two"])))
                asyncio.run(embedder.close())
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal((await embedder.embed(["one"])).vectors, expected)


async def refused_in_time(kind: type[Exception], words: str, call) -> None:
    try:
        await asyncio.wait_for(call, 60)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def what_is_cut_is_counted() -> None:
    """Also where the service lists the first of many."""
    info = dict.fromkeys(("level", "model", "provider", "device", "precision", "space"), "x")
    info |= dict.fromkeys(("tokens", "cached", "queue_us", "compute_us"), 1)
    info |= {"truncated": [1, 2], "truncated_count": 70_000}
    assert from_reply(np.zeros((3, 2), dtype="<f4"), 2, info).truncated_count == 70_000


def a_client_that_nobody_holds_is_closed() -> None:
    """But not while a job of its own is held."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        embedder = Embedder(BUS)
        thread = embedder._thread
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(b"one\ntwo\n")
            job = embedder.start(file)
        del embedder
        assert len(job.result()) == 2 and not told
        del job
        thread.join(60)
    assert not thread.is_alive()
    assert [one.category for one in told] == [ResourceWarning], told


def nobody_waits_for_a_client_that_closes(direct: bool) -> None:
    """Nor hears that it was the service's doing."""
    for _ in range(5):
        embedder = Embedder(BUS, direct=direct)
        ended: list[Exception] = []

        def call() -> None:
            try:
                while True:
                    # The second is one of several calls, which go one after the other.
                    embedder.embed(["one"])
                    embedder.embed(["one"] * 3000)
            except Exception as error:
                ended.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        threads += [threading.Thread(target=embedder.close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 8, ended
        assert all(type(one) is RuntimeError and "closed" in str(one) for one in ended), ended
        refused(RuntimeError, "closed", lambda: embedder.embed(["one"]))


def descriptors() -> dict[str, str]:
    """What is open: the target of each descriptor, but for the one that lists them."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            pass
    return found


def main() -> None:
    # A cycle of references must hold none: it would stay open until some later collection.
    gc.disable()
    before = descriptors()
    with Embedder(BUS) as embedder:
        embeddings = vectors_of_two(embedder)
        many_texts(embedder)
        every_encoding(embedder)
        refusals(embedder)
        jobs(embedder)
        vectors_that_are_kept(embedder)
        threads_share_a_client(embedder)
        texts_are_made_by_who_asks(embedder)
        a_client_is_sent_to_no_process(embedder)
        who_may_open_no_more_is_told(embedder)
        a_fork_has_no_client(embedder)
    for direct in (False, True):
        nobody_waits_for_a_client_that_closes(direct)
    what_is_cut_is_counted()
    a_client_that_nobody_holds_is_closed()
    with Embedder(BUS, direct=True) as embedder:
        past_the_bus(embedder, embeddings)
    sealed_files()
    embedder = AsyncEmbedder(BUS, direct=True)
    for _ in range(2):
        asyncio.run(who_connects_at_once_connects_once(embedder))
    for direct in (False, True):
        asyncio.run(an_asynchronous_client_that_nobody_holds_is_closed(direct))
        a_client_outlives_its_loop(direct)
        a_client_belongs_to_its_loop(direct)
        asyncio.run(a_fork_has_no_asynchronous_client(direct))
    asyncio.run(calls_overlap(direct=False))
    asyncio.run(calls_overlap(direct=True))
    asyncio.run(calls_are_numbered_in_32_bits(direct=False))
    asyncio.run(calls_are_numbered_in_32_bits(direct=True))
    asyncio.run(a_model_changes_between_two_calls())
    complaints: list[str] = []
    asyncio.run(a_connection_ends(complaints))
    places_past_the_bus_are_counted()
    assert descriptors() == before, (descriptors(), before)
    # What nobody has retrieved is told when it is collected.
    gc.collect()
    assert not complaints, complaints
    names = sorted(kind.dbus_name for kind in OpDbusError.__subclasses__() if kind.dbus_name)
    said = {
        "version": op_dbus.__version__,
        "file": op_dbus.__file__,
        "vector": embeddings.vectors[0].tolist(),
        "errors": names,
    }
    json.dump(said, sys.stdout)


main()
