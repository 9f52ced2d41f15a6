"""The installed package `op-dbus` on a bus that takes three connections of a user and has no service.

    full_bus.py BUS-ADDRESS
"""

import os
import sys

from op_dbus import Embedder, errors

BUS = sys.argv[1]

clients = [Embedder(BUS) for _ in range(3)]
before = os.listdir("/proc/self/fd")
for _ in range(2):
    try:
        Embedder(BUS)
    except errors.NotReachable as error:
        assert "maximum number" in str(error) and "close other clients" in str(error), error
    else:
        raise AssertionError("a client that has no connection")
assert os.listdir("/proc/self/fd") == before

try:
    clients[0].embed(["one"])
except errors.NotReachable as error:
    assert "not on this bus" in str(error) and "systemctl start op-dbus" in str(error), error
else:
    raise AssertionError("vectors of no service")

for client in clients:
    client.close()
