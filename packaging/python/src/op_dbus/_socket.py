"""A connection's socket, as dbus-fast writes to it."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

from dbus_fast.aio import MessageBus


class PatientSocket:
    """Writes nothing where a socket is full, and as much as fits otherwise.

    dbus-fast takes an exception for the end of the connection, also the one that only says that there is
    no room just now, as where calls overlap.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._ancillary: list[tuple[int, int, Any]] = []

    def send(self, data: memoryview) -> int:
        """Bytes that were written, with the descriptors that could not be before."""
        return self.sendmsg([data], self._ancillary)

    def sendmsg(self, data: Iterable[memoryview], ancillary: list[tuple[int, int, Any]]) -> int:
        """The same; dbus-fast gives the descriptors of a message once."""
        self._ancillary = ancillary
        try:
            written = self._socket.sendmsg(data, ancillary)
        except BlockingIOError:
            return 0
        self._ancillary = []
        return written


def patient(connection: MessageBus) -> None:
    """Has a connection wait for room; it is connected and has not written yet but to say so."""
    writer: Any = connection._writer
    writer.sock = PatientSocket(writer.sock)
