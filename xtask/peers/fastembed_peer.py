"""fastembed on the plain export, with a tokenizer.json that neither pads to 128 nor cuts there."""

import importlib.metadata

import numpy
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

NAME = "op-dbus/measured"


class Library:
    def __init__(self, batcher, work, precision):
        self.name = f"fastembed {importlib.metadata.version('fastembed')}"
        self.folder = str(work / "fastembed")
        TextEmbedding.add_custom_model(
            model=NAME,
            pooling=PoolingType.DISABLED,
            normalization=False,
            sources=ModelSource(hf=NAME),
            dim=batcher.dimensions,
            model_file="plain.onnx",
        )
        self.whole = None

    def open(self, streams, threads):
        return [self.embedding(threads) for _ in range(streams)]

    def embedding(self, threads):
        model = TextEmbedding(NAME, threads=threads, specific_model_path=self.folder)

        def run(batch):
            return numpy.stack(list(model.embed(batch.texts, batch_size=len(batch.texts))))

        self.whole = model
        return run

    def own(self, texts):
        """As the documentation calls it: batches of 256 in the order of arrival."""
        return numpy.stack(list(self.whole.embed(texts)))
