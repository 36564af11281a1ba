"""The grammar of a job's comment.

    --comment="wattloop:model=resnet-50,batch=128,samples=1e6,gpus=1|2|4,deadline=2h,low-power"

A tag begins with `wattloop:`, at the start or after a blank, and ends at the next blank; the rest
of the comment is somebody else's. Fields are `key=value` or a flag, joined by commas, in any order;
choices are joined by `|`. One field that is wrong makes the whole tag void: half of what a user
said may mean the opposite.
"""

import re

from wattloop.fleet.job_tag.stated import Stated, with_field

__all__ = ["LONGEST_COMMENT", "LONGEST_TAG", "read_comment"]

LONGEST_COMMENT = 65_536
LONGEST_TAG = 1_024
TAG = re.compile(r"(?:^|(?<=\s))wattloop:(\S*)")
ALLOWED = re.compile(r"[A-Za-z0-9._/|=,%+-]*", re.ASCII)


def read_comment(text: str) -> tuple[Stated | None, str]:
    """What a comment states, and why it was refused.

    Returns:
        What is stated, None without a valid tag; and the refusal in words, empty without one.
        A comment that has no tag is no fault of anybody's.
    """
    if len(text) > LONGEST_COMMENT:
        return None, f"comment: longer than {LONGEST_COMMENT:,} characters; not read"
    tags = TAG.findall(text)
    if not tags:
        return None, ""
    if len(tags) > 1:
        return None, f"comment: has {len(tags)} tags that begin with wattloop:; write one"
    return _read_tag(tags[0])


def _read_tag(tag: str) -> tuple[Stated | None, str]:
    if len(tag) > LONGEST_TAG:
        return None, f"comment: the tag is longer than {LONGEST_TAG:,} characters"
    if ALLOWED.fullmatch(tag) is None:
        return (
            None,
            "comment: the tag has characters other than letters, digits and . _ / | = % + -",
        )
    stated, seen = Stated(), set()
    for item in tag.split(","):
        key, equals, value = item.partition("=")
        if key in seen:
            return None, f"comment: {key[:40]} is stated twice"
        seen.add(key)
        try:
            stated = with_field(stated, key, value if equals else None)
        except ValueError as error:
            return None, f"comment: {error}"
    return stated, ""
