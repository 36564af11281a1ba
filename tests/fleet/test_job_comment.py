"""Comments are hostile text: read strictly, or refused in words."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wattloop.fleet.job_comment import (
    FIELDS,
    FLAGS,
    LONGEST_COMMENT,
    LONGEST_TAG,
    MOST_GPUS,
    JobComment,
    read_comment,
)

KEYS = [*FIELDS, *FLAGS, "", "nice", "priority"]


def test_all_fields_are_read() -> None:
    """Every field of the grammar arrives with its unit."""
    stated, refusal = read_comment(
        "night run wattloop:model=resnet50,batch=64|128,samples=1.5e6,gpus=1|2|4,precision=bf16,"
        "seq=512,caps=0.6|80%|1,types=a100|h100,deadline=2h,low-power,spread please"
    )
    assert refusal == ""
    assert stated == JobComment(
        model="resnet50",
        batches=(64, 128),
        work=1.5e6,
        gpus=(1, 2, 4),
        precision="bf16",
        sequence=512,
        caps=(0.6, 0.8, 1.0),
        types=("a100", "h100"),
        deadline_s=7200.0,
        low_power=True,
        may_spread=True,
    )


@pytest.mark.parametrize(
    "text", ["", "night run", "xwattloop:model=gpt2", "WATTLOOP:x", "wattloop"]
)
def test_a_comment_without_a_tag_is_nobodys_fault(text: str) -> None:
    """Neither stated nor refused."""
    assert read_comment(text) == (None, "")


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("", "unknown field ''"),
        ("modell=gpt2", "did you mean 'model'?"),
        ("model", "has no value"),
        ("low-power=yes", "takes no value"),
        ("batch=8,batch=9", "batch is stated twice"),
        ("model=../../etc/shadow", "write a name"),
        ("model=/etc/shadow", "write a name"),
        ("batch=0", "from 1 to 65536"),
        ("batch=1.5", "whole number"),
        ("batch=1e400", "from 1 to 65536"),
        ("samples=-1", "write a number"),
        ("samples=nan", "write a number"),
        ("samples=inf", "write a number"),
        ("samples=1_000", "write a number"),
        ("gpus=1||2", "write a number"),
        (f"gpus={MOST_GPUS + 1}", "from 1 to 4096"),
        ("gpus=" + "|".join("1" * 17), "at most 16 choices"),
        ("precision=fp8", "choose one of"),
        ("caps=0.01", "shares of the GPU's power limit"),
        ("caps=101%", "write a number from 0 to 100"),
        ("caps=%", "write a number"),
        ("deadline=2", "write a time"),
        ("deadline=0s", "above 0"),
        ("deadline=999999999d", "at most a year"),
        ("model=gpt2;rm", "characters other than"),
        ("model=$(reboot)", "characters other than"),
        ("model='gpt2'", "characters other than"),
        ("batch=１２", "characters other than"),
        ("model=gpt2\x00", "characters other than"),
        ("model=" + "a" * LONGEST_TAG, "longer than 1,024"),
    ],
)
def test_what_is_wrong_is_refused_in_words(tag: str, said: str) -> None:
    """Nothing of the tag counts, and the user can see why."""
    stated, refusal = read_comment(f"wattloop:{tag}")
    assert stated is None
    assert said in refusal
    assert len(refusal) < 250


def test_two_tags_are_refused() -> None:
    """It would be unclear which one counts."""
    assert "has 2 tags" in read_comment("wattloop:gpus=1 wattloop:gpus=2")[1]


def test_a_long_comment_is_not_read() -> None:
    """100 kB do not cost more than looking at their length."""
    assert "not read" in read_comment("x" * (LONGEST_COMMENT + 1))[1]


@given(st.text(max_size=300))
@example("\ud800 wattloop:model=\ud800")
@example("wattloop:batch=" + "9" * 1000)
def test_no_text_breaks_it(text: str) -> None:
    """Any text at all: stated or refused, never an exception; refusals are plain and short."""
    for tried in (text, f"wattloop:{text}", f"x wattloop:model=gpt2,{text}"):
        stated, refusal = read_comment(tried)
        assert stated is None or refusal == ""
        assert refusal.isascii() and refusal.isprintable() and len(refusal) < 400


@given(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS),
            st.text(alphabet="0123456789abe.|%+-/_hdms", max_size=30),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_whatever_is_accepted_is_within_bounds(fields: list[tuple[str, str, bool]]) -> None:
    """Numbers that come out can be computed with: finite, positive, not too large."""
    tag = ",".join(f"{key}={value}" if valued else key for key, value, valued in fields)
    stated, _ = read_comment(f"wattloop:{tag}")
    if stated is None:
        return
    assert all(1 <= each <= MOST_GPUS for each in stated.gpus)
    assert all(1 <= each <= 65_536 for each in stated.batches)
    assert all(0.1 <= each <= 1 for each in stated.caps)
    assert stated.work is None or (math.isfinite(stated.work) and 1 <= stated.work <= 1e15)
    assert stated.deadline_s is None or 0 < stated.deadline_s <= 366 * 86_400
