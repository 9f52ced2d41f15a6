"""sentence-transformers on the first GPU, in fp16, or on the CPU, in f32: one JSON object on stdout.

    peer.py any|cpu STORE LEVEL TEXTS…

For each file of texts the most texts per second, by way to compute attention and size of batch, and how
long one text takes by itself. What torch does with large matrices is measured beside it.
"""

import json
import statistics
import sys
import time
from pathlib import Path

MODELS = {
    "low": "paraphrase-MiniLM-L3-v2",
    "medium": "all-MiniLM-L6-v2",
    "high": "all-mpnet-base-v2",
}
ATTENTIONS = ("sdpa", "flash_attention_2", "eager")
BATCHES = (64, 256, 1024)
ROUNDS = 5
# Of a collection, on a CPU: all of them would take it an hour.
CPU_TEXTS = 64
CPU_ROUNDS = 1
# So many that the slowest of a hundred is not the slowest of all.
SINGLE_TEXTS = 300


def main() -> None:
    device, store, level, *files = sys.argv[1:]
    import torch

    on_gpu = device != "cpu" and torch.cuda.is_available()
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    collections = {Path(file).stem: Path(file).read_text().splitlines() for file in files}
    batches, rounds = BATCHES, ROUNDS
    if not on_gpu:
        collections = {name: texts[:CPU_TEXTS] for name, texts in collections.items()}
        batches, rounds = BATCHES[:1], CPU_ROUNDS
    figures = {name: {} for name in collections}
    refused = {}
    for attention in ATTENTIONS:
        try:
            model = load(Path(store) / MODELS[level], attention, on_gpu)
            for name, texts in collections.items():
                found = measure(model, texts, wait, (batches, rounds))
                if found["texts_per_s"] > figures[name].get("texts_per_s", 0):
                    figures[name] = {"attention": attention, **found}
        except Exception as error:  # not every model has every kind, nor every machine
            refused[attention] = str(error).strip().splitlines()[0] if str(error) else repr(error)
    if len(refused) == len(ATTENTIONS):
        sys.exit(refused[ATTENTIONS[0]])
    report = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "precision": "f16" if on_gpu else "f32",
        "product_per_s": product(torch, on_gpu, wait),
        "figures": figures,
        "refused": refused,
    }
    json.dump(report, sys.stdout)


def load(folder: Path, attention: str, on_gpu: bool):
    from sentence_transformers import SentenceTransformer

    device = "cuda" if on_gpu else "cpu"
    kinds = {"attn_implementation": attention}
    model = SentenceTransformer(str(folder), device=device, model_kwargs=kinds)
    return model.half() if on_gpu else model


def measure(model, texts, wait, how) -> dict:
    batches, rounds = how

    def timed(texts, batch):
        wait()
        start = time.perf_counter()
        model.encode(texts, batch_size=batch, convert_to_numpy=True, show_progress_bar=False)
        wait()
        return time.perf_counter() - start

    best = {"texts_per_s": 0}
    for batch in batches:
        # The first round warms up.
        times = [timed(texts, batch) for _ in range(rounds + 1)]
        rate = len(texts) / statistics.median(times[1:])
        if rate > best["texts_per_s"]:
            best = {"texts_per_s": rate, "batch": batch}
    most = model.max_seq_length
    tokens = sum(min(most, len(ids)) for ids in model.tokenizer(texts)["input_ids"])
    best["tokens_per_s"] = best["texts_per_s"] * tokens / len(texts)
    single = sorted(timed(text, 1) * 1e3 for text in texts[:SINGLE_TEXTS])
    best["p50_ms"] = single[len(single) // 2]
    best["p99_ms"] = single[len(single) * 99 // 100]
    return best


def product(torch, on_gpu: bool, wait) -> float:
    """Operations per second of a product of square matrices."""
    side = 8192 if on_gpu else 1024
    kind = torch.float16 if on_gpu else torch.float32
    device = "cuda" if on_gpu else "cpu"
    one, other = (torch.randn(side, side, dtype=kind, device=device) for _ in range(2))
    times = []
    for _ in range(20):
        wait()
        start = time.perf_counter()
        one @ other
        wait()
        times.append(time.perf_counter() - start)
    return 2 * side**3 / statistics.median(times)


main()
