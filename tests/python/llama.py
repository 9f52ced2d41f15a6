"""llama.cpp's server, which serves a model of ours by OpenAI's `/v1/embeddings`.

Started by the tests with the model's folder, a file for its form of the model, and a port. The server is
llama.cpp's own program, in the package xllamacpp; what is written here is the model in its format.
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import xllamacpp

# Names of tensors in a checkpoint of BERT, and what llama.cpp calls them.
MODEL = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
SPECIAL = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "sep", "[MASK]": "mask"}


def tensors(path):
    """Names and 32-bit floats of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8 : 8 + size]).items():
        if about.get("dtype") == "F32":
            start, end = (8 + size + offset for offset in about["data_offsets"])
            yield name, np.frombuffer(data[start:end], "<f4").reshape(about["shape"])


def named(name):
    """What llama.cpp calls a tensor; nothing for one that it has no use for."""
    stem, kind = name.rsplit(".", 1)
    if stem in MODEL:
        return f"{MODEL[stem]}.{kind}"
    if not stem.startswith("encoder.layer."):
        return None
    layer, part = stem.removeprefix("encoder.layer.").split(".", 1)
    return f"blk.{layer}.{LAYER[part]}.{kind}"


def convert(folder, path):
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.get)
    plain = [word[2:] if word.startswith("##") else "\u2581" + word for word in words]
    writer.add_tokenizer_model("bert")
    writer.add_token_list([w if w in SPECIAL else p for w, p in zip(words, plain)])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if word in SPECIAL else normal for word in words])
    writer.add_token_type_count(config["type_vocab_size"])
    for word, role in SPECIAL.items():
        getattr(writer, f"add_{role}_token_id")(vocabulary[word])
    for name, tensor in tensors(folder / "model.safetensors"):
        if named(name):
            writer.add_tensor(named(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder, path, port = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    convert(folder, path)
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.n_ctx = 2048
    params.n_batch = params.n_ubatch = 2048
    params.n_parallel = 4
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    print(f"answered at {server.listening_address}", file=sys.stderr, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
