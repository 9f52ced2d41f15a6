"""The installed package `op-dbus` where others do not do as they should.

    unanswered.py BUS-ADDRESS
"""

import asyncio
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
from unittest import mock

import numpy as np
from dbus_fast import Message
from dbus_fast.aio import MessageBus

from op_dbus import AsyncEmbedder, Embedder, _aio, _bus, errors
from op_dbus._socket import PatientSocket
from op_dbus.embeddings import copied, from_reply, joined

BUS = sys.argv[1]


def refused(kind: type[Exception], words: str, call) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def an_old_service_is_told() -> None:
    """One without ``EmbedPacked``, too, and not asked for ever."""

    async def missing(*_) -> None:
        raise _bus.UnknownMethod("this service is older than the method")

    with Embedder(BUS) as embedder:
        embedder._client._embed_packed = embedder._client._embed_to_descriptor = missing
        refused(errors.Failed, "older", lambda: embedder.embed(["one"]))


def an_old_service_answers_calls_that_overlap() -> None:
    """Each goes on in messages, also one that hears of it after another has."""
    both = asyncio.Barrier(2)

    async def missing(*_) -> None:
        await both.wait()
        raise _bus.UnknownMethod("this service is older than the method")

    async def overlap() -> list[int]:
        async with AsyncEmbedder(BUS) as embedder:
            embedder._embed_to_descriptor = missing
            texts = ["one"] * 5
            found = await asyncio.gather(embedder.embed(texts), embedder.embed(texts))
            return [len(one) for one in found]

    assert asyncio.run(overlap()) == [5, 5]


def calls_of_two_precisions() -> None:
    said = dict.fromkeys(("level", "model", "provider", "device"), "x")
    said |= dict.fromkeys(("tokens", "cached", "queue_us", "compute_us"), 1)
    row = np.zeros((1, 2), dtype=np.float32)
    parts = [
        from_reply(row, row.shape[1], said | {"truncated": [], "precision": name, "space": f"ab-{name}"})
        for name in ("f32", "bf16", "f32")
    ]
    whole = joined(parts, np.zeros((3, 2), dtype=np.float32))
    assert (whole.precision, whole.space) == ("f32,bf16", "ab-f32")
    # One column would fill a row of any length.
    other = np.zeros((1, 3), dtype=np.float32)
    refused(errors.UnexpectedReply, "2 elements came after ones of 3", lambda: copied(parts[0], other))


def a_full_socket_keeps_descriptors() -> None:
    """Those of a message for which there was no room go with its first bytes."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    sock = PatientSocket(ours)
    while sock.send(memoryview(bytes(65536))):
        pass
    right = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ours.fileno().to_bytes(4, sys.byteorder))]
    assert sock.sendmsg([memoryview(b"late")], right) == 0
    theirs.setblocking(False)
    try:
        while theirs.recv(65536):
            pass
    except BlockingIOError:
        pass
    assert sock.send(memoryview(b"late")) == 4 and sock.send(memoryview(b"r")) == 1
    data, received, _, _ = socket.recv_fds(theirs, 4, 4)
    assert (data, len(received)) == (b"late", 1)
    for descriptor in received:
        os.close(descriptor)
    ours.close()
    theirs.close()


def who_does_not_answer() -> None:
    """A bus that only listens, and a service that is stopped, are not waited for without end."""
    _bus.CONNECT_S = 0.1
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/bus")
        silent.listen()
        address = f"unix:path={folder}/bus"
        refused(errors.NotReachable, "did not answer within 0.1", lambda: Embedder(address))
    _bus.CONNECT_S, _aio._LATE_S = 10.0, 0.1
    process = asyncio.run(the_service())
    with Embedder(BUS) as first, Embedder(BUS) as known, Embedder(BUS, timeout=60) as short:
        known.embed(["one"])
        short._timeout = 0.2
        os.kill(process, signal.SIGSTOP)
        try:
            while not stopped(process):
                os.sched_yield()
            # Its limits are not known yet, or its vectors are waited for.
            for embedder in (first, known):
                call = lambda: embedder.embed(["one"], deadline_ms=1)
                refused(errors.DeadlineExceeded, "did not answer within", call)
            with tempfile.TemporaryFile(buffering=0) as file:
                call = lambda: known.start(file, deadline_ms=1)
                refused(errors.DeadlineExceeded, "did not answer within", call)
            refused(TimeoutError, "no answer within 0.2 s", lambda: short.count_tokens(["one"]))
        finally:
            os.kill(process, signal.SIGCONT)
        _aio._LATE_S = 5.0
        for embedder in (first, known):
            assert len(embedder.embed(["one"])) == 1


def there_is_no_such_bus() -> None:
    """Whatever is wrong with its address, and whoever answers there."""
    for address in ("tcp:host=127.0.0.1,port=99999", "tcp:host=a..b,port=1"):
        refused(errors.NotReachable, f"no connection to the bus '{address}': ", lambda: Embedder(address))
    names = ("DBUS_SESSION_BUS_ADDRESS", "HOME")
    without = {name: value for name, value in os.environ.items() if name not in names}
    with mock.patch.dict(os.environ, without, clear=True):
        words = "DBUS_SESSION_BUS_ADDRESS and 'HOME' are not in the environment"
        refused(errors.NotReachable, words, lambda: Embedder("session"))
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as other:
        other.bind(f"{folder}/bus")
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"\xff\r\n")
                while connection.recv(4096):
                    pass

        answering = threading.Thread(target=answer)
        answering.start()
        address = f"unix:path={folder}/bus"
        refused(errors.NotReachable, f"no connection to the bus '{address}': ", lambda: Embedder(address))
        answering.join(60)


def stopped(process: int) -> bool:
    """Whether each of its threads is: the kernel stops them one by one, and until then they answer."""
    threads = pathlib.Path(f"/proc/{process}/task").glob("*/stat")
    try:
        return all(thread.read_text().rpartition(") ")[2].startswith("T") for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        # One has ended meanwhile: the next look does not find it.
        return False


async def the_service() -> int:
    """Its process."""
    bus = await MessageBus(bus_address=BUS).connect()
    asking = Message(
        destination="org.freedesktop.DBus",
        path="/org/freedesktop/DBus",
        interface="org.freedesktop.DBus",
        member="GetConnectionUnixProcessID",
        signature="s",
        body=[_bus.NAME],
    )
    reply = await bus.call(asking)
    bus.disconnect()
    await bus.wait_for_disconnect()
    return reply.body[0]


an_old_service_is_told()
an_old_service_answers_calls_that_overlap()
calls_of_two_precisions()
a_full_socket_keeps_descriptors()
there_is_no_such_bus()
who_does_not_answer()
