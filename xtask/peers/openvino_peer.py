"""OpenVINO; int8 is NNCF's post-training quantisation."""

import openvino
from openvino import properties


class Library:
    def __init__(self, batcher, work, precision):
        self.name = f"openvino {openvino.__version__.split('-')[0]}"
        self.core = openvino.Core()
        file = "openvino-int8.xml" if precision == "int8" else "plain.onnx"
        self.model = self.core.read_model(work / file)
        kinds = {"f32": openvino.Type.f32, "bf16": openvino.Type.bf16}
        # What int8 leaves in floating point runs in what OpenVINO thinks best.
        self.hints = {}
        if precision in kinds:
            self.hints[properties.hint.inference_precision] = kinds[precision]

    def open(self, streams, threads):
        compiled = self.core.compile_model(
            self.model,
            "CPU",
            {
                properties.hint.performance_mode: properties.hint.PerformanceMode.THROUGHPUT,
                properties.num_streams: streams,
                properties.inference_num_threads: streams * threads,
                **self.hints,
            },
        )
        return [self.request(compiled) for _ in range(streams)]

    def request(self, compiled):
        request = compiled.create_infer_request()

        def run(batch):
            ids, mask = batch.padded()
            return request.infer({"input_ids": ids, "attention_mask": mask})["vectors"].copy()

        return run
