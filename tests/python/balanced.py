"""OpenAI's client under load: requests at random times, whether or not the last ones are answered, and a
line in JSON for each that has ended.

    OPENAI_API_KEY=<key> PYTHONPATH=<openai> balanced.py BASE-URL RATE TEXTS-MAX

RATE is requests per second, and a request has 1 to TEXTS-MAX texts. A time counts from when the request was
due. It ends with standard input, when the requests under way have ended.
"""

import asyncio
import json
import random
import sys
import time

import openai

url, rate, texts_max = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
texts = [f"text {number} of those that several gateways embed in turn" for number in range(100, 200)]
# The vector of a text when it came first: it must never be another one.
vectors: dict[str, str] = {}


async def request(client, due, wanted):
    said = {"texts": len(wanted), "retries": 0, "wrong": 0, "error": None}
    try:
        # Left as it came: decoding would be the client's own time.
        raw = await client.embeddings.with_raw_response.create(
            model="default", input=wanted, encoding_format="base64"
        )
        found = [datum.embedding for datum in raw.parse().data]
        said["retries"] = raw.retries_taken
        said["wrong"] = abs(len(found) - len(wanted))
        for text, vector in zip(wanted, found):
            said["wrong"] += vectors.setdefault(text, vector) != vector
    except openai.OpenAIError as error:
        said["error"] = f"{type(error).__name__}: {error}"
    said["ms"] = (time.perf_counter() - due) * 1e3
    print(json.dumps(said), flush=True)


async def main():
    chance = random.Random(1)
    ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with openai.AsyncOpenAI(base_url=url, timeout=60) as client, asyncio.TaskGroup() as requests:
        due = time.perf_counter()
        while not ending.done():
            due += chance.expovariate(rate)
            await asyncio.sleep(due - time.perf_counter())
            wanted = chance.choices(texts, k=chance.randint(1, texts_max))
            requests.create_task(request(client, due, wanted))


asyncio.run(main())
