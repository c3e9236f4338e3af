"""`whetstone methods --check`: a line for each law, exit code 1 with what broke, and faults of the call."""

from __future__ import annotations

import json
import re
import shlex

import plugin_toys
import pytest
import toys

from flows.cli import check_methods, main
from pipelines.base.errors import UserError

PAGE = (toys.ROOT / "docs" / "plugins.md").read_text()
FILES = {match[1]: match[2] for match in re.finditer(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.M | re.S)}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The files of docs/plugins.md in the working folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with plugin_toys.forgotten():
        yield tmp_path


def run(arguments):
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    return ended.value.code


def test_the_page_s_files_obey(written, capsys):
    """The commands of the page, whose output is what the page shows."""
    commands = re.findall(r"^whetstone (methods --check .*)$", PAGE, re.M)
    assert len(commands) == 1
    assert run(shlex.split(commands[0])) == 0
    shown = re.search(r"^```text\n(rlvr\.advantage: .*?)^```$", PAGE, re.M | re.S)[1]
    assert capsys.readouterr().out == shown
    assert check_methods.check("rlvr.advantage=./my_method.py:median_baseline") == 0
    said = capsys.readouterr().out
    assert said.startswith("rlvr.advantage: ./my_method.py:median_baseline\n") and " 0 are broken, " in said
    assert check_methods.check("my_environment.py") == 0
    assert re.search(r"^6 laws hold, 0 are broken, 0 do not apply$", capsys.readouterr().out, re.M)


def test_what_breaks_is_named(written, capsys):
    text = FILES["my_method.py"].replace("for number in group[scored].unique():", "for number in group.unique():")
    text = text.replace("rows = scored & (group == number)", "rows = group == number")
    assert text.count("scored") == FILES["my_method.py"].count("scored") - 2
    (written / "my_method.py").write_text(text)
    assert run(["methods", "--check", "my_method.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "  BROKEN  unscored-rows-stay-out" in lines
    assert lines[lines.index("  BROKEN  unscored-rows-stay-out") + 1] == (
        "          A row that could not be scored gets 0, and its reward changes nobody's value."
    )
    assert lines[-1] == "10 laws hold, 1 are broken, 6 do not apply"
    assert run(["methods", "--check", "my_method.py", "--without", "unscored-rows-stay-out"]) == 0
    capsys.readouterr()
    assert run(["methods", "--check", "my_method.py", "--json"]) == 1
    records = json.loads(capsys.readouterr().out)
    (one,) = [each for each in records if each["result"] == "broken"]
    assert (one["slot"], one["name"], one["law"]) == ("rlvr.advantage", "median_baseline", "unscored-rows-stay-out")
    assert one["why"]


def test_what_raises_is_named_with_its_line(written, capsys):
    text = FILES["my_method.py"].replace("for number in group[scored].unique():", "for number in group.letters:")
    (written / "my_method.py").write_text(text)
    assert run(["methods", "--check", "my_method.py"]) == 1
    line = 1 + text.splitlines().index("    for number in group.letters:")
    assert f"has no attribute 'letters' ({written / 'my_method.py'}:{line})" in capsys.readouterr().out


def test_a_setting_without_a_default_is_given(written, capsys):
    (written / "my_method.py").write_text(FILES["my_method.py"].replace("Field(gt=0)] = 1.0", "Field(gt=0)]"))
    assert check_methods.check("my_method.py") == 1
    assert (
        check_methods.check("my_method.py", settings=["median_baseline.scale=2"]) == 1
    )  # its example has no scale now
    assert "  BROKEN  worked-example-is-right" in capsys.readouterr().out
    assert (
        check_methods.check("my_method.py", settings=["median_baseline.scale=2"], without=["worked-example-is-right"])
        == 0
    )


def test_an_installed_plug_in_is_named_by_its_module(capsys):
    """The project's own papers are one; a few of its methods need settings or a model."""
    brought = check_methods._brought("pipelines.papers")
    assert {("rlvr.advantage", "prime"), ("rlvr.providers", "implicit_prm")} <= set(brought)
    assert len(brought) > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"named": "gone.py"}, "plugins: there is no file gone.py"),
        ({"named": "my_method.py", "without": ["padding"]}, "--without padding: no such law"),
        ({"named": "my_method.py", "settings": ["scale=2"]}, "--set scale=2: METHOD.SETTING=VALUE is wanted"),
        (
            {"named": "my_method.py", "settings": ["median.scale=2"]},
            "--set median.scale=2: the plug-in brings no median",
        ),
    ],
)
def test_faults_of_the_call(written, arguments, message):
    with pytest.raises(UserError, match=re.escape(message)):
        check_methods.check(**arguments)
