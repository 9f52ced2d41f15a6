"""A client of the service in Python: uses every member and prints what it got as one JSON object.

    PYTHONPATH=<jeepney> client.py BUS-ADDRESS
"""

import json
import os
import struct
import sys

from jeepney import DBusAddress, HeaderFields, MatchRule, MessageType, Properties
from jeepney import message_bus, new_method_call
from jeepney.io.blocking import Proxy, open_dbus_connection

NAME, PATH = "org.opdbus.Embedding1", "/org/opdbus/Embedding1"
EMBEDDER = DBusAddress(PATH, NAME, NAME + ".Embedder")
MANAGER = DBusAddress(PATH, NAME, NAME + ".Manager")
READING = [
    "Reload",
    "Unload",
    "WarmUp",
    "TrimMemory",
    "ListLevels",
    "ListModels",
    "ListProviders",
    "ListDevices",
    "GetStatus",
    "GetStatistics",
    "GetSettings",
]

connection = open_dbus_connection(sys.argv[1], enable_fds=True)


def ask(address, method, signature=None, *arguments):
    call = new_method_call(address, method, signature, arguments)
    return connection.send_and_get_reply(call, timeout=120)


def call(*what):
    reply = ask(*what)
    assert reply.header.message_type == MessageType.method_return, (what, reply.body)
    return reply.body


def numbers(reply):
    fd, rows, dimensions, _info = reply
    assert rows == 1
    with fd.to_file("rb") as file:
        return list(struct.unpack(f"<{dimensions}f", file.read()))


def main():
    said = {"embed": call(EMBEDDER, "Embed", "s", "one")[0]}
    assert call(EMBEDDER, "EmbedBatch", "as", ["one", "two"])[0][0] == said["embed"]
    options = {"truncate": ("s", "error"), "deadline_ms": ("u", 600_000)}
    packed = call(EMBEDDER, "EmbedPacked", "asa{sv}", ["two", "one"], options)
    data, rows, dimensions, _info = packed
    starts = range(0, 4 * dimensions * rows, 4 * dimensions)
    said["packed"] = [list(struct.unpack_from(f"<{dimensions}f", data, at)) for at in starts]
    said["to an fd"] = numbers(call(EMBEDDER, "EmbedToFd", "asa{sv}", ["one"], {}))
    reader, writer = os.pipe()
    os.write(writer, b'{"text": "one"}\n')
    os.close(writer)
    options = {"framing": ("s", "json-lines")}
    said["from an fd"] = numbers(call(EMBEDDER, "EmbedFromFd", "ha{sv}", reader, options))
    os.close(reader)
    assert abs(call(EMBEDDER, "Similarity", "ss", "one", "one")[0] - 1) < 1e-6
    said["rank"] = call(EMBEDDER, "Rank", "sasu", "two", ["one", "two", "three"], 2)[0]
    assert len(call(EMBEDDER, "CountTokens", "as", ["one", "two"])[0]) == 2
    tokens = call(EMBEDDER, "Tokenize", "asa{sv}", ["two"], {})[0][0]
    ids = [number for number, _piece, special, _start, _end in tokens if not special]
    assert call(EMBEDDER, "EmbedTokens", "aaua{sv}", [ids], {})[0] == data[: 4 * dimensions]
    replies = {method: ask(MANAGER, method).header.fields for method in READING}
    said["signatures"] = {
        method: fields.get(HeaderFields.signature, "") for method, fields in replies.items()
    }

    rule = MatchRule(type="signal", interface="org.freedesktop.DBus.Properties", path=PATH)
    Proxy(message_bus, connection).AddMatch(rule)
    with connection.filter(rule) as signals:
        call(MANAGER, "SetVectorLevel", "s", "none")
        signal = connection.recv_until_filtered(signals, timeout=120)
    _interface, changed, _invalidated = signal.body
    said["changed by the signal"] = [changed[name][1] for name in ("VectorLevel", "State")]
    properties = connection.send_and_get_reply(Properties(EMBEDDER).get_all()).body[0]
    said["properties"] = {name: value for name, (_type, value) in properties.items()}
    said["level after the change"] = said["properties"]["VectorLevel"]
    said["error"] = ask(EMBEDDER, "Embed", "s", "one").header.fields[HeaderFields.error_name]
    json.dump(said, sys.stdout)


main()
