"""The model in Triton: a graph, computed by ONNX Runtime, of token ids or of texts."""

import json

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    """What Triton's Python backend looks for."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        parameters = {key: value["string_value"] for key, value in parameters.items()}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(parameters["graph"], options)
        self.inputs = {port.name: port.type for port in self.session.get_inputs()}
        self.outputs = [port.name for port in self.session.get_outputs()]
        self.authorization = parameters.get("authorization")
        self.counts_padding = "counts_padding" in parameters
        self.ids_max = int(parameters.get("ids_max", 0))
        self.tokenizer = None
        if "tokenizer" in parameters:
            from tokenizers import Tokenizer

            self.tokenizer = Tokenizer.from_file(parameters["tokenizer"])
            self.tokenizer.enable_truncation(int(parameters["tokens_max"]))
            self.tokenizer.enable_padding()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        if self.authorization not in (None, json.loads(request.parameters()).get("authorization")):
            error = triton.TritonError("who is that?")
            return triton.InferenceResponse(output_tensors=[], error=error)
        names = self.inputs if self.tokenizer is None else ["text"]
        tensors = {name: triton.get_input_tensor_by_name(request, name) for name in names}
        tensors = {name: tensor.as_numpy() for name, tensor in tensors.items()}
        if self.tokenizer:
            tensors = self.tokenized(tensors["text"])
        if self.counts_padding:
            tensors["lengths"] = np.full_like(tensors["lengths"], tensors["input_ids"].shape[1])
        if self.ids_max:
            tensors["input_ids"] = np.ascontiguousarray(tensors["input_ids"][:, : self.ids_max])
            tensors["lengths"] = np.minimum(tensors["lengths"], self.ids_max)
        found = self.session.run(self.outputs, tensors)
        return triton.InferenceResponse([triton.Tensor(*one) for one in zip(self.outputs, found)])

    def tokenized(self, texts):
        rows = self.tokenizer.encode_batch([text.decode() for text in texts])
        masks = [row.attention_mask for row in rows]
        known = {"input_ids": [row.ids for row in rows], "lengths": [sum(mask) for mask in masks]}
        types = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
        return {name: np.array(known[name], types[kind]) for name, kind in self.inputs.items()}
