"""D-Bus over a socket that is there already, with no bus on it."""

from __future__ import annotations

import socket

from dbus_fast.aio import MessageBus
from dbus_fast.aio.message_bus import _MessageWriter
from dbus_fast.aio.message_reader import build_message_reader

from ._socket import patient


class DirectConnection(MessageBus):
    """A connection to a peer, which dbus-fast has no name for: it connects to addresses alone, and
    then says Hello, which only a bus answers.

    :meth:`over` does what its ``connect`` does between the two. It uses parts that dbus-fast keeps
    for itself, so the package asks for that major version and no other.
    """

    @classmethod
    async def over(cls, sock: socket.socket) -> DirectConnection:
        """Authenticates on ``sock``, which is this connection's from now on.

        Raises what dbus-fast does, which does not say; ``sock`` is closed then.
        """
        # The address is for ``connect``, which is not called.
        connection = cls(bus_address="unix:path=/", negotiate_unix_fd=True)
        sock.setblocking(False)
        connection._sock, connection._stream = sock, sock.makefile("rwb")
        connection._fd = sock.fileno()
        connection._writer = _MessageWriter(connection)
        try:
            await connection._authenticate()
        except BaseException:
            connection._stream.close()
            sock.close()
            raise
        reader = build_message_reader(
            sock, connection._process_message, connection._finalize, True
        )
        connection._loop.add_reader(connection._fd, reader)
        patient(connection)
        # Nobody asks for it, but nothing is written without one.
        connection.unique_name = "direct"
        return connection
