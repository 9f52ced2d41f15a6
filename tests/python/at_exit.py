"""The installed package `op-dbus` in programs that end with a client in their hands.

    at_exit.py BUS-ADDRESS
"""

import subprocess
import sys

BUS = sys.argv[1]

HELD_BY_AN_OBJECT = """
import os, sys
from op_dbus import Embedder

BUS, DIRECT = sys.argv[1], sys.argv[2] == "direct"

class Search:
    def __init__(self):
        self.embedder = Embedder(BUS, direct=DIRECT)
        self.bounded = Embedder(BUS, timeout=60)
        self.job = self.embedder.start(os.pipe()[0])

    def __del__(self):
        asked = {
            "embed": lambda: self.embedder.embed(["one"]),
            "embed in time": lambda: self.bounded.embed(["one"]),
            "properties": self.embedder.properties,
            "progress": self.job.progress,
            "cancel": self.job.cancel,
            "a new client": lambda: Embedder(BUS),
        }
        for what, call in asked.items():
            try:
                call()
            except RuntimeError as error:
                print(what, "Python is ending" in str(error))
        self.embedder.close()
        self.bounded.close()
        print("closed")

search = Search()
print(len(search.embedder.embed(["one"])))
"""

HELD_BY_A_GENERATOR = """
import sys
from op_dbus import Embedder

def embedded(lines):
    try:
        with Embedder(sys.argv[1], direct=sys.argv[2] == "direct") as embedder:
            for line in lines:
                yield len(embedder.embed([line]))
    finally:
        print("closed")

vectors = embedded(["one", "two"])
print(next(vectors))
"""

CLOSED_IN_ATEXIT = """
import atexit, sys

def end():
    print(len(embedder.embed(["one"])))
    embedder.close()
    print("closed")

# Before all that the package has registered.
atexit.register(end)
from op_dbus import Embedder
embedder = Embedder(sys.argv[1], direct=sys.argv[2] == "direct")
"""


def said(program: str, way: str) -> list[str]:
    """Its lines. One that does not end by itself is what this is about."""
    command = [sys.executable, "-Werror", "-c", program, BUS, way]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.splitlines()


def main() -> None:
    asked = ("embed", "embed in time", "properties", "progress", "cancel", "a new client")
    for way in ("bus", "direct"):
        lines = said(HELD_BY_AN_OBJECT, way)
        assert lines == ["1", *(f"{what} True" for what in asked), "closed"], lines
        assert said(HELD_BY_A_GENERATOR, way) == ["1", "closed"]
        assert said(CLOSED_IN_ATEXIT, way) == ["1", "closed"]


main()
