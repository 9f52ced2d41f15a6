#!/usr/bin/env python3
"""Makes the tiny models with random weights, and their reference vectors, in fp32.

    pip install "sentence-transformers>=6" onnx sentencepiece
    make_tiny.py

They stand for models that users bring: `tiny-bert/` (also as an ONNX graph that ends in token
vectors) and `tiny-mpnet/`, with vectors for each pooling in `tiny.json`; `tiny-roberta/` with a
byte-level tokenizer, `tiny-xlm-roberta/` with one of sentencepiece's, `tiny-distilbert/`, and
`tiny-dense/` with two Dense modules, of which the last one's activation varies.
"""

import io
import json
import pathlib
import shutil
import string
import tempfile

import numpy
import sentence_transformers
import sentencepiece
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

HERE = pathlib.Path(__file__).parent
MAX_TOKENS = 48
# RoBERTa's texts begin at the third position: here the longest text uses the last one.
POSITIONS = {"bert": 64, "mpnet": 66, "roberta": 50, "xlm-roberta": 50, "distilbert": 48}
HIDDEN = {"bert": 24, "mpnet": 24, "roberta": 32, "xlm-roberta": 32, "distilbert": 32}
SPECIALS = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    "mpnet": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
}
ENDS = {
    "bert": ("[CLS]", "[SEP]", "[UNK]", "[PAD]"),
    "mpnet": ("<s>", "</s>", "<unk>", "<pad>"),
}
# Numbered 0 to 3 by all of RoBERTa's kind.
FIRST = ["<s>", "<pad>", "</s>", "<unk>"]
ACTIVATIONS = ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU"]


def byte_level(texts):
    """RoBERTa's tokenizer: a token for each byte, and for the commonest few pairs."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + 24, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(made.to_str())["model"]["merges"]]
    pieces = [*FIRST, *alphabet, *("".join(pair) for pair in merges), "<mask>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return transformers.RobertaTokenizer(vocabulary, merges, model_max_length=MAX_TOKENS)


def unigram(texts):
    """XLM-RoBERTa's tokenizer: pieces with scores, behind a table of character replacements."""
    rules = [(0xFF01 + n, [0x21 + n]) for n in range(94)]
    rules += [(white, [0x20]) for white in (0x09, 0x0A, 0x0D, 0xA0, 0x3000)]
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        for found, replacement in rules:
            table.write(f"{found:X}\t{' '.join(f'{c:X}' for c in replacement)}\n")
        table.write("65 301\tE9\n")
        table.flush()
        trained = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.splitlines()),
            model_writer=trained,
            model_type="unigram",
            vocab_size=150,
            character_coverage=0.98,
            normalization_rule_tsv=table.name,
            minloglevel=2,
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(trained.getvalue())
    # sentencepiece's own first three, <unk>, <s> and </s>, have other numbers here.
    pieces = [(piece.piece, piece.score) for piece in model.pieces[3:]]
    return transformers.XLMRobertaTokenizer(
        [*((piece, 0.0) for piece in FIRST), *pieces, ("<mask>", 0.0)],
        _spm_precompiled_charsmap=model.normalizer_spec.precompiled_charsmap,
        model_max_length=MAX_TOKENS,
    )


def tokenizer(family, texts):
    # Without the last kind of text there was, so that the models stay what they were.
    texts = [text for text in texts if "<pad>" not in text]
    if family == "roberta":
        return byte_level(texts)
    if family == "xlm-roberta":
        return unigram(texts)
    return word_pieces("bert" if family == "distilbert" else family)


def word_pieces(family):
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
        "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel),
        "distilbert": (transformers.DistilBertConfig, transformers.DistilBertModel),
    }
    configuration, model = kinds[family]
    shape = {"vocab_size": words, "max_position_embeddings": POSITIONS[family], "pad_token_id": pad}
    own = {}
    if family == "distilbert":
        shape |= {"dim": HIDDEN[family], "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    else:
        small = HIDDEN[family] == 24
        shape |= {
            "hidden_size": HIDDEN[family],
            "num_hidden_layers": 2,
            "num_attention_heads": 3 if small else 4,
            "intermediate_size": 40 if small else 48,
        }
        own = {"add_pooling_layer": False}
    if "roberta" in family:
        shape |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    config = configuration(**shape)
    config._attn_implementation = "eager"
    made = model(config, **own)
    torch.manual_seed(7)
    for name, parameter in made.named_parameters():
        parameter.normal_(0, 0.3)
        if "LayerNorm.weight" in name or "layer_norm.weight" in name:
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


def write_encoder(folder, family, texts):
    shutil.rmtree(folder, ignore_errors=True)
    tokens = tokenizer(family, texts)
    made = network(family, len(tokens), tokens.pad_token_id)
    made.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return made, Transformer(str(folder), max_seq_length=MAX_TOKENS)


def save(model, folder):
    model.save(str(folder), create_model_card=False)
    for weights in folder.rglob("model.safetensors"):
        weights.chmod(0o644)


def entry(name, model, texts):
    vectors = numpy.stack([model.encode(text) for text in texts])
    rows = ",\n".join("    [" + ",".join(map(str, vector)) + "]" for vector in vectors)
    return f'  "{name}": [\n{rows}\n  ]'


def encoders(texts):
    for family in HIDDEN:
        folder = HERE / f"tiny-{family}"
        made, transformer = write_encoder(folder, family, texts)
        everything = family in ("bert", "mpnet")
        for mode in ("mean", "cls", "max") if everything else ("mean", "cls"):
            pooling = Pooling(HIDDEN[family], pooling_mode=mode)
            plain = SentenceTransformer(modules=[transformer, pooling], device="cpu")
            if mode == "mean":
                save(plain, folder)
            yield entry(f"{family}-{mode}", plain, texts)
            if everything:
                modules = [transformer, pooling, Normalize()]
                normalised = SentenceTransformer(modules=modules, device="cpu")
                yield entry(f"{family}-{mode}-normalised", normalised, texts)
        if family == "bert":
            export(made, folder)


def dense(texts):
    folder = HERE / "tiny-dense"
    _, transformer = write_encoder(folder, "distilbert", texts)
    first = Dense(32, 40, bias=False, activation_function=torch.nn.GELU())
    last = Dense(40, 16)
    torch.manual_seed(8)
    for module in (first, last):
        for parameter in module.parameters():
            parameter.normal_(0, 0.3)
    plain = [transformer, Pooling(32, pooling_mode="mean"), first, last]
    model = SentenceTransformer(modules=[*plain, Normalize()], device="cpu")
    save(model, folder)
    yield entry("dense-normalised", model, texts)
    model = SentenceTransformer(modules=plain, device="cpu")
    for activation in ACTIVATIONS:
        last.activation_function = getattr(torch.nn, activation)()
        yield entry(f"dense-{activation}", model, texts)


def main():
    torch.set_grad_enabled(False)
    entries = json.loads((HERE / "texts.json").read_text(encoding="utf-8"))
    texts = [entry["text"] for entry in entries]
    versions = {"torch": torch, "sentence_transformers": sentence_transformers}
    header = {name: module.__version__ for name, module in versions.items()}
    lines = [*encoders(texts), *dense(texts)]
    fields = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in header.items())
    (HERE / "tiny.json").write_text("{\n" + fields + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
