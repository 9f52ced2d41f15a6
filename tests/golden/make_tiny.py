#!/usr/bin/env python3
"""Makes the two tiny models with random weights, and their reference vectors, in fp32.

    pip install "sentence-transformers>=6" onnx
    make_tiny.py

They stand for models that users bring: `tiny-bert/` (also as an ONNX graph that ends in token
vectors) and `tiny-mpnet/`, with vectors for each pooling in `tiny.json`.
"""

import json
import pathlib
import shutil
import string

import numpy
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
MAX_TOKENS = 48
POSITIONS = {"bert": 64, "mpnet": 66}
SPECIALS = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "mpnet": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
ENDS = {
    "bert": ("[CLS]", "[SEP]", "[UNK]", "[PAD]"),
    "mpnet": ("<s>", "</s>", "<unk>", "<pad>"),
}


def tokenizer(family):
    """Word pieces of one character each: small, and every ASCII text has tokens."""
    characters = string.ascii_lowercase + string.digits + ".,:;-/()[]?!'"
    pieces = SPECIALS[family] + list(characters) + ["##" + c for c in characters]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    first, last, unknown, pad = ENDS[family]
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, vocabulary[name]) for name in (first, last)]
    made.post_processor = processors.TemplateProcessing(f"{first} $A {last}", special_tokens=ends)
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(SPECIALS[family])
    names = {"cls_token": first, "sep_token": last, "unk_token": unknown, "pad_token": pad}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=MAX_TOKENS, **names
    )


def network(family, words, pad):
    kinds = {
        "bert": (transformers.BertConfig, transformers.BertModel),
        "mpnet": (transformers.MPNetConfig, transformers.MPNetModel),
    }
    configuration, model = kinds[family]
    config = configuration(
        vocab_size=words,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=POSITIONS[family],
        pad_token_id=pad,
    )
    config._attn_implementation = "eager"
    made = model(config, add_pooling_layer=False)
    torch.manual_seed(7)
    for name, parameter in made.named_parameters():
        parameter.normal_(0, 0.3)
        if "LayerNorm.weight" in name:
            parameter.add_(1)
    return made


def export(bert, folder):
    """The graph as most exports have it: three int64 inputs, token vectors out."""

    class States(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, input_ids, attention_mask, token_type_ids):
            return self.bert(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.tensor([[2, 7, 3]])
    inputs = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes = {name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]}
    (folder / "onnx").mkdir()
    torch.onnx.export(
        States(),
        inputs,
        folder / "onnx/model.onnx",
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )


def main():
    torch.set_grad_enabled(False)
    entries = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    versions = {"torch": torch, "sentence_transformers": sentence_transformers}
    header = {name: module.__version__ for name, module in versions.items()}
    lines = []
    for family in ("bert", "mpnet"):
        folder = HERE / f"tiny-{family}"
        shutil.rmtree(folder, ignore_errors=True)
        tokens = tokenizer(family)
        made = network(family, len(tokens), tokens.pad_token_id)
        made.save_pretrained(folder)
        tokens.save_pretrained(folder)
        transformer = Transformer(str(folder), max_seq_length=MAX_TOKENS)
        for mode in ("mean", "cls", "max"):
            pooling = Pooling(24, pooling_mode=mode)
            for name, modules in {
                mode: [transformer, pooling],
                f"{mode}-normalised": [transformer, pooling, Normalize()],
            }.items():
                model = SentenceTransformer(modules=modules, device="cpu")
                if name == "mean":
                    model.save(str(folder), create_model_card=False)
                    (folder / "model.safetensors").chmod(0o644)
                vectors = numpy.stack([model.encode(entry["text"]) for entry in entries])
                rows = ",\n".join("    [" + ",".join(map(str, vector)) + "]" for vector in vectors)
                lines.append(f'  "{family}-{name}": [\n{rows}\n  ]')
        if family == "bert":
            export(made, folder)
    fields = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in header.items())
    (HERE / "tiny.json").write_text("{\n" + fields + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
