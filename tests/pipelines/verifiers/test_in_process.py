"""One row in this process: what a verifier of somebody's own may return."""

from __future__ import annotations

import pytest
import toys

from pipelines.base import plugins
from pipelines.base.errors import RecipeError
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.recipe.settings import Source
from pipelines.verifiers import verify


@pytest.fixture
def named(tmp_path, monkeypatch):
    """The name of a verifier in a new file that has this text."""
    monkeypatch.chdir(tmp_path)

    def write(file, text):
        (tmp_path / file).write_text(text)
        plugins.activate([f"verifiers=./{file}"])
        return f"./{file}"

    return write


def test_what_is_no_verdict_ends_the_run_with_its_line(named):
    name = named("floats.py", "\n\ndef verify(completion, answer, info):\n    return 1.0\n")
    with pytest.raises(
        RecipeError, match=r"verifier: \./floats\.py returned a float \(.*floats\.py:3\), and .* Return Verdict\("
    ):
        verify(name, "x", "x", {})


def test_what_it_raises_is_in_the_reason_of_a_quarantined_row(named):
    name = named("raises.py", "def verify(completion, answer, info):\n    return info['unit']\n")
    source = Source(kind="file", path=str(toys.ROOT / "x.jsonl"), verifier=name)
    with pytest.raises(
        RowError, match=r"does not verify itself with \./raises\.py.*'4' is verifier_failed \(KeyError\)"
    ):
        to_problem({"prompt": "2 + 2?", "answer": "4"}, source, self_check=True)
