"""One library behind one protocol: JSON lines in, JSON lines out. `cargo xtask bench-peers` asks.

    {"do": "set", "streams": 2, "threads": 1, "batch_tokens": 512}
    {"do": "time", "texts": FILE, "seconds": S}
    {"do": "vectors", "texts": FILE, "to": FILE}

`set` chooses how many batches are computed at once, with how many threads each, and how many padded
tokens they have (0: the library's own way). `time` embeds the lines of a file again and again, once
at least. `vectors` writes 32-bit floats, little-endian, row-major, in the order of the lines.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import time

import numpy

from batches import Batcher, Streams

LIBRARIES = ["torch", "onnxruntime", "openvino", "fastembed"]


class Peer:
    def __init__(self, args):
        self.batcher = Batcher(args.model)
        module = importlib.import_module(args.library + "_peer")
        self.library = module.Library(self.batcher, pathlib.Path(args.work), args.precision)
        self.setting = None

    def set(self, streams, threads, batch_tokens):
        if batch_tokens == 0 and not hasattr(self.library, "own"):
            raise ValueError("this library has no batching of its own")
        if self.setting is None or self.setting[:2] != (streams, threads):
            self.streams = Streams(self.library.open(streams, threads))
        self.setting = (streams, threads, batch_tokens)
        return {}

    def embed(self, texts):
        tokens_max = self.setting[2]
        if tokens_max == 0:
            return self.library.own(texts)
        vectors = numpy.empty((len(texts), self.batcher.dimensions), numpy.float32)
        for rows, found in self.streams.run(self.batcher.batches(texts, tokens_max)):
            vectors[rows] = found
        return vectors

    def time(self, texts, seconds):
        texts = lines(texts)
        passes, start = 0, time.perf_counter()
        while passes == 0 or time.perf_counter() - start < seconds:
            self.embed(texts)
            passes += 1
        took = time.perf_counter() - start
        return {"texts": passes * len(texts), "seconds": took}

    def vectors(self, texts, to):
        vectors = self.embed(lines(texts)).astype("<f4")
        vectors.tofile(to)
        return {"dimensions": vectors.shape[1]}


def lines(path):
    return pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--precision", default="f32", choices=["f32", "bf16", "int8"])
    parser.add_argument("--model", required=True, help="the model's folder in the store")
    parser.add_argument("--work", required=True, help="where export.py put what it made")
    args = parser.parse_args()
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = Peer(args)
    hello = {"library": peer.library.name, "own": hasattr(peer.library, "own")}
    print(json.dumps(hello), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(peer, request.pop("do"))(**request)
        except Exception as error:  # the asker decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
