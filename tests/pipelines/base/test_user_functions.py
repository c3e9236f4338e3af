"""Functions by `FILE.py:NAME` or `package.module:NAME`: one reader for rewards, judges, tools and monitors."""

from __future__ import annotations

import itertools
import pickle
import re
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.base.user_functions import FUNCTION, load_function, require_there
from pipelines.recipe.check import check_stage
from pipelines.recipe.read import read_recipe
from pipelines.rlvr import scoring
from tasks import keys
from tasks.preflight import check as preflight
from tasks.preflight import functions as probe_functions

LENGTH = "def length(completions, **columns):\n    return [{sign}float(len(c[-1]['content'])) for c in completions]\n"
FIELD = "rlvr.reward_functions.0"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, which later tests do not search."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("./my.py:f", True), ("my.py:f", True), ("/a b/my.py:f", True), ("~/my.py:f", True), ("../x/my.py:f", True), ("a.b:f", True),
        ("my.py", False), ("a.b", False), ("./my:f", False), ("a:b:c", False), ("os:system('x')", False), ("my.py:", False),
    ],
)  # fmt: skip
def test_what_a_field_takes(text, fits):
    assert bool(re.fullmatch(FUNCTION.strip("^$"), text)) is fits


def test_every_spelling_of_a_file_is_the_same_function(folder):
    write(folder / "my_rewards.py", LENGTH.format(sign=""))
    loaded = [load_function(f"{where}my_rewards.py:length", FIELD) for where in ("", "./", f"{folder}/")]
    assert loaded[0] is loaded[1] is loaded[2]
    assert load_function("my_rewards:length", FIELD)([[{"content": "abc"}]]) == [3.0]


def test_two_files_of_one_name_and_what_stands_beside_them(folder):
    write(folder / "mine.py", LENGTH.format(sign=""))
    write(folder / "other/mine.py", "from beside_it import sign\n" + LENGTH.format(sign="sign * "))
    write(folder / "other/beside_it.py", "sign = -1\n")
    named = scoring.load_functions(["mine.py:length", "other/mine.py:length"])
    assert [name for name, _ in named] == ["length", "length-2"], "a metric each"
    assert [function([[{"content": "abc"}]]) for _, function in named] == [[3.0], [-3.0]]


def test_a_function_of_a_file_goes_to_other_processes(folder):
    write(folder / "mine.py", "def double(number):\n    return 2 * number\n")
    double = load_function("mine.py:double", FIELD)
    assert pickle.loads(pickle.dumps(double)) is double
    with ProcessPoolExecutor(1) as pool:
        assert pool.submit(double, 4).result() == 8


