"""Where a sample was full, as of a document that was cut, its last token was to foretell the first
one of the next sample, which is another document's.
"""

from __future__ import annotations

import pytest

from penstock.tokenize._samples import Samples


@pytest.mark.parametrize("packs", [True, False])
def test_the_first_token_of_a_sample_counts_nowhere(packs):
    tokens, counts = [], []

    def put(some, which):
        tokens.extend(some)
        counts.extend(which)

    samples = Samples(put, 4, 0, packs=packs, cuts=True)
    samples.add("c:1", [1, 2, 3, 4, 5, 0], None)
    samples.add("c:2", [6, 7, 0], [True, True, True])
    samples.add("c:3", [8, 9, 0], [True, False, False])
    samples.finish()
    assert tokens == [1, 2, 3, 4, 6, 7, 0, 0, 0]
    assert counts == [False, True, True, True, False, True, True, False, False]
