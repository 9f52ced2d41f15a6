"""The connection: calls to the service, and its errors as exceptions."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from dbus_fast import BusType, Message, MessageFlag, MessageType, Variant
from dbus_fast.aio import MessageBus

from ._direct import DirectConnection
from ._room import Room
from ._socket import patient
from .errors import DeadlineExceeded, Failed, NotReachable, UnexpectedReply, from_reply

NAME = "org.opdbus.Embedding1"
PATH = "/org/opdbus/Embedding1"
EMBEDDER = NAME + ".Embedder"
JOB = NAME + ".Job"
PROPERTIES = "org.freedesktop.DBus.Properties"
CALLS_MAX = 64
"""Calls under way: a bus lets one client have 128 without an answer, and ends the others."""
CONNECT_S = 10.0
"""Seconds for a connection to be there: a socket may be open with nobody behind it who answers."""
UNKNOWN_METHOD = "org.freedesktop.DBus.Error.UnknownMethod"
BEFORE_FORK = "this client was made before a fork: make one in this process"
OTHER_LOOP = "this client was connected in another event loop: close it and connect in this one"


class UnknownMethod(Failed):
    """The service is older than the method."""


class Bus:
    """A connection of its own to a message bus or past it, in the running event loop."""

    def __init__(self, connection: MessageBus) -> None:
        self._connection = connection
        # After a fork both processes would read from it, each what the other has asked for.
        self._process = os.getpid()
        # In another loop nothing would read its answer.
        self._loop = asyncio.get_running_loop()
        self._room = Room(CALLS_MAX)
        self._lost: weakref.finalize[..., Bus] | None = None

    @classmethod
    async def connect(cls, bus: str) -> Bus:
        """``system``, ``session`` or a D-Bus address."""
        if not bus:
            # dbus-fast would take the session bus.
            raise NotReachable(f"the bus is {bus!r}: name system, session or an address")
        try:
            if bus in ("system", "session"):
                kind = BusType.SYSTEM if bus == "system" else BusType.SESSION
                connection = MessageBus(bus_type=kind, negotiate_unix_fd=True)
            else:
                connection = MessageBus(bus_address=bus, negotiate_unix_fd=True)
            connection.add_message_handler(_refuse_descriptors)
            async with asyncio.timeout(CONNECT_S):
                await connection.connect()
            patient(connection)
        except TimeoutError as reason:
            sentence = f"the bus {bus!r} did not answer within {CONNECT_S:g} s"
            raise NotReachable(sentence) from reason
        except KeyError as missing:
            sentence = f"DBUS_SESSION_BUS_ADDRESS and {missing} are not in the environment"
            raise NotReachable(f"no address of the bus {bus!r}: {sentence}") from missing
        except Exception as reason:
            # dbus-fast says no more of what it raises. An address may be wrong in many ways, and who answers there
            # need not be a bus.
            raise NotReachable(f"no connection to the bus {bus!r}: {reason}") from reason
        connected = cls(connection)
        name = str(connection.unique_name)
        if not name.startswith(":"):
            # dbus-fast takes whatever Hello is answered with for the name, also a refusal.
            connected.close()
            await connected.closed()
            raise NotReachable(f"no connection to the bus {bus!r}: {name}; close other clients")
        return connected._closed_when_lost()

    def _closed_when_lost(self) -> Bus:
        """Not left to the client, as its jobs hold this, too: a bus takes so many connections of a user."""
        self._lost = weakref.finalize(self, _lost, self._connection, self._loop, self._process)
        self._lost.atexit = False
        return self

    async def direct(self) -> Bus:
        """A connection past this bus: the service's socket for this client.

        It ends when it is closed, when this connection leaves the bus, and with the service.
        """
        try:
            body, descriptors = await self.call("OpenDirect", "", [], "h")
        except UnknownMethod:
            sentence = "this service is older than direct connections: use it without one"
            raise Failed(sentence) from None
        if len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise UnexpectedReply("OpenDirect answered without its socket")
        try:
            async with asyncio.timeout(CONNECT_S):
                # Not for the programs that this one starts: it speaks in this user's name.
                os.set_inheritable(descriptors[0], False)
                connection = await DirectConnection.over(socket.socket(fileno=descriptors[0]))
        except TimeoutError as reason:
            sentence = f"the service's direct connection did not answer within {CONNECT_S:g} s"
            raise NotReachable(sentence) from reason
        except Exception as reason:
            # As in `connect`.
            raise NotReachable(f"no direct connection to the service: {reason}") from reason
        connection.add_message_handler(_refuse_descriptors)
        return Bus(connection)._closed_when_lost()

    def close(self) -> None:
        """Leaves the bus, which takes back the calls that are under way."""
        if os.getpid() != self._process:
            # The connection is the other process's.
            return
        if self._lost is not None:
            self._lost.detach()
        if asyncio.get_running_loop() is self._loop:
            self._connection.disconnect()
        else:
            _leave(self._connection, self._loop)

    def lives(self) -> bool:
        """Whether nobody has heard yet of the connection's end."""
        return bool(self._connection.connected)

    async def closed(self) -> None:
        """Waits until the connection is gone, in the loop that hears of it."""
        if os.getpid() != self._process or asyncio.get_running_loop() is not self._loop:
            return
        try:
            await self._connection.wait_for_disconnect()  # type: ignore[no-untyped-call]
        except Exception:
            pass  # It is gone all the same.

    async def call(
        self,
        member: str,
        signature: str,
        body: list[Any],
        answer: str,
        interface: str = EMBEDDER,
        *,
        path: str = PATH,
        descriptors: Sequence[int] = (),
        seconds: float | None = None,
    ) -> tuple[list[Any], list[int]]:
        """The body of the reply, whose signature must be ``answer``, and its file descriptors.

        Those are the caller's to close. ``descriptors`` go with the call, which takes copies. Raises
        ``DeadlineExceeded`` so many ``seconds`` after the call was sent, and where none of those
        before it is answered for as long. A call that nobody waits for any more is not sent.
        """
        if os.getpid() != self._process:
            raise RuntimeError(BEFORE_FORK)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(OTHER_LOOP)
        with ExitStack() as held:
            copies: list[int] = []
            for descriptor in descriptors:
                # The caller may close its own, whose number is another file's then.
                copies.append(os.dup(descriptor))
                held.callback(os.close, copies[-1])
            message = Message(
                destination=NAME,
                path=path,
                unix_fds=copies,
                interface=interface,
                member=member,
                signature=signature,
                body=body,
            )
            try:
                await self._room.take(seconds)
            except TimeoutError:
                sentence = f"none of {CALLS_MAX} calls before this one was answered within {seconds:g} s"
                raise DeadlineExceeded(f"{sentence}: look whether the service runs") from None
            held.callback(self._room.give_back)
            calling = asyncio.create_task(self._sent(message))
            # The bus counts a call until it is answered, whoever waits for that.
            until_then = held.pop_all()
            calling.add_done_callback(lambda _: until_then.close())
        try:
            # This leaves the call alone: a reply after nobody waits any more may bring descriptors.
            await asyncio.wait([calling], timeout=seconds)
            if not calling.done():
                sentence = f"the service did not answer within {seconds:g} s, well past deadline_ms"
                raise DeadlineExceeded(f"{sentence}: look whether it runs")
        except BaseException:
            # A message has its number from when it is sent.
            if not message.serial:
                calling.cancel()
            calling.add_done_callback(self._forget)
            raise
        try:
            reply = calling.result()
        except Exception as reason:
            if self.lives():
                raise
            # Where bytes came that are no message it has ended with whatever dbus-fast met in them.
            sentence = f"the connection to the service broke ({str(reason) or 'it was closed'})"
            raise NotReachable(f"{sentence}: make a new client") from reason
        finally:
            # It knows the error, which knows this frame.
            del calling
        if reply.message_type is MessageType.ERROR:
            _close(reply)
            if reply.error_name == UNKNOWN_METHOD:
                raise UnknownMethod(f"this service is older than the method {member}")
            sentence = reply.body[0] if reply.body else "no reason was given"
            raise from_reply(reply.error_name or "", str(sentence))
        if reply.signature != answer:
            _close(reply)
            raise UnexpectedReply(f"{member} answered {reply.signature!r}, not {answer!r}")
        return reply.body, list(reply.unix_fds)

    async def _sent(self, message: Message) -> Message:
        # Over a connection that is gone dbus-fast would leave failures behind that nobody retrieves,
        # and could wait on a descriptor that is another file's by now. In this turn the loop hears of
        # an end that came meanwhile.
        await asyncio.sleep(0)
        if not self.lives():
            raise EOFError
        return await self._connection.call(self._numbered(message))

    def _numbered(self, message: Message) -> Message:
        """The message as the next one. dbus-fast counts on beyond the 32 bits that a number has, and 0 is none."""
        if self._connection._serial >= 0xFFFF_FFFF:
            self._connection._serial = 0
        # Of the same count as what it sends by itself: by two calls of one number the first would have no answer.
        message.serial = self._connection.next_serial()
        return message

    def _forget(self, calling: asyncio.Task[Message]) -> None:
        """What comes when nobody waits any more: descriptors, or a job that nobody could end."""
        if calling.cancelled() or calling.exception() is not None:
            return
        reply = calling.result()
        _close(reply)
        if reply.signature == "o":
            self.end_job(reply.body[0])

    def end_job(self, path: str) -> None:
        """Ends a job that nobody holds, without waiting for that."""
        # Where the connection breaks the job ends with it.
        if self.lives():
            unwanted = Message(
                destination=NAME,
                path=path,
                interface=JOB,
                member="Cancel",
                flags=MessageFlag.NO_REPLY_EXPECTED,
            )
            sent = self._connection.send(self._numbered(unwanted))
            sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())


