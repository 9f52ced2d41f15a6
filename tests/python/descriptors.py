"""The installed package `op-dbus` on a connection whose other end is in here: replies that lie in the
socket together, of which some bring a file descriptor; a call beside which the other end asks, too;
answers that let nobody in; and bytes that are no message."""

import asyncio
import os
import socket

from dbus_fast import Message, MessageType

from op_dbus import errors
from op_dbus._bus import Bus

REFUSED = errors.InvalidArgument.dbus_name


class Opening:
    """In the place of a connection: answers ``OpenDirect``."""

    connected = True
    _serial = 0

    def __init__(self, theirs: socket.socket) -> None:
        self._theirs = theirs

    def next_serial(self) -> int:
        return 1

    async def call(self, _: Message) -> Message:
        kind = MessageType.METHOD_RETURN
        fds = [self._theirs.detach()]
        return Message(message_type=kind, reply_serial=1, signature="h", body=[0], unix_fds=fds)


async def line() -> tuple[Bus, socket.socket]:
    """A direct connection, and the service's end of it."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def authenticates() -> None:
        said, loop = b"", asyncio.get_running_loop()
        for words, answer in ((b"EXTERNAL", b"OK 00"), (b"NEGOTIATE", b"AGREE_UNIX_FD")):
            while words not in said or not said.endswith(b"\r\n"):
                said += await loop.sock_recv(ours, 1024)
            await loop.sock_sendall(ours, answer + b"\r\n")
        while not said.endswith(b"BEGIN\r\n"):
            said += await loop.sock_recv(ours, 1024)

    bus, _ = await asyncio.gather(Bus(Opening(theirs)).direct(), authenticates())
    return bus, ours


async def answered(service: socket.socket, calls: list, replies: list[Message]) -> list:
    """What the calls give whose replies come together, once all of them are sent."""
    said, started = b"", [asyncio.create_task(call) for call in calls]
    while said.count(b"EmbedToFd") < len(calls):
        said += await asyncio.get_running_loop().sock_recv(service, 1 << 16)
    for serial, reply in enumerate(replies, start=1):
        reply.serial = serial
        socket.send_fds(service, [reply._marshall(True)], reply.unix_fds)
    return await asyncio.gather(*started, return_exceptions=True)


def number(descriptor: int) -> int:
    found = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    os.close(descriptor)
    return found


async def each_reply_has_its_own_descriptor() -> None:
    """Also beside refusals, which bring none."""
    before = len(os.listdir("/proc/self/fd"))
    bus, service = await line()
    replies, files = [], []
    for serial in range(1, 13):
        answer: dict = {"reply_serial": serial}
        if serial % 3 == 0:
            files.append(os.memfd_create("vectors"))
            os.write(files[-1], serial.to_bytes(8, "little"))
            answer |= {"message_type": MessageType.METHOD_RETURN, "signature": "h", "body": [0]}
            answer["unix_fds"] = files[-1:]
        else:
            answer |= {"message_type": MessageType.ERROR, "error_name": REFUSED}
            answer |= {"signature": "s", "body": ["no"]}
        replies.append(Message(**answer))
    calls = [bus.call("EmbedToFd", "", [], "h") for _ in replies]
    found = await answered(service, calls, replies)
    for serial, one in enumerate(found, start=1):
        if serial % 3:
            assert isinstance(one, errors.InvalidArgument), (serial, one)
        else:
            _, descriptors = one
            assert [number(descriptor) for descriptor in descriptors] == [serial], (serial, one)
    for file in files:
        os.close(file)
    bus.close()
    await bus.closed()
    service.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def numbered(service: socket.socket) -> int:
    """The number of the next message that comes, and comes alone."""
    return int.from_bytes((await asyncio.get_running_loop().sock_recv(service, 1 << 16))[8:12], "little")


async def an_answer_is_of_the_call_that_asked() -> None:
    """For the other end's question dbus-fast asks as well, while a call of ours waits."""
    bus, service = await line()
    call = asyncio.create_task(bus.call("CountTokens", "", [], "s"))
    numbers = [await numbered(service)]
    peer = {"path": "/", "interface": "org.freedesktop.DBus.Peer", "member": "GetMachineId"}
    for serial in (1, 2):
        service.send(Message(**peer, serial=serial)._marshall(True))
        numbers.append(await numbered(service))
    kind = MessageType.METHOD_RETURN
    for serial, number in enumerate(reversed(numbers), start=3):
        reply = {"reply_serial": number, "signature": "s", "body": [str(serial)], "serial": serial}
        service.send(Message(message_type=kind, **reply)._marshall(True))
    body, _ = await asyncio.wait_for(call, 60)
    assert body == ["5"], (body, numbers)
    bus.close()
    await bus.closed()
    service.close()


async def who_does_not_know_the_client_is_no_connection() -> None:
    """Whatever dbus-fast raises at that answer."""
    for answer in (b"REJECTED\r\n", b"HELLO\r\n", b"\xff\r\n"):
        ours, theirs = socket.socketpair()
        ours.send(answer)
        try:
            await Bus(Opening(theirs)).direct()
        except errors.NotReachable as error:
            assert str(error).startswith("no direct connection to the service: "), (answer, error)
        else:
            raise AssertionError(f"a connection to who says {answer!r}")
        ours.close()


async def what_is_no_message_ends_the_connection() -> None:
    """Whatever dbus-fast raises at it: who waits for an answer is told, and so is who asks later."""
    answer: dict = {"message_type": MessageType.METHOD_RETURN, "reply_serial": 1, "serial": 1}
    said = bytes(Message(**answer, signature="s", body=["one"])._marshall(True))
    no_text, no_type = said.replace(b"one", b"\xff" * 3), said.replace(b"\1s\0", b"\1!\0")
    assert said not in (no_text, no_type)
    for garbled in (b"HTTP/1.1 400 Bad", no_text, no_type):
        bus, service = await line()
        call = asyncio.create_task(bus.call("CountTokens", "", [], "s"))
        await numbered(service)
        service.send(garbled)
        found = await asyncio.gather(asyncio.wait_for(call, 60), return_exceptions=True)
        later = asyncio.wait_for(bus.call("CountTokens", "", [], "s"), 60)
        found += await asyncio.gather(later, return_exceptions=True)
        for error in found:
            words = "the connection to the service broke ("
            assert type(error) is errors.NotReachable and str(error).startswith(words), (garbled, error)
        bus.close()
        await bus.closed()
        service.close()


asyncio.run(each_reply_has_its_own_descriptor())
asyncio.run(an_answer_is_of_the_call_that_asked())
asyncio.run(who_does_not_know_the_client_is_no_connection())
asyncio.run(what_is_no_message_ends_the_connection())
