import pytest

from optfuse.cache import digest, store
from optfuse.errors import OutputError
from optfuse.runtime.loader import load_source


def test_same_text_is_imported_once_from_a_file_named_by_it(tmp_path):
    text = "VALUE = [1]\n"
    module = load_source(text, tmp_path)
    assert load_source(text, tmp_path) is module
    assert module.__file__ == str(tmp_path / f"{digest(text)}.py")
    assert load_source("VALUE = [2]\n", tmp_path).VALUE == [2]


def test_a_file_that_was_tampered_with_is_replaced(tmp_path):
    text = "VALUE = 3\n"
    (tmp_path / f"{digest(text)}.py").write_text("VALUE = 'stranger'\n")
    assert load_source(text, tmp_path).VALUE == 3


def test_nothing_is_left_of_a_module_that_fails(tmp_path):
    text = "raise ValueError('half way')\n"
    for _ in range(2):
        with pytest.raises(ValueError, match="half way"):
            load_source(text, tmp_path)


def test_unwritable_folder_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="XDG_CACHE_HOME"):
        store("x", tmp_path / "file" / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
