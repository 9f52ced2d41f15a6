"""Clients of the HTTP gateway that others wrote: embeds the texts on standard input with each.

    PYTHONPATH=<openai, langchain-openai> http_clients.py BASE-URL < texts.json
"""

import asyncio
import json
import sys

import openai
from langchain_openai import OpenAIEmbeddings

url, texts = sys.argv[1], json.load(sys.stdin)
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)


def vectors(reply):
    return [datum.embedding for datum in reply.data]


async def embed_async():
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as other:
        return vectors(await other.embeddings.create(input=texts, model="medium"))


def refused(**asked):
    try:
        client.embeddings.create(**asked)
    except openai.APIStatusError as error:
        return type(error).__name__, error.message
    raise SystemExit(f"not refused: {asked}")


langchain = OpenAIEmbeddings(
    base_url=url,
    api_key="none",
    model="all-MiniLM-L6-v2",
    check_embedding_ctx_length=False,
)
# Without that setting langchain sends token ids of OpenAI's vocabulary, as this does.
foreign = refused(input=[[9906, 1917, 100257]], model="default")
said = {
    # The client asks for base64 by itself.
    "openai": vectors(client.embeddings.create(input=texts, model="default")),
    "openai floats": vectors(
        client.embeddings.create(input=texts, model="default", encoding_format="float")
    ),
    "openai async": asyncio.run(embed_async()),
    "langchain": langchain.embed_documents(texts),
    "models": [model.id for model in client.models.list().data],
    "unknown model": refused(input="one", model="text-embedding-3-small")[0],
    "foreign tokens": foreign[0],
    "foreign tokens said": foreign[1],
}
assert langchain.embed_query(texts[0]) == said["langchain"][0]
json.dump(said, sys.stdout)
