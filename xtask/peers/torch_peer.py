"""sentence-transformers on torch."""

import sentence_transformers
import torch


class Library:
    def __init__(self, batcher, work, precision):
        versions = f"{sentence_transformers.__version__}, torch {torch.__version__}"
        self.name = f"sentence-transformers {versions}"
        kinds = {"f32": torch.float32, "bf16": torch.bfloat16}
        self.model = sentence_transformers.SentenceTransformer(
            str(batcher.model), device="cpu", model_kwargs={"torch_dtype": kinds[precision]}
        ).eval()

    def open(self, streams, threads):
        def run(batch):
            # Of the calling thread alone.
            torch.set_num_threads(threads)
            ids, mask = batch.padded()
            with torch.inference_mode():
                features = {
                    "input_ids": torch.from_numpy(ids),
                    "attention_mask": torch.from_numpy(mask),
                }
                return self.model(features)["sentence_embedding"].float().numpy()

        return [run] * streams

    def own(self, texts):
        """As the documentation calls it: batches of 32, sorted by characters."""
        return self.model.encode(texts, show_progress_bar=False)
