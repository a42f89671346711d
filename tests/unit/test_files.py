import hashlib
from pathlib import Path

import pytest

from overbrainer_airflow.export.files import sha256_file, write_whole


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_the_digest_of_a_file_is_that_of_all_its_blocks(size: int, tmp_path: Path) -> None:
    content = bytes(n % 251 for n in range(1024)) * (size // 1024 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()


def test_a_file_is_written_in_utf_8_with_the_line_ends_it_was_given(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", "caf\u00e9\n\u28ff\n")
    assert (tmp_path / "file").read_bytes() == b"caf\xc3\xa9\n\xe2\xa3\xbf\n"


def test_a_reader_of_the_old_file_keeps_the_whole_of_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("the old one")
    with path.open() as reader:
        write_whole(path, "new")
        assert reader.read() == "the old one"
    assert path.read_text() == "new"


def test_what_an_interrupted_writer_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_text("a longer half of it")
    write_whole(tmp_path / "file", "whole")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "whole"}
