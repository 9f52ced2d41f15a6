#!/usr/bin/env python3
"""Makes the reference vectors of the three levels with sentence-transformers and torch, in fp32.

    pip install "sentence-transformers>=6" onnx onnxruntime
    make_golden.py --models DIR [--stsb FILE]

DIR holds `all-MiniLM-L6-v2/` and `all-mpnet-base-v2/` (sentence-transformers folders) and
`paraphrase-MiniLM-L3-v2.onnx` (the export that level `low` comes from). With `--stsb`
(tab-separated: text, text, score) the Spearman correlation of each level is printed too, times 100.
"""

import argparse
import hashlib
import json
import pathlib
import tempfile

import numpy
import onnx
import onnxruntime
import scipy.stats
import sentence_transformers
import torch
import transformers
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

HERE = pathlib.Path(__file__).parent
EXPORT = "paraphrase-MiniLM-L3-v2.onnx"
EXPORT_PREFIX = "model.0.auto_model."
EXPORT_OUTPUT = "461"
# The export carries no sizes by name, but they follow from the shapes of its tensors.
HEAD_DIMENSIONS = 32


def export_weights(path):
    """Weights of a torch ONNX export under their torch names.

    The exporter kept the names of biases, norms and embeddings, but folded each matrix, transposed,
    into an anonymous tensor. The `Add` that follows a `MatMul` names the layer the matrix is of.
    """
    graph = onnx.load(path).graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    weights = {
        name.removeprefix(EXPORT_PREFIX): torch.from_numpy(value.copy())
        for name, value in tensors.items()
        if name.startswith(EXPORT_PREFIX)
    }
    matrices = {
        node.output[0]: tensors[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in tensors
    }
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for bias, product in (node.input, reversed(node.input)):
            if bias.startswith(EXPORT_PREFIX) and product in matrices:
                name = bias.removeprefix(EXPORT_PREFIX).removesuffix("bias") + "weight"
                weights[name] = torch.from_numpy(matrices.pop(product).T.copy())
    assert not matrices, f"matrices without a name: {list(matrices)}"
    return weights


def low(directory, scratch):
    """Level `low` as a sentence-transformers model: mean pooling, 128 tokens, no normalisation."""
    weights = export_weights(directory / EXPORT)
    words = weights["embeddings.word_embeddings.weight"]
    config = transformers.BertConfig(
        vocab_size=words.shape[0],
        hidden_size=words.shape[1],
        num_hidden_layers=sum(name.endswith("attention.self.query.weight") for name in weights),
        num_attention_heads=words.shape[1] // HEAD_DIMENSIONS,
        intermediate_size=weights["encoder.layer.0.intermediate.dense.weight"].shape[0],
        max_position_embeddings=weights["embeddings.position_embeddings.weight"].shape[0],
    )
    bert = transformers.BertModel(config, add_pooling_layer=False)
    outcome = bert.load_state_dict(weights, strict=False)
    missing = [name for name in outcome.missing_keys if not name.endswith("_ids")]
    extra = [name for name in outcome.unexpected_keys if not name.startswith("pooler.")]
    assert not missing and not extra, f"missing {missing}, unexpected {extra}"
    folder = scratch / "low"
    bert.save_pretrained(folder)
    # The vocabulary is that of level `medium`.
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory / "all-MiniLM-L6-v2")
    tokenizer.save_pretrained(folder)
    word_model = Transformer(str(folder), max_seq_length=128)
    pooling = Pooling(words.shape[1], pooling_mode="mean")
    return SentenceTransformer(modules=[word_model, pooling], device="cpu")


def check_against_export(model, directory, texts):
    """The torch model must agree with the export that its weights were taken from."""
    session = onnxruntime.InferenceSession(directory / EXPORT, providers=["CPUExecutionProvider"])
    worst = 0.0
    for text in texts:
        tokens = model.tokenizer([text], truncation=True, max_length=128, return_tensors="np")
        feed = {i.name: tokens[i.name].astype(numpy.int64) for i in session.get_inputs()}
        (exported,) = session.run([EXPORT_OUTPUT], feed)
        worst = max(worst, float(numpy.abs(exported[0] - model.encode(text)).max()))
    assert worst < 2e-5, f"torch and the export differ by {worst}"
    return worst


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def spearman(model, path):
    rows = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    left, right = (model.encode([row[i] for row in rows]) for i in (0, 1))
    cosines = numpy.sum(left * right, axis=1)
    cosines /= numpy.linalg.norm(left, axis=1) * numpy.linalg.norm(right, axis=1)
    return 100 * scipy.stats.spearmanr(cosines, [float(row[2]) for row in rows]).statistic


def write(level, header, names, vectors):
    """One line per vector; each number is the shortest that reads back as the same float."""
    lines = [
        "    " + json.dumps(name) + ": [" + ",".join(map(str, vector)) + "]"
        for name, vector in zip(names, vectors, strict=True)
    ]
    fields = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in header.items())
    body = "{\n" + fields + '  "vectors": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    (HERE / f"{level}.json").write_text(body)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=pathlib.Path, required=True, metavar="DIR")
    parser.add_argument("--stsb", type=pathlib.Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_grad_enabled(False)

    entries = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    texts = [entry["text"] for entry in entries]
    scratch = tempfile.TemporaryDirectory()
    low_model = low(args.models, pathlib.Path(scratch.name))
    difference = check_against_export(low_model, args.models, texts)
    print(f"low: torch and the export agree within {difference:.1e}")
    levels = {"low": (low_model, args.models / EXPORT)}
    for level, name in (("medium", "all-MiniLM-L6-v2"), ("high", "all-mpnet-base-v2")):
        model = SentenceTransformer(str(args.models / name), device="cpu")
        levels[level] = (model, args.models / name / "model.safetensors")

    for level, (model, weights) in levels.items():
        model.float().eval()
        # One text at a time: no padding, so nothing but the text itself can have a say.
        vectors = numpy.stack([model.encode(text) for text in texts])
        assert vectors.dtype == numpy.float32 and numpy.isfinite(vectors).all()
        header = {
            "model": weights.parent.name if level != "low" else weights.stem,
            "weights": weights.name,
            "weights_sha256": sha256(weights),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "sentence_transformers": sentence_transformers.__version__,
            "dimensions": int(vectors.shape[1]),
            "max_input_tokens": model.max_seq_length,
        }
        write(level, header, [entry["name"] for entry in entries], vectors)
        print(f"{level}: {len(vectors)} vectors of {vectors.shape[1]} dimensions")
        if args.stsb:
            print(f"{level}: Spearman {spearman(model, args.stsb):.2f}")


if __name__ == "__main__":
    main()
