#!/usr/bin/env python3
"""grep by meaning: the lines of a file, or entries of the journal, nearest to a question.

    journalctl -b -p warning -o json | semantic-grep.py "why is the network down?"
    semantic-grep.py "why is the network down?" /var/log/syslog --count 5
"""

import argparse
import json
import re
import signal
import sys

from op_dbus import Embedder


def message(line: str) -> str:
    """The message of a journal entry in JSON; any other line as it is."""
    try:
        found = json.loads(line)["MESSAGE"] if line.startswith("{") else line
    except (ValueError, KeyError):
        found = line
    return sendable(text(found)).rstrip("\n")


def text(found: object) -> str:
    """What the journal means: it writes what is not UTF-8 as a list of bytes, what an entry has more than
    once as a list of all, and what is too long as null."""
    if not isinstance(found, list):
        return str(found or "")
    if all(isinstance(one, int) for one in found):
        return bytes(found).decode(errors="replace")
    return " ".join(text(one) for one in found)


def sendable(text: str) -> str:
    """Without what D-Bus carries in no text: NUL, and halves of characters, as JSON may have them and as arguments that
    are not UTF-8 do."""
    return re.sub("[\0\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


def main() -> None:
    arguments = argparse.ArgumentParser(description="grep by meaning")
    arguments.add_argument("question")
    file = argparse.FileType(errors="replace")
    arguments.add_argument("file", nargs="?", type=file, default=sys.stdin)
    arguments.add_argument("--count", type=int, default=10, help="lines to print at most")
    arguments.add_argument("--least", type=float, default=0.3, help="least cosine to print")
    asked = arguments.parse_args()

    # Logs are not all UTF-8.
    sys.stdin.reconfigure(errors="replace")
    lines = [line for line in map(message, asked.file) if line.strip()]
    with Embedder() as embedder:
        nearest = embedder.rank(sendable(asked.question), lines, asked.count)
    # Ends quietly when its reader has seen enough, as in `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for index, cosine in nearest:
        if cosine >= asked.least:
            print(f"{cosine:.2f}  {lines[index]}")


main()
