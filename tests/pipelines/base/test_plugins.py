"""Methods from somebody's own file or module, through the door that the project's papers use."""

from __future__ import annotations

import textwrap

import pytest
import toys

from pipelines.base import plugins
from pipelines.base.errors import RecipeError, UserError
from pipelines.base.user_modules import import_file
from pipelines.contract import catalogue
from pipelines.contract.columns import COLUMNS
from pipelines.recipe.check import check_stage
from pipelines.recipe.read import read_recipe
from tasks import keys

METHOD = """
from pipelines.contract.catalogue import method

@method(paper="folklore", title="Rewards as they are, times a factor", checked="closed form")
def scaled(reward, *, factor: float = 2.0):
    \"\"\"`factor * reward`.\"\"\"
    return factor * reward

PARTS = {"rlvr.advantage": {"%s": scaled}}
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """Each test begins and ends with the installed plug-ins alone, and searches no other test's folder."""
    before, columns = dict(plugins._named), dict(COLUMNS)
    yield
    plugins._named.clear()
    plugins._named.update(before)
    COLUMNS.clear()
    COLUMNS.update(columns)
    plugins.origins.cache_clear()
    catalogue.load.cache_clear()


def write(path, text):
    path.write_text(textwrap.dedent(text))
    return path


def test_a_single_file_brings_a_method(tmp_path):
    file = write(tmp_path / "mine.py", METHOD % "scaled_a")
    recipe = read_recipe(toys.recipe(tmp_path), [f"plugins=[{file}]", "rlvr.advantage={kind: scaled_a, factor: 3}"])
    assert "scaled_a" in catalogue.names("rlvr.advantage")
    bound = catalogue.bind("rlvr.advantage", {"kind": "scaled_a", "factor": 3})
    assert bound({"reward": 0.5}) == 1.5 and bound.needs == ("reward",)
    check_stage(recipe.node("rlvr"))
    with pytest.raises(RecipeError, match=r"rlvr\.advantage\.factr: no such setting"):
        catalogue.bind("rlvr.advantage", {"kind": "scaled_a", "factr": 3})


def test_a_part_brings_its_own_rule(tmp_path):
    rule = """
def pairs(part, bound, node):
    if node.settings.group_size < part.settings["factor"] or not bound["shaping"] == []:
        raise RecipeError(f"{part.slot}: {part.name} wants pairs, and advantage is {bound['advantage'].name}. Raise group_size.")
"""
    text = "from pipelines.base.errors import RecipeError\n" + rule + METHOD % "scaled_d"
    file = write(tmp_path / "mine.py", text.replace('checked="closed form"', 'checked="closed form", check=pairs'))
    chosen = [f"plugins=[{file}]", "rlvr.advantage={kind: scaled_d, factor: 3}"]
    check_stage(read_recipe(toys.recipe(tmp_path), [*chosen, "rlvr.group_size=3"]).node("rlvr"))
    with pytest.raises(RecipeError, match=r"rlvr\.advantage: scaled_d wants pairs, and advantage is scaled_d"):
        check_stage(read_recipe(toys.recipe(tmp_path), [*chosen, "rlvr.group_size=2"]).node("rlvr"))


def test_its_code_is_in_the_key_of_the_stage_that_uses_it(tmp_path):
    file = write(tmp_path / "mine.py", METHOD % "scaled_b")
    path = toys.recipe(tmp_path)

    def key(*overrides):
        recipe = read_recipe(path, [f"plugins=[{file}]", *overrides])
        return keys.stage_key(keys.key_parts(recipe, "rlvr", {"data": "d"}))

    other, used = key(), key("rlvr.advantage=scaled_b")
    write(file, METHOD % "scaled_b" + "\n# a comment\n")
    assert key("rlvr.advantage=scaled_b") == used
    write(file, (METHOD % "scaled_b").replace("factor * reward", "reward * factor"))
    assert key("rlvr.advantage=scaled_b") != used and key() == other
    recipe = read_recipe(path, [f"plugins=[{file}]", "rlvr.advantage=scaled_b"])
    assert "plugin/mine.py" in keys.key_parts(recipe, "rlvr", {"data": "d"})["files"]


def test_two_files_of_one_name_are_both_in_the_key(tmp_path):
    files = []
    for folder, text in (
        ("first", METHOD % "scaled_e"),
        ("second", (METHOD % "scaled_f").replace("advantage", "shaping")),
    ):
        (tmp_path / folder).mkdir()
        files.append(write(tmp_path / folder / "mine.py", text))
    path = toys.recipe(tmp_path)
    chosen = [f"plugins=[{', '.join(map(str, files))}]", "rlvr.advantage=scaled_e", "rlvr.shaping=[scaled_f]"]

    def key():
        return keys.stage_key(keys.key_parts(read_recipe(path, chosen), "rlvr", {"data": "d"}))

    seen = {key()}
    for file in files:
        write(file, file.read_text().replace("factor * reward", "reward * factor"))
        seen.add(key())
    assert len(seen) == 3


def test_an_installed_plug_in_cannot_stand_in_for_the_core_either(tmp_path, monkeypatch):
    module = import_file(write(tmp_path / "installed.py", METHOD % "grpo"))
    monkeypatch.setattr(plugins, "_modules", lambda: [("installed", module, "a-package")])
    plugins.origins.cache_clear()
    with pytest.raises(
        UserError, match=r"installed brings rlvr\.advantage: grpo, and there is a method grpo in the core"
    ):
        plugins.origins()


