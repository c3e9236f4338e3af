"""The Python API's page and notebooks do what they say: every example and every cell is executed, while an event loop runs."""

from __future__ import annotations

import ast
import asyncio
import doctest
import json
import re

import databases
import plugin_toys
import pytest
import toys

from whetstone_rlvr import UserError

PAGE = toys.ROOT / "docs" / "api.md"
NOTEBOOKS = sorted((toys.ROOT / "docs" / "notebooks").glob("*.ipynb"))
FENCED = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def folder(home, tmp_path, monkeypatch):
    """An empty working folder, and a project folder with empty databases."""
    databases.prepare(home)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    with plugin_toys.forgotten():
        yield work


def in_a_loop(work):
    """What a function returns that is called while an event loop runs in this thread."""

    async def call():
        return work()

    return asyncio.run(call())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_examples_of_the_page(folder):
    blocks = "\n".join(FENCED.findall(PAGE.read_text()))
    test = doctest.DocTestParser().get_doctest(blocks, {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE
    outcome = in_a_loop(lambda: doctest.DocTestRunner(optionflags=flags).run(test, out=said.append))
    assert outcome.failed == 0 and outcome.attempted > 20, "".join(said)


def cells(notebook):
    """The code of each cell of a notebook."""
    body = json.loads(notebook.read_text())
    assert (body["nbformat"], body["metadata"]["language_info"]["name"]) == (4, "python")
    code = [cell for cell in body["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "stored without outputs"
    return ["".join(cell["source"]) for cell in code]


def execute(code, names):
    """Run a cell as a notebook does: its last expression is shown."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        assert repr(shown) and (not hasattr(shown, "_repr_html_") or shown._repr_html_())


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook(notebook, folder, capfd):
    names: dict = {}

    def run_all():
        for number, code in enumerate(cells(notebook), 1):
            try:
                execute(code, names)
            except Exception as error:
                raise AssertionError(f"cell {number}: {type(error).__name__}: {error}\n{code}") from error

    in_a_loop(run_all)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", ""), "nothing prints"
    assert any(isinstance(each, names["whetstone"].Run) for each in names.values())


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "method_of_your_own"]
    assert issubclass(UserError, ValueError) and all(len(cells(path)) > 5 for path in NOTEBOOKS)