def plain(values: dict[str, Variant]) -> dict[str, Any]:
    """``a{sv}`` without the variants."""
    return {key: variant.value for key, variant in values.items()}


def _leave(connection: MessageBus, loop: asyncio.AbstractEventLoop) -> None:
    """Leaves a bus from outside of the connection's loop."""
    try:
        loop.call_soon_threadsafe(connection.disconnect)
    except RuntimeError:
        # Its loop is closed, and nothing else has the connection.
        connection._finalize(None)


def _lost(connection: MessageBus, loop: asyncio.AbstractEventLoop, process: int) -> None:
    """Leaves a bus whose :class:`Bus` nobody holds any more, on whatever thread that was found."""
    if os.getpid() != process:
        # The connection is the other process's.
        return
    _leave(connection, loop)
    if not isinstance(connection, DirectConnection):
        sentence = "an AsyncEmbedder was not closed: use `async with`"
        warnings.warn(sentence, ResourceWarning, stacklevel=2)


def _refuse_descriptors(message: Message) -> None:
    """Nobody but the service sends us any: others would only use up what a process may open."""
    # Each message its own: dbus-fast puts the descriptors of the next one into the list of one that
    # brought none. Nothing is read before this has returned.
    message.unix_fds = list(message.unix_fds)
    if message.message_type in (MessageType.METHOD_CALL, MessageType.SIGNAL):
        _close(message)


def _close(message: Message) -> None:
    for descriptor in message.unix_fds:
        os.close(descriptor)
