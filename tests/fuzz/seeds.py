"""Writes the cases that the fuzzer begins with into `corpus`, where those that it has found lie as well.

Run it from anywhere, without arguments, after a format has changed; it needs nothing but Python.
"""

import io
import json
import struct
import zipfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def put(target: str, name: str, content: bytes) -> None:
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def tokenizer() -> None:
    special = lambda name, id: {"id": name, "ids": [id], "tokens": [name]}
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    common = {
        "version": "1.0", "truncation": None, "padding": None, "decoder": None,
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around,
                           "special_tokens": {"[CLS]": special("[CLS]", 1), "[SEP]": special("[SEP]", 2)}},
    }
    words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "##a": 4, "the": 5, ".": 6, "1": 7, "b": 8}
    added = [{"id": id, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for name, id in [("[CLS]", 1), ("[SEP]", 2)]]
    files = {
        "wordpiece": {
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                           "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "added_tokens": added,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": words}},
        "unigram": {
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
                              "split": True}, "added_tokens": added,
            "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False,
                      "vocab": [["<unk>", 0.0], ["[CLS]", 0.0], ["[SEP]", 0.0], ["\u2581a", -1.0],
                                ["\u2581the", -2.0], ["a", -3.0]]}},
        "bpe": {
            "normalizer": None, "added_tokens": added,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                              "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "byte_fallback": False, "vocab": {**words, "aa": 9}, "merges": ["a a"]}},
    }
    for name, file in files.items():
        text = "aa the. 1 b \u00e9\u200b" * 9
        put("tokenizer", name, json.dumps({**common, **file}).encode() + b"\0" + text.encode())


def worker() -> None:
    description = {"provider": "sim", "device": "sim:0", "devices": 1, "precision": "f32",
                   "engine": "sim", "isa": "", "dimensions": 2, "batch_tokens": 0, "load_ms": 0,
                   "pid": 1, "sandbox": ""}
    said = [
        {"ready": {"description": description}},
        {"done": {"number": 1, "device": None}},
        {"done": {"number": 2, "device": "sim:1"}},
        {"failed": {"number": 3, "failure": "failed", "message": "no"}},
        {"trimmed": {"number": 4, "given_back": 1, "resident": 2}},
        {"failed": {"number": 5, "failure": "lost", "message": "no"}},
    ]
    put("worker-answers", "all", "\n".join(map(json.dumps, said)).encode())
    put("worker-answers", "unloadable",
        b'{"unloadable": {"kind": "other", "message": "no"}}')
    hello = {"hello": {"version": 5, "shape": {"tokens_max": 8, "rows_max": 4, "dimensions": 2}}}
    asked = [hello, {"run": {"number": 1, "rows": 2, "tokens": 3}}, {"trim": {"number": 2}},
             {"run": {"number": 3, "rows": 4, "tokens": 8}},
             {"run": {"number": 4, "rows": 5, "tokens": 9}}]
    memory = bytes([5, 6, 7, 0, 0, 0, 0, 0, 2, 1, 0, 0])
    # Its zeros end it: what is missing is 0.
    put("worker-requests", "all", memory[:3] + b"\0" + "\n".join(map(json.dumps, asked)).encode())
    full = bytes([5] * 8 + [2] * 4)
    put("worker-requests", "full", full + b"\0" + "\n".join(map(json.dumps, asked)).encode())


def bert(words: int = 3, width: int = 2, inner: int = 2, positions: int = 4) -> tuple[dict, dict]:
    config = {"model_type": "bert", "hidden_size": width, "num_hidden_layers": 1,
              "num_attention_heads": 1, "intermediate_size": inner, "vocab_size": words,
              "max_position_embeddings": positions, "type_vocab_size": 1, "hidden_act": "gelu",
              "layer_norm_eps": 1e-12}
    shapes = {"embeddings.word_embeddings.weight": [words, width],
              "embeddings.position_embeddings.weight": [positions, width],
              "embeddings.token_type_embeddings.weight": [1, width],
              "embeddings.LayerNorm.weight": [width], "embeddings.LayerNorm.bias": [width]}
    layer = "encoder.layer.0."
    for part in ["attention.self.query", "attention.self.key", "attention.self.value",
                 "attention.output.dense"]:
        shapes |= {f"{layer}{part}.weight": [width, width], f"{layer}{part}.bias": [width]}
    shapes |= {f"{layer}intermediate.dense.weight": [inner, width],
               f"{layer}intermediate.dense.bias": [inner],
               f"{layer}output.dense.weight": [width, inner], f"{layer}output.dense.bias": [width]}
    for part in ["attention.output.LayerNorm", "output.LayerNorm"]:
        shapes |= {f"{layer}{part}.weight": [width], f"{layer}{part}.bias": [width]}
    return config, shapes


def model_files() -> dict[str, bytes]:
    kinds = ["Transformer", "Pooling", "Dense", "Normalize"]
    folders = ["", "1_Pooling", "2_Dense", "3_Normalize"]
    modules = [{"idx": index, "name": str(index), "path": path,
                "type": f"sentence_transformers.models.{kind}"}
               for index, (kind, path) in enumerate(zip(kinds, folders))]
    config, _ = bert(positions=34)
    values = {
        "modules.json": modules,
        "config.json": config | {"matryoshka_dimensions": [1]},
        "1_Pooling/config.json": {"word_embedding_dimension": 2, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        "tokenizer_config.json": {"model_max_length": 32},
        "tokenizer.json": {"normalizer": {"type": "Lowercase"}, "model": {"type": "WordPiece"}},
        "2_Dense/config.json": {"in_features": 2, "out_features": 3, "bias": True,
                                "activation_function": "torch.nn.modules.activation.Tanh"},
    }
    return {name: json.dumps(value).encode() for name, value in values.items()}


def models() -> None:
    files = model_files()
    put("model-files", "all", b"\0".join(files.values()))
    graph = [b"", b"", files["1_Pooling/config.json"], b"", b"", files["tokenizer_config.json"],
             files["tokenizer.json"], b""]
    put("model-files", "graph", b"\0".join(graph))
    whole = files | {"model.safetensors": b"", "2_Dense/model.safetensors": b""}
    for name, kind in [("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)]:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", kind) as out:
            for path, content in whole.items():
                out.writestr(zipfile.ZipInfo("model/" + path), content, kind)
        put("archive", name, archive.getvalue())
    digest = "0" * 64
    record = {"version": 2, "name": "m", "family": "bert", "pooling": "mean", "normalize": True,
              "dimensions": 2, "max_input_tokens": 8, "prompts": {"q": "q: "}, "default_prompt": "q",
              "matryoshka": [1], "dense": ["2_Dense"], "level": None, "source": "s", "revision": "",
              "files": [{"path": path, "bytes": 1, "sha256": digest}
                        for path in ["model.safetensors", "tokenizer.json", "2_Dense/config.json",
                                     "2_Dense/model.safetensors"]]}
    put("record", "dense", json.dumps(record).encode())
    put("record", "outside", json.dumps(record | {"files": [
        {"path": "../x", "bytes": 1, "sha256": digest}]}).encode())


for write in [tokenizer, worker, models]:
    write()
