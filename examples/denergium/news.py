"""Generated short news of four kinds, labelled like AG News, and as easy to classify."""

import random

__all__ = ["KINDS", "LENGTH", "VOCABULARY", "news"]

LENGTH = 24
"""Words of a piece."""

KINDS = {
    "world": "president minister treaty border election army embassy refugees vote summit",
    "sports": "match coach season goal league player final champion stadium medal",
    "business": "shares profit market bank merger prices quarter investors oil revenue",
    "technology": "software chip network phone researchers satellite internet browser robot code",
}
FILLER = (
    "the a of in on for with after before said says new first last week year people report today "
    "officials country company team group will was is has by from at"
)
WORDS = sorted({*FILLER.split(), *(word for words in KINDS.values() for word in words.split())})
VOCABULARY = len(WORDS) + 1
"""Word 0 is padding."""


def news(count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Return word numbers of `count` pieces, and the kind of each.

    A quarter of a piece's words are of its kind, and one in ten of those of another.
    """
    rng = random.Random(seed)
    number = {word: index + 1 for index, word in enumerate(WORDS)}
    kinds = [words.split() for words in KINDS.values()]
    pieces, labels = [], []
    for _ in range(count):
        label = rng.randrange(len(kinds))
        words = []
        for _ in range(LENGTH):
            topic = label if rng.random() < 0.9 else rng.randrange(len(kinds))
            words.append(rng.choice(kinds[topic] if rng.random() < 0.25 else FILLER.split()))
        pieces.append([number[word] for word in words])
        labels.append(label)
    return pieces, labels
