"""The model in Triton: a graph, computed by ONNX Runtime."""

import json

import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """What Triton's Python backend looks for."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(parameters["graph"]["string_value"], options)
        self.inputs = [port.name for port in self.session.get_inputs()]
        self.outputs = [port.name for port in self.session.get_outputs()]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = {name: triton.get_input_tensor_by_name(request, name) for name in self.inputs}
        found = self.session.run(self.outputs, {n: t.as_numpy() for n, t in tensors.items()})
        return triton.InferenceResponse([triton.Tensor(*one) for one in zip(self.outputs, found)])
