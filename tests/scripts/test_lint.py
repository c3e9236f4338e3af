"""The rules of scripts/lint notice what they are for, and let the rest pass."""

from __future__ import annotations

import pytest

from scripts.lint import mirror, planted, sizes, words


def test_the_check_sees_every_kind_of_name():
    source = "def _said(given, *more):\n    mine: int = 1\n    self.owed, x = 1, 2\n    return [one for one in x]\nclass Mix: pass\n"
    refused = {line.split()[2] for line in words.refused(source, set())}
    assert refused == {"_said", "given", "more", "mine", "owed", "one", "Mix"}
    assert words.refused(source, {"said", "given", "more", "mine", "owed", "one", "mix"}) == []


def test_dialect_is_seen_across_lines_and_not_inside_words():
    assert words.dialect("it\n# goes on, as\n# ever") == {"goes on": "continues", "as ever": "as usual"}
    assert words.dialect("forgoes one") == {}


@pytest.mark.parametrize("head", ["def f():\n", "async def f():\n"])
def test_a_function_may_have_60_lines_after_its_docstring(head):
    doc = '    """A\n    docstring."""\n'
    assert list(sizes.too_long("a.py", head + doc + "    x = 1\n" * 60)) == []
    assert list(sizes.too_long("a.py", head + doc + "    x = 1\n" * 61)) == ["a.py:1: f has 61 lines, more than 60"]


def test_a_file_may_have_500_lines(monkeypatch):
    assert list(sizes.too_long("a.py", "x = 1\n" * 500)) == []
    assert list(sizes.too_long("a.py", "x = 1\n" * 501)) == ["a.py: 501 lines, more than 500"]
    monkeypatch.setitem(sizes.LONG_FILES, "a.py", "a table")
    assert list(sizes.too_long("a.py", "x = 1\n" * 501)) == []


def test_bugs_that_cannot_be_planted_are_named():
    test = "tests/scripts/test_lint.py::test_a_file_may_have_500_lines"
    bugs = {
        "fine": ("scripts/lint/sizes.py", "FILE_LINES, FUNCTION_LINES = 500, 60", "", [test]),
        "twice": ("scripts/lint/sizes.py", "FUNCTION_LINES", "", [test]),
        "no such file": ("scripts/lint/none.py", "x", "y", [test]),
        "no such test": ("scripts/lint/sizes.py", "FILE_LINES, FUNCTION_LINES = 500, 60", "", [f"{test}_of_all"]),
    }
    assert [line.split(": ")[1] for line in planted.stale(bugs)] == ["twice", "no such file", "no such test"]


def test_where_a_test_may_stand(tmp_path):
    for path in ("pipelines/sft/train.py", "pipelines/sft/_rows.py", "pipelines/sft/loss/dft.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "tests" / "pipelines" / "sft").mkdir(parents=True)
    for name in ("train", "train_tools", "rows", "loss", "sft", "tools", "trainer"):
        (tmp_path / "tests" / "pipelines" / "sft" / f"test_{name}.py").touch()
    refused = [line.partition(": ")[0] for line in mirror.check(tmp_path)]
    assert refused == [f"tests/pipelines/sft/test_{name}.py" for name in ("tools", "trainer")]
