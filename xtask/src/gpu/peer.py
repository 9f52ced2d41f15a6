"""Texts per second of sentence-transformers in fp16 on the first GPU: one JSON object on stdout."""

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
BATCHES = (64, 256, 1024)
ROUNDS = 5


def main() -> None:
    store, level, *files = sys.argv[1:]
    import torch
    from sentence_transformers import SentenceTransformer

    if not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    model = SentenceTransformer(str(Path(store) / MODELS[level]), device="cuda")
    model.half()
    figures = {}
    for file in files:
        texts = Path(file).read_text().splitlines()
        best = {}
        for batch in BATCHES:
            rates = []
            # The first round warms up.
            for _ in range(ROUNDS + 1):
                torch.cuda.synchronize()
                start = time.perf_counter()
                model.encode(texts, batch_size=batch, convert_to_numpy=True)
                torch.cuda.synchronize()
                rates.append(len(texts) / (time.perf_counter() - start))
            rate = statistics.median(rates[1:])
            if rate > best.get("texts_per_s", 0):
                best = {"batch": batch, "texts_per_s": rate}
        figures[Path(file).stem] = best
    device = torch.cuda.get_device_name()
    json.dump({"torch": torch.__version__, "device": device, "figures": figures}, sys.stdout)


main()
