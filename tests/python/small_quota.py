"""The installed package `op-dbus` where a user may have 20,000 tokens in flight.

    small_quota.py BUS-ADDRESS
"""

import sys
import warnings

import numpy as np

from op_dbus import Embedder, errors

TEXTS = [f"{number} ".ljust(300, "x") for number in range(2000)]


def lists_are_sent_in_smaller_parts(embedder: Embedder) -> None:
    embeddings = embedder.embed(TEXTS)
    assert embeddings.truncated == tuple(range(2000))
    for index in (0, 999, 1999):
        alone = embedder.embed([TEXTS[index]]).vectors[0]
        assert np.allclose(embeddings.vectors[index], alone, atol=1e-5), index
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ranks = embedder.rank(TEXTS[7], TEXTS)
    assert [str(one.message)[:15] for one in told] == ["2001 of 2001 te"], told
    assert len(ranks) == 2000 and ranks[0][0] == 7, ranks[0]
    counts = embedder.count_tokens(["x" * 1000] * 2000)
    assert len(counts) == 2000 and len(set(counts)) == 1


def a_text_that_alone_is_too_large_is_refused(embedder: Embedder) -> None:
    try:
        embedder.embed(["one", "two", "x" * 50_000], truncate="mean")
    except errors.TooLarge as error:
        assert str(error).startswith("text 2: the call's share of its user's quota"), error
    else:
        raise AssertionError("not refused")


with Embedder(sys.argv[1]) as embedder:
    lists_are_sent_in_smaller_parts(embedder)
    a_text_that_alone_is_too_large_is_refused(embedder)