def test_a_changed_file_is_read_again(folder):
    for number in (1, 2):
        write(folder / "mine.py", f"def f():\n    return {number}\n")
        assert load_function("mine.py:f", FIELD)() == number


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        (None, "gone.py:f", "there is no file gone.py. Paths are relative to the working folder."),
        (None, "gone_module:f", "there is no module 'gone_module'. Install it, or name a file, such as ./my_file.py."),
        ("def lenght(): ...", "mine.py:length", "mine.py has no length. Did you mean 'lenght'?"),
        ("x = 1", "mine.py:length", "mine.py has no length. Define it there."),
        ("x = 1", "mine.py:x", "mine.py:x is a int, not a function. Name a function."),
        ("def f(:\n", "mine.py:f", r"mine.py fails when it is imported: SyntaxError: .*\(.*/mine.py:1\). Mend it there."),
        ("\nimport no_such_library", "mine.py:f", r"mine.py imports no_such_library, which is not installed \(.*/mine.py:2\)."),
        ("\n\nfrom json import nope", "mine.py:f", r"ImportError: cannot import name 'nope' .*\(.*/mine.py:3\). Mend it there."),
        ("raise SystemExit(3)", "mine.py:f", r"SystemExit: 3 \(.*/mine.py:1\). Mend it there."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_field_the_line_and_the_fix(folder, text, name, told):
    if text is not None:
        write(folder / "mine.py", text)
    with pytest.raises(RecipeError) as error:
        load_function(name, FIELD)
    assert re.match(f"{re.escape(FIELD)}: (.* fails when it is imported: )?{told}", str(error.value)), str(error.value)


def test_plan_says_so_of_every_field(folder):
    write(folder / "mine.py", "x = 1\n")
    fields = {
        "rlvr.reward_functions=[./mine.py:f]": FIELD,
        "rlvr.reward=[verifier, {kind: function, path: ./mine.py:f}]": "rlvr.reward.terms.1.path",
        "rlvr.reward={kind: arena_tournament, judge: ./mine.py:f}": "rlvr.reward.judge",
        "rlvr.monitors=[{kind: reward_hacking, function: ./mine.py:f}]": "rlvr.monitors.0.function",
    }
    for override, field in fields.items():
        node = read_recipe(toys.recipe(folder), [override]).node("rlvr")
        (asked,) = [ask for _, _, ask in preflight.preflight_rewards.questions(node, node.settings)]
        with pytest.raises(RecipeError, match=rf"^{re.escape(field)}: \./mine\.py has no f\. Define it there\."):
            probe_functions.answer(asked)


@pytest.mark.slow
def test_a_monitor_s_file_is_looked_for_before_its_code_runs(folder):
    write(folder / "mine.py", "raise SystemExit\n")
    require_there("./mine.py:f", "rlvr.monitors.0.function")
    rule = "rlvr.monitors=[{kind: reward_hacking, function: ./gone.py:f}]"
    with pytest.raises(RecipeError, match=r"rlvr\.monitors\.0\.function: there is no file \./gone\.py"):
        check_stage(read_recipe(toys.recipe(folder), [rule]).node("rlvr"))


USES = {
    "rlvr.reward_functions=[./sub/mine.py:length]": {"rlvr"},
    "rlvr.reward=[verifier, {kind: function, path: ./sub/mine.py:length}]": {"rlvr"},
    "rlvr.monitors=[{kind: reward_hacking, function: ./sub/mine.py:length, action: finish}]": {"rlvr"},
    "curate.sources.0={kind: environment, task: tools, size: 20, config: {tools: [{kind: function, path: ./sub/mine.py:length}]}}": {
        "curate",
        "rlvr",
    },
}


@pytest.mark.parametrize("override", USES)
def test_a_change_of_the_file_or_of_what_it_imports_runs_exactly_the_stages_that_use_it(folder, override):
    def keys_now():
        recipe = read_recipe(path, [override])
        return {s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"})) for s in recipe.stage_names()}

    path = toys.recipe(folder)
    mine = write(folder / "sub/mine.py", "import helper\n" + LENGTH.format(sign=""))
    helper = write(folder / "sub/helper.py", "x = 1\n")
    write(folder / "sub/unused.py", "x = 1\n")
    seen = [keys_now()]
    for file, text in (
        (mine, "import helper\n" + LENGTH.format(sign="-")),
        (helper, "x = 2\n"),
        (folder / "sub/unused.py", "x = 2\n"),
    ):
        write(file, text)
        seen.append(keys_now())
    changed = [{stage for stage in new if new[stage] != old[stage]} for old, new in itertools.pairwise(seen)]
    assert changed == [USES[override], USES[override], set()]


def test_modules_of_one_name_beside_two_files_are_refused(folder):
    for name in ("a", "b"):
        write(folder / name / "mine.py", "import helper\n" + LENGTH.format(sign=""))
        write(folder / name / "helper.py", "x = 1\n")
    recipe = read_recipe(toys.recipe(folder), ["rlvr.reward_functions=[a/mine.py:length, b/mine.py:length]"])
    told = keys.clashes(recipe, "rlvr")
    assert any(
        "helper.py of" in text and "has that name. Rename it to my_helper.py" in text for text in told.values()
    ), told
    (folder / "b/helper.py").unlink()
    (folder / "b/mine.py").write_text(LENGTH.format(sign=""))
    assert keys.clashes(recipe, "rlvr") == {}
