"""Texts to padded batches of like length, and the threads that run them."""

import itertools
import json
import os
import pathlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
from tokenizers import Tokenizer


class Batch:
    """Rows of one batch: texts, their token ids, and where they stand in the call."""

    def __init__(self, rows, texts, ids, pad):
        self.rows, self.texts, self.ids, self.pad = rows, texts, ids, pad

    def padded(self):
        """Ids and attention mask, int64 [rows, longest]."""
        longest = max(len(ids) for ids in self.ids)
        ids = numpy.full((len(self.ids), longest), self.pad, numpy.int64)
        mask = numpy.zeros_like(ids)
        for row, tokens in enumerate(self.ids):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        return ids, mask


class Batcher:
    """Sorts texts by their tokens and cuts them into batches, longest first."""

    def __init__(self, model):
        self.model = pathlib.Path(model)
        config = json.loads((self.model / "config.json").read_text())
        record = json.loads((self.model / "op-dbus.json").read_text())
        self.pad = config.get("pad_token_id", 0)
        self.dimensions = record["dimensions"]
        self.tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        # The files ask for padding to 128 and a cut there; both are the caller's business.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(record["max_input_tokens"])

    def batches(self, texts, tokens_max):
        """Batches of at most `tokens_max` padded tokens, but of one row at least."""
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(texts)]
        order = sorted(range(len(texts)), key=lambda row: -len(ids[row]))
        start = 0
        while start < len(order):
            size = max(1, tokens_max // len(ids[order[start]]))
            rows = order[start : start + size]
            yield Batch(rows, [texts[row] for row in rows], [ids[row] for row in rows], self.pad)
            start += size


class Streams:
    """Threads that take batch after batch, each with a function and CPUs of its own."""

    def __init__(self, functions):
        cpus = sorted(os.sched_getaffinity(0))
        share = len(cpus) // len(functions)
        numbers = itertools.count()
        local = threading.local()

        def begin():
            number = next(numbers)
            if len(functions) > 1:
                os.sched_setaffinity(0, cpus[number * share : (number + 1) * share])
            local.function = functions[number]

        self.call = lambda batch: (batch.rows, local.function(batch))
        self.pool = ThreadPoolExecutor(len(functions), initializer=begin)

    def run(self, batches):
        """The results of all batches, as pairs of rows and vectors."""
        return self.pool.map(self.call, batches)
