"""What the peers read: the model as ONNX, optimised, and in int8, made once from its weights.

`--make plain` is the graph with pooling and normalisation inside, `onnxruntime-f32` what ONNX
Runtime's transformer optimiser makes of it, `onnxruntime-int8` its dynamic quantisation of that,
`openvino-int8` NNCF's post-training quantisation, `fastembed` the folder that fastembed wants.
"""

import argparse
import json
import os
import pathlib
import shutil

from batches import Batcher


def plain(model, work, texts):
    import sentence_transformers
    import torch

    network = sentence_transformers.SentenceTransformer(
        str(model), device="cpu", model_kwargs={"attn_implementation": "eager"}
    ).eval()

    class Embedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, input_ids, attention_mask):
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            return self.network(features)["sentence_embedding"]

    example = (torch.ones(3, 17, dtype=torch.int64), torch.ones(3, 17, dtype=torch.int64))
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "rows", 1: "length"} for name in names}
    torch.onnx.export(
        Embedding().eval(),
        example,
        str(work / "plain.onnx"),
        input_names=names,
        output_names=["vectors"],
        dynamic_axes={**axes, "vectors": {0: "rows"}},
        opset_version=17,
        # The exporter whose patterns ONNX Runtime's optimiser knows.
        dynamo=False,
    )


def onnxruntime_f32(model, work, texts):
    from onnxruntime.transformers import optimizer

    config = json.loads((model / "config.json").read_text())
    optimizer.optimize_model(
        str(work / "plain.onnx"),
        model_type="bert",
        num_heads=config["num_attention_heads"],
        hidden_size=config["hidden_size"],
    ).save_model_to_file(str(work / "f32.onnx"))


def onnxruntime_int8(model, work, texts):
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(work / "f32.onnx"),
        str(work / "int8.onnx"),
        per_channel=True,
        weight_type=QuantType.QInt8,
        # It can't infer what comes out of the fused operators.
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )


def openvino_int8(model, work, texts):
    import nncf
    import openvino

    samples = [batch.padded() for batch in Batcher(model).batches(texts[:300], 1)]
    data = [{"input_ids": ids, "attention_mask": mask} for ids, mask in samples]
    quantised = nncf.quantize(
        openvino.Core().read_model(work / "plain.onnx"),
        nncf.Dataset(data),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(data),
    )
    openvino.save_model(quantised, work / "openvino-int8.xml", compress_to_fp16=False)


def fastembed(model, work, texts):
    folder = work / "fastembed"
    folder.mkdir(exist_ok=True)
    batcher = Batcher(model)
    batcher.tokenizer.save(str(folder / "tokenizer.json"))
    pad = batcher.tokenizer.id_to_token(batcher.pad)
    limit = batcher.tokenizer.truncation["max_length"]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"model_max_length": limit, "pad_token": pad})
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": pad}))
    shutil.copy(model / "config.json", folder / "config.json")
    link = folder / "plain.onnx"
    link.unlink(missing_ok=True)
    os.link(work / "plain.onnx", link)


MAKERS = {
    "plain": plain,
    "onnxruntime-f32": onnxruntime_f32,
    "onnxruntime-int8": onnxruntime_int8,
    "openvino-int8": openvino_int8,
    "fastembed": fastembed,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--make", required=True, choices=MAKERS)
    parser.add_argument("--texts", required=True, type=pathlib.Path, help="to calibrate with")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    texts = args.texts.read_text(encoding="utf-8").split("\n")[:-1]
    MAKERS[args.make](args.model, args.work, texts)


if __name__ == "__main__":
    main()
