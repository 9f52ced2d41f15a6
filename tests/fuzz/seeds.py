"""Writes the cases that the fuzzer begins with into `corpus`, where those that it has found lie as well.

Run it from anywhere, without arguments, after a format has changed; it needs nothing but Python.
"""

import io
import json
import math
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
                   "engine": "sim", "isa": "", "dimensions": 2, "batch_tokens": 0, "largest_tokens": 0, "load_ms": 0,
                   "pid": 1, "sandbox": ""}
    use = {"buffers": {"found": 1, "made": 2}, "transfers": {"in_place": 3, "copied": 4},
           "arena": {"bytes": 5, "in_use": 6, "in_use_max": 7, "hits": 8, "misses": 9}, "replays": 10}
    said = [
        {"ready": {"description": description}},
        {"done": {"number": 1, "device": None, "memory": {}}},
        {"done": {"number": 2, "device": "sim:1", "memory": use}},
        {"failed": {"number": 3, "failure": "failed", "message": "no"}},
        {"trimmed": {"number": 4, "given_back": 1, "resident": 2, "memory": use}},
        {"failed": {"number": 5, "failure": "lost", "message": "no"}},
    ]
    lines = lambda messages: "\n".join(map(json.dumps, messages)).encode() + b"\0"
    # Behind the NUL: where in the shared memory the worker writes, counted in values, and what.
    vectors = lambda *values, place=32: struct.pack("<B4f", place, *values)
    put("worker-answers", "all", lines(said) + vectors(1, 0, 0, 1) + vectors(0.6, 0.8, -1, 0))
    put("worker-answers", "no-numbers", lines(said[:3]) + vectors(1, 0, 0, math.inf)
        + vectors(1, 0, 0, 1, place=255))
    put("worker-answers", "unloadable",
        b'{"unloadable": {"kind": "other", "message": "no"}}')
    hello = {"hello": {"version": 8, "shape": {"tokens_max": 8, "rows_max": 4, "dimensions": 2}}}
    run = lambda number, slot, rows, tokens: {
        "run": {"number": number, "slot": slot, "rows": rows, "tokens": tokens}}
    asked = [hello, run(1, 0, 2, 3), {"trim": {"number": 2}}, run(3, 1, 4, 8), run(4, 0, 5, 9),
             run(5, 2, 1, 1)]
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
    around = [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "[SEP]"}}]
    values = {
        "modules.json": modules,
        "config.json": config | {"matryoshka_dimensions": [1]},
        "1_Pooling/config.json": {"word_embedding_dimension": 2, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "query"},
        "tokenizer_config.json": {"model_max_length": 32},
        # As transformers has it for a BERT, which it would be rebuilt as.
        "tokenizer.json": {
            "normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "TemplateProcessing", "single": around},
            "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}}},
        "2_Dense/config.json": {"in_features": 2, "out_features": 3, "bias": True,
                                "activation_function": "torch.nn.modules.activation.Tanh"},
        "special_tokens_map.json": {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}},
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
    record = {"version": 1, "name": "m", "family": "bert", "pooling": "mean", "normalize": True,
              "dimensions": 2, "max_input_tokens": 8, "prompts": {"q": "q: "}, "default_prompt": "q",
              "matryoshka": [1], "dense": ["2_Dense"], "level": None, "source": "s", "revision": "",
              "files": [{"path": path, "bytes": 1, "sha256": digest}
                        for path in ["model.safetensors", "tokenizer.json", "2_Dense/config.json",
                                     "2_Dense/model.safetensors"]]}
    put("record", "dense", json.dumps(record).encode())
    put("record", "outside", json.dumps(record | {"files": record["files"] + [
        {"path": "../x", "bytes": 1, "sha256": digest}]}).encode())


def mpnet(config: dict, shapes: dict) -> tuple[dict, dict]:
    """A BERT's tensors under MPNet's names, with the bias of distances."""
    names = {"self.query": "attn.q", "self.key": "attn.k", "self.value": "attn.v",
             "output.LayerNorm": "LayerNorm", "output.dense": "attn.o"}

    def renamed(name: str) -> str:
        front, attention, part = name.partition("attention.")
        stem, _, kind = part.rpartition(".")
        return f"{front}attention.{names[stem]}.{kind}" if attention else name

    shapes = {renamed(name): shape for name, shape in shapes.items() if "token_type" not in name}
    shapes["encoder.relative_attention_bias.weight"] = [32, config["num_attention_heads"]]
    return config | {"model_type": "mpnet", "relative_attention_num_buckets": 32}, shapes


def tensors(shapes: dict[str, list[int]]) -> bytes:
    header, data = {}, b""
    for index, (name, shape) in enumerate(shapes.items()):
        count = math.prod(shape)
        start = len(data)
        data += struct.pack(f"<{count}f", *((index + at) % 7 / 4 - 0.75 for at in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def message(*fields: tuple[int, object]) -> bytes:
    """A protobuf message: numbers, texts and messages by their field numbers."""
    def varint(number: int) -> bytes:
        number %= 1 << 64
        out = b""
        while number > 127:
            out += bytes([number % 128 + 128])
            number //= 128
        return out + bytes([number])

    out = b""
    for tag, value in fields:
        if isinstance(value, int):
            out += varint(tag * 8) + varint(value)
            continue
        content = value.encode() if isinstance(value, str) else value
        out += varint(tag * 8 + 2) + varint(len(content)) + content
    return out


def onnx(*more: bytes) -> bytes:
    """The export of a BERT, of which only the products say which matrix is whose, with more tensors."""
    def float_tensor(name: str, shape: list[int]) -> bytes:
        values = struct.pack(f"<{math.prod(shape)}f", *[0.5] * math.prod(shape))
        return message(*((1, side) for side in shape), (2, 1), (8, name), (9, values))

    def value(name: str, element: int, sides: list[int]) -> bytes:
        shape = message(*((1, message((1, side) if side else (2, "n"))) for side in sides))
        return message((1, name), (2, message((1, message((1, element), (2, shape))))))

    _, shapes = bert()
    initializers, nodes = [], []
    for name, shape in shapes.items():
        stem, _, kind = name.rpartition(".")
        if kind == "bias" and not stem.endswith("LayerNorm"):
            nodes += [message((1, "x"), (1, stem + ".turned"), (2, stem + ".product"), (4, "MatMul")),
                      message((1, name), (1, stem + ".product"), (2, stem), (4, "Add"))]
        is_matrix = kind == "weight" and stem + ".bias" in shapes and len(shape) == 2
        initializers.append(float_tensor(stem + ".turned", shape[::-1]) if is_matrix
                            else float_tensor(name, shape))
    branch = message((5, message((1, "then"), (6, message((5, float_tensor("deep", [1])))))),
                     (4, "If"), (1, "x"), (2, "y"))
    graph = message(*((1, node) for node in [*nodes, branch]), (2, "g"),
                    *((5, tensor) for tensor in [*initializers, *more]),
                    (11, value("input_ids", 7, [0, 0])), (12, value("embedding", 1, [0, 2])))
    return message((1, 8), (8, message((1, ""), (2, 17))), (7, graph))


def computed() -> None:
    for name, (config, shapes) in {"bert": bert(), "mpnet": mpnet(*bert(positions=6))}.items():
        case = json.dumps(config).encode() + b"\0" + tensors(shapes)
        put("weights", name, case)
        put("computed", name, case)
    wide = bert(words=12, width=16, inner=24, positions=6)
    put("computed", "wide", json.dumps(wide[0]).encode() + b"\0" + tensors(wide[1]))
    put("graph", "export", onnx())
    put("graph", "outside", onnx(message((2, 1), (1, 2), (8, "far"), (14, 1),
                                         (13, message((1, "location"), (2, "weights/far.bin"))))))


def variant(value: object) -> tuple[str, int, bytes]:
    """Signature, alignment and bytes of a value on the bus."""
    if isinstance(value, bool):
        return "b", 4, struct.pack("<I", value)
    if isinstance(value, int):
        return "u", 4, struct.pack("<I", value)
    return "s", 4, struct.pack("<I", len(value)) + value.encode() + b"\0"


def dictionary(values: dict) -> bytes:
    out = b""

    def align(to: int) -> None:
        nonlocal out
        # The entries begin at a multiple of 8, behind the length of all.
        out += b"\0" * (-len(out) % to)

    for key, value in values.items():
        align(8)
        out += variant(key)[2]
        signature, alignment, content = variant(value)
        out += bytes([len(signature)]) + signature.encode() + b"\0"
        align(alignment)
        out += content
    return struct.pack("<I", len(out)) + b"\0" * 4 + out


def callers() -> None:
    put("options", "all", dictionary({
        "level": "low", "dimensions": 64, "normalize": True, "prompt": "query", "truncate": "mean",
        "encoding": "i8", "priority": "bulk", "deadline_ms": 250, "expect_space": "ab-f32",
        "device": "cpu:0", "format": "npy", "framing": "nul"}))
    put("options", "wrong", dictionary({"tuncate": "end"}))
    put("texts", "lines", b"\0\3a\n\nb\r\n\xc3\xa9c")
    put("texts", "nul", b"\1\4a\nb\0\0c\0")
    put("texts", "json-lines", b"\2\5\"a\\nb\"\n {\"id\": [1, {}], \"text\": \"\\u00e9\"} \r\n")
    bodies = {
        "/v1/embeddings": {"input": ["a", "b"], "model": "low", "encoding_format": "base64",
                           "dimensions": 2, "user": "u"},
        "/embed": {"inputs": [[1, 2], [3]], "normalize": False, "truncate": True,
                   "truncation_direction": "Left", "prompt_name": "query", "dimensions": 2},
        "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]},
                        "parameters": {"truncate": False, "truncation_direction": "right"}},
        "/rerank": {"query": "a", "texts": ["b"], "raw_scores": True, "return_text": True},
        "/tokenize": {"inputs": "a", "add_special_tokens": False},
        "/add": {"text": "a"},
    }
    for path, body in bodies.items():
        body = json.dumps(body)
        put("requests", path[1:].replace("/", "-"), (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    # So many that they take several calls, of texts and of token ids.
    body = json.dumps({"input": [*"abcdefghijklmnopqrs", [1, 2], [3]], "model": "default"})
    put("requests", "several-calls", (
        "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    gets = ["/health", "/ready", "/status", "/metrics", "/openapi.json", "/v1/models/low", "/none"]
    put("requests", "pipelined", "".join(
        f"GET {path} HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n" for path in gets).encode())
    put("requests", "chunked", (
        b"POST /add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n8\r\n{\"text\":\r\n4\r\n\"a\"}\r\n0\r\n\r\n"))


def call(serial: int, member: str, signature: str, body: bytes, *, order: str = "<", kind: int = 1,
         flags: int = 0, interface: str = "org.opdbus.Embedding1.Embedder") -> bytes:
    """A message for the service, as it is on the wire."""
    fields = b""
    for code, kind_of_value, value in [
            (1, "o", "/org/opdbus/Embedding1"), (2, "s", interface), (3, "s", member), (8, "g", signature)]:
        fields += b"\0" * (-len(fields) % 8) + bytes([code, 1]) + kind_of_value.encode() + b"\0"
        length = "B" if kind_of_value == "g" else order + "I"
        fields += struct.pack(length, len(value)) + value.encode() + b"\0"
    mark = {"<": b"l", ">": b"B"}[order]
    start = mark + bytes([kind, flags, 1]) + struct.pack(order + "III", len(body), serial, len(fields))
    return start + fields + b"\0" * (-len(fields) % 8) + body


def direct() -> None:
    text = lambda text, order="<": struct.pack(order + "I", len(text)) + text.encode() + b"\0"
    # 1000, which is who the target takes the client for.
    external = b"\0AUTH EXTERNAL 31303030\r\n"
    put("direct", "calls", external + b"NEGOTIATE_UNIX_FD\r\nBEGIN\r\n"
        + call(1, "Embed", "s", text("one"))
        + call(2, "Embed", "s", text("one"), flags=1)
        + call(3, "Embed", "s", text("one"), kind=4)
        + call(4, "Set", "ssv", text("a.b") + text("C") + b"\2ay\0\0\0" + struct.pack("<I", 3) + b"abc",
               interface="org.freedesktop.DBus.Properties")
        + call(1, "Embed", "s", text("one")))
    put("direct", "big-endian", b"\0AUTH\r\nAUTH ANONYMOUS\r\nAUTH EXTERNAL\r\nDATA\r\nBEGIN\r\n"
        + call(1, "Embed", "s", text("one", ">"), order=">"))
    put("direct", "cancelled", external + b"CANCEL\r\nAUTH EXTERNAL 39393939\r\n")
    # An empty line, at which the parser of lines would panic.
    put("direct", "empty-line", b"\0\r\n\n")


def files() -> None:
    # Without a checksum, which a fuzzer would not get right.
    put("state", "whole", json.dumps(
        {"version": 1, "settings": {"vector_level": "high", "unknown": [1, 0.1, None, {"a": "b"}]}}).encode())
    put("state", "checked", b'{"version":1,"settings":{},"check":"08f44b07b5901a25"}')
    put("settings", "all", b"""vector_level = "low"
execution_provider = "cuda"
fallback = ["cpu"]
gpu_device = [0, 1]
precision = "auto"
expect_dimensions = 384
queue_tokens_max = 1000000
http_listen = "127.0.0.1:8080"
log = "info"

[models.all-MiniLM-L6-v2]
default_prompt = "query"
prompts = { query = "q: " }

[providers.remote]
endpoints = ["https://localhost:8000"]
protocol = "oip"

[providers.cuda]
cudnn_conv_algo_search = "DEFAULT"
use_tf32 = true
options = { prefer_nhwc = "1" }
\0VECTOR_LEVEL=medium\0THREADS=2\0FALLBACK=tensorrt,cuda\0CACHE_BYTES=64MiB""")
    put("settings", "wrong", b"vector_levle = 'low'\nthreads = -1\n[providers.cdua]\nx = 1\n\0LOG=\xff\0NONE=1")


def servers() -> None:
    put("answers-openai", "both-forms", json.dumps({"object": "list", "data": [
        {"index": 1, "embedding": [3, 4.5]}, {"embedding": "AACAPwAAAEA=", "index": 0}],
        "usage": {"total_tokens": 2}}).encode())
    put("answers-openai", "short", b'{"data":[{"index":0,"embedding":[1]}]}')
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}
    mask = {"name": "attention_mask", "datatype": "INT32", "shape": [-1, -1]}
    pooled = {"name": "embedding", "datatype": "FP32", "shape": [-1, 2]}
    states = {"name": "last_hidden_state", "datatype": "FP32", "shape": [-1, -1, 2]}
    told = lambda inputs, output: json.dumps({"name": "m", "inputs": inputs, "outputs": [output]})
    answer = lambda output, shape, data: json.dumps({"outputs": [
        {"name": output["name"], "datatype": "FP32", "shape": shape} | data]})
    put("answers-oip", "json", "\0".join([
        told([ids, mask], pooled), answer(pooled, [2, 2], {"data": [[1, 2], [3, 4]]})]).encode())
    put("answers-oip", "bytes", "\0".join([
        told([ids], states), answer(states, [2, 2, 2], {"parameters": {"binary_data_size": 32}})]).encode()
        + b"\0" + struct.pack("<8f", *range(8)))
    texts = {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}
    put("answers-oip", "texts", "\0".join([
        told([texts], pooled), answer(pooled, [2, 2], {"data": [1, 2, 3, 4]})]).encode())
    tensor = lambda name, kind, shape, *more: message(
        (1, name), (2, kind), *((3, side) for side in shape), *more)
    asked = message((4, tensor("input_ids", "INT32", [-1, -1])),
                    (5, tensor("embedding", "FP32", [-1, 2])))
    raw = message((5, tensor("embedding", "FP32", [2, 2])), (6, struct.pack("<4f", 1, 2, 3, 4)))
    put("answers-grpc", "raw", bytes([len(asked)]) + asked + raw)
    numbers = message((6, struct.pack("<4f", 1, 2, 3, 4)))
    contents = message((5, tensor("embedding", "FP32", [2, 2], (5, numbers))))
    put("answers-grpc", "contents", bytes([len(asked)]) + asked + contents)


for write in [tokenizer, worker, models, computed, callers, direct, files, servers]:
    write()
