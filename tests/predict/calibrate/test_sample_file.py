"""Promises of the file a collection writes."""

import gzip

import pytest

from wattloop.core.errors import ConfigError
from wattloop.predict.calibrate.collection import SampleFile, records


def test_a_file_is_not_written_over(tmp_path):
    """A second command does not overwrite minutes on a GPU."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"record":"machine","gpu":"x"}\n')
    with pytest.raises(ConfigError, match="--resume"):
        SampleFile(path, resume=False)


def test_each_record_is_there_at_once(tmp_path):
    """A killed collection loses only its current case."""
    file = SampleFile(tmp_path / "a.jsonl", resume=False)
    file.write({"record": "kernel", "case": "one"})
    assert [row["case"] for row in records(tmp_path / "a.jsonl")] == ["one"]
    file.close()


def test_half_a_line_at_the_end_is_left_out(tmp_path):
    """A torn line is not read, and does not affect later lines."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"record":"kernel","case":"one"}\n{"record":"ker')
    assert len(list(records(path))) == 1
    file = SampleFile(path, resume=True)
    assert file.done == {"one"}
    file.write({"record": "kernel", "case": "two"})
    file.close()
    assert [row["case"] for row in records(path)] == ["one", "two"]


def test_compressed_files_are_read(tmp_path):
    """The project's own samples are compressed."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"record":"host"}\n'))
    assert list(records(path)) == [{"record": "host"}]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}\n", "a.jsonl:1: no field 'record'"),
        ('{"record":"host"}\nnonsense\n{"record":"host"}\n', "a.jsonl:2: not a JSON record"),
    ],
)
def test_a_damaged_file_is_told_with_its_line(tmp_path, text, told):
    """The error has the line and the remedy."""
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        list(records(path))


def test_a_file_that_is_not_gzip_is_reported(tmp_path):
    """A file name may promise compression that its content lacks."""
    path = tmp_path / "a.jsonl.gz"
    path.write_text("plain")
    with pytest.raises(ConfigError, match="cannot be read"):
        list(records(path))


@pytest.mark.parametrize("text", ["notes of mine", "one\ntwo", '{"a": 1}\nnot ours\n'])
def test_a_file_that_is_not_a_calibration_keeps_every_byte(tmp_path, text):
    """A wrong `-o notes.txt --resume` loses nothing."""
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"notes\.txt:1: "):
        SampleFile(path, resume=True)
    assert path.read_text() == text


def test_lines_are_not_added_to_a_compressed_file(tmp_path):
    """They would spoil it; it is refused as it is."""
    path = tmp_path / "a.jsonl.gz"
    whole = gzip.compress(b'{"record":"kernel","case":"one"}\n')
    path.write_bytes(whole)
    with pytest.raises(ConfigError, match=r"ends in \.jsonl"):
        SampleFile(path, resume=True)
    assert path.read_bytes() == whole


def test_a_case_whose_package_was_missing_is_tried_again(tmp_path):
    """`pip install` and --resume run it; a case that failed otherwise stays failed."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"record":"step","case":"t5","error":"ModuleNotFoundError: No module named hf"}\n'
        '{"record":"step","case":"vgg","error":"OutOfMemoryError: 9 GiB"}\n'
    )
    file = SampleFile(path, resume=True)
    file.close()
    assert file.done == {"vgg"}
