"""ONNX Runtime on the graph that its own transformer optimiser made of the plain export."""

import onnxruntime


class Library:
    def __init__(self, batcher, work, precision):
        self.name = f"onnxruntime {onnxruntime.__version__}"
        self.path = str(work / f"{precision}.onnx")

    def open(self, streams, threads):
        return [self.session(threads) for _ in range(streams)]

    def session(self, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            self.path, options, providers=["CPUExecutionProvider"]
        )

        def run(batch):
            ids, mask = batch.padded()
            return session.run(["vectors"], {"input_ids": ids, "attention_mask": mask})[0]

        return run
