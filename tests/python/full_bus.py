"""The installed package `op-dbus` on a bus that takes three connections of a user.

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

for client in clients:
    client.close()
