"""Scripts are read, never run."""

from __future__ import annotations

import pytest

from pipelines.base.errors import UserError
from tasks.importing import shell


def test_variables_arithmetic_and_continued_lines():
    text = 'export a=2\nb=$((a ** 2))\nc=$(( (a + 3) * 4 ))\nrun --x ${a} y="$c z" $b \\\n  w=3 # no\n# run nothing\nd=`touch x`\n'
    assert shell.commands(text, "x")[1] == [
        "run",
        "--x",
        "2",
        "y=20 z",
        "$b",
        "w=3",
    ]  # powers are no integer arithmetic here


def test_a_quote_may_go_over_lines():
    assert shell.commands("run x='a\nb' y\n", "x") == [["run", "x=a\nb", "y"]]


def test_nothing_is_executed(tmp_path):
    shell.commands(f"x=$(touch {tmp_path}/made)\nrun `touch {tmp_path}/made` $((1/0)) $((9 ** 9 ** 9))\n", "x")
    assert not any(tmp_path.iterdir())


def test_a_quote_that_is_never_closed():
    with pytest.raises(UserError, match="Close the quote"):
        shell.commands("run 'x\nmore\n", "run.sh")