def test_a_module_and_its_own_column(tmp_path, monkeypatch):
    write(
        tmp_path / "my_methods.py",
        """
        from pipelines.contract.catalogue import method
        from pipelines.contract.columns import Column, Phase
        from pipelines.contract.provider import Provider

        COLUMNS = {"my_bonus": Column("B", "float32", Phase.ADVANTAGE, "my provider", "A bonus.", part=True, automatic="my_bonus")}

        @method(paper="folklore", title="Ones", checked="closed form", makes=("my_bonus",))
        class my_bonus(Provider):
            '''One for each row.'''

        @method(paper="folklore", title="Reward and bonus", checked="closed form")
        def with_bonus(reward, my_bonus):
            '''Their sum.'''
            return reward + my_bonus

        PARTS = {"rlvr.providers": {"my_bonus": "my_methods:my_bonus"}, "rlvr.advantage": {"with_bonus": with_bonus}}
        """,
    )
    monkeypatch.syspath_prepend(tmp_path)
    recipe = read_recipe(toys.recipe(tmp_path), ["plugins=[my_methods]", "rlvr.advantage=with_bonus"])
    check_stage(recipe.node("rlvr"))
    assert COLUMNS["my_bonus"].automatic == "my_bonus"
    assert "module/my_methods" in keys.key_parts(recipe, "rlvr", {"data": "d"})["files"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("gone.py", None, r"plugins: there is no file .*gone\.py"),
        ("no_such_module_here", None, "there is no module 'no_such_module_here'"),
        ("bare.py", "x = 1", r"bare\.py has no table PARTS"),
        ("list.py", "PARTS = {'rlvr.advantage': ['x']}", "has no table PARTS"),
        ("broken.py", "1 / 0", r"broken\.py fails when it is imported: ZeroDivisionError"),
        ("wants.py", "import no_such_library_here", "imports no_such_library_here, which is not installed"),
        ("twice.py", METHOD % "digirl", "both bring rlvr.advantage: digirl. Rename one"),
        ("core.py", METHOD % "grpo", "there is a method grpo in the core"),
    ],
)
def test_what_is_no_plug_in_is_refused_with_the_reason(tmp_path, name, text, says):
    if text is not None:
        write(tmp_path / name, text)
    spelled = str(tmp_path / name) if name.endswith(".py") else name
    with pytest.raises(UserError, match=says):
        read_recipe(toys.recipe(tmp_path), [f"plugins=[{spelled}]"])


def test_the_list_is_a_list(tmp_path):
    with pytest.raises(RecipeError, match=r"plugins: a list of files and modules"):
        read_recipe(toys.recipe(tmp_path), ["plugins=mine.py"])


def test_a_method_without_a_card_is_refused(tmp_path):
    file = write(
        tmp_path / "plain.py", "def plain(reward):\n    return reward\nPARTS = {'rlvr.advantage': {'plain_c': plain}}\n"
    )
    plugins.activate([str(file)])
    with pytest.raises(RecipeError, match=r"rlvr\.advantage: .*plain\.py: plain has no card. Decorate it with @method"):
        catalogue.load("rlvr.advantage", "plain_c")


def test_a_file_that_changes_is_read_again(tmp_path):
    """As in a notebook, whose process lives on while somebody writes the method; a change may have the old length and second."""
    column = 'from pipelines.contract.columns import Column, Phase\nCOLUMNS = {"%s": Column("B", "float32", Phase.CREDIT, "", "")}\n'
    file = write(tmp_path / "mine.py", column % "one_y" + METHOD % "scaled_y")
    recipe = toys.recipe(tmp_path, plugins=[str(file)])

    def value(**settings):
        return catalogue.bind("rlvr.advantage", {"kind": "scaled_y", **settings})({"reward": 0.5})

    read_recipe(recipe)
    first = catalogue.load("rlvr.advantage", "scaled_y")
    assert value() == 1.0 and "one_y" in COLUMNS
    read_recipe(recipe)
    assert catalogue.load("rlvr.advantage", "scaled_y") is first, "not read again without a change"
    write(file, file.read_text().replace("= 2.0", "= 6.0"))
    read_recipe(recipe)
    assert value() == 3.0
    write(file, file.read_text().replace("factor", "scale").replace("one_y", "two_y"))
    read_recipe(recipe)
    assert value(scale=4.0) == 2.0 and "two_y" in COLUMNS and "one_y" not in COLUMNS
    write(file, "broken(")
    with pytest.raises(UserError, match=r"mine\.py fails when it is imported"):
        read_recipe(recipe)
    write(file, METHOD % "renamed_y")
    read_recipe(recipe)
    assert "renamed_y" in catalogue.names("rlvr.advantage") and "scaled_y" not in catalogue.names("rlvr.advantage")


def test_a_file_of_the_same_name_in_another_folder(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "mine.py", METHOD % f"scaled_in_{folder}")
        monkeypatch.chdir(tmp_path / folder)
        plugins.activate(["mine.py"])
        assert f"scaled_in_{folder}" in catalogue.names("rlvr.advantage")
    assert "scaled_in_a" not in catalogue.names("rlvr.advantage")
