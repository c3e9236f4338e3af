"""Absolute Zero: which proposals hold, what the sandbox says of answers, what both are paid, and what earlier tasks are solved again."""

from __future__ import annotations

import collections
import json

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import context, request

from pipelines.contract.catalogue import bind
from pipelines.data import marks
from pipelines.papers import absolute_zero as paper
from pipelines.papers.absolute_zero import programs
from pipelines.rlvr.pack import pack
from pipelines.sandbox import pool
from pipelines.sandbox.worker import Limits

DOUBLE = "```python\ndef f(x):\n    return [x, x * 2]\n```\n```input\n{0}\n```"


def rollouts(script, count=1, **settings):
    part = bind("rlvr.rollout", {"kind": "absolute_zero", "fill": False, **settings}).fn
    asked = [request(name, count, group=place) for place, name in enumerate("ab")]
    return part, part.run(asked, context(script, max_tokens=200))


def test_a_deduction_by_hand():
    """A proposal that half of the answers solve, and one without an input; the program of the first joins the buffer."""

    def script(prefix, number):
        if "What does" in prefix:
            return ["```output\n[3, 6]\n```", "```output\n[3, 5]\n```", "it is [3, 6]", "```output\n[3,6.0]\n```"][
                number
            ]
        return DOUBLE.format("3") if number == 0 else "```python\ndef f(x):\n    return x\n```"

    part, rows = rollouts(script, kinds=["deduction"], solutions=4)
    assert [row.score for row in rows] == [0.5, -1.0, 1.0, -0.5, -1.0, 1.0]
    assert [row.status for row in rows] == ["correct", "unparsable", "correct", "incorrect", "unparsable", "correct"]
    assert [row.group for row in rows] == [0, 1, 2, 2, 2, 2] and "f(3)" in rows[2].prompt[0]["content"]
    assert pack(rows, step=0, total_steps=1)["task_role"].tolist() == [0, 0, 1, 1, 1, 1]
    assert "def f(x):\n    return x" in rows[0].prompt[0]["content"], "it was shown the seed"
    assert (
        part.on_rollouts(rows) == rows
        and part.metrics() == {"programs": 2.0, "held": 0.5, "filled": 0.0}
        and part.metrics() == {"programs": 2.0}
    )
    again = bind("rlvr.rollout", "absolute_zero").fn
    again.load_state_dict(part.state_dict())
    assert again.programs == part.programs == dict([paper.SEED, ("def f(x):\n    return [x, x * 2]", "3")])


def test_an_abduction_takes_any_input_that_gives_the_output():
    def script(prefix, number):
        if "Find an input" in prefix:
            return ["```input\n-2\n```", "```input\n2\n```", "```input\n3\n```", "```input\n0) or abs(4\n```"][number]
        return "```python\ndef f(x):\n    return x * x\n```\n```input\n2\n```" if number == 0 else "none"

    _, rows = rollouts(script, kinds=["abduction"], solutions=4)
    assert [row.score for row in rows[2:]] == [1.0, 1.0, -0.5, -0.5] and rows[0].score == 0.5
    assert "returns\n\n4\n" in rows[2].prompt[0]["content"] and "```input\n2" not in rows[2].prompt[0]["content"]


def test_an_error_is_named_and_its_programs_have_a_buffer_of_their_own():
    """As released: the first word counts, whatever its case."""

    def script(prefix, number):
        if "In which exception" in prefix:
            answers = ["keyerror: 3", "NoError", "it is KeyError", "ValueError"]
            return f"```output\n{answers[number % 4]}\n```" if number % 4 != 2 else answers[2]
        return "```python\ndef f(x):\n    return {}[x]\n```\n```input\n3\n```" if number == 0 else DOUBLE.format("4")

    part, rows = rollouts(script, kinds=["error"], solutions=4)
    [asked] = {row.prompt[0]["content"] for row in rows if row.group == 2}
    assert "`f(3)`" in asked and "KeyError" not in asked
    assert [row.score for row in rows if row.group == 2] == [1.0, -0.5, -1.0, -0.5] and rows[0].score == 0.75
    assert [row.score for row in rows if row.group == 3] == [-0.5, 1.0, -1.0, -0.5], (
        "a call that ends well is a task too"
    )
    assert pack(rows, step=0, total_steps=1)["task_role"].tolist() == [6, 6] + [7] * 8
    part.on_rollouts(rows)
    assert part.programs == dict([paper.SEED]) and list(part.failing.values()) == [paper.SEED[1], "3", "4"]
    again = bind("rlvr.rollout", "absolute_zero").fn
    again.load_state_dict(part.state_dict())
    assert again.failing == part.failing
    again.load_state_dict({"programs": []})
    assert again.failing == dict([paper.SEED]), "a run of an earlier version goes on"
    assert bind("rlvr.rollout", "absolute_zero").fn.kinds == ["deduction", "abduction", "induction"]


@pytest.mark.parametrize(
    ("program", "ends"),
    [
        ("def f(x):\n    return 1 / (x - 1)", ["ZeroDivisionError"]),
        ("def f(x):\n    return object()", ["NoError"]),
        ("class Odd(KeyError): pass\ndef f(x):\n    assert x > 1, Odd", ["AssertionError"]),
        ("def f(x):\n    return f(x)", ["RecursionError"]),
        ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return [1][n - 1]", None),
        ("def f(x):\n    raise ValueError", None),
        ("def f(x:\n    return 1", None),
        ("def g(x):\n    return 1", None),
        ("y = 1 / 0\ndef f(x):\n    return 1", None),
    ],
    ids=[
        "division",
        "any_value",
        "assertion",
        "recursion",
        "counter",
        "raise",
        "unreadable",
        "other_name",
        "at_once",
    ],
)
def test_what_a_program_ends_in(program, ends):
    [names] = pool.shared().run(
        [lambda worker: programs.raised(worker, program=program, inputs=["1"], limits=Limits(cpu_s=1))], 60
    )
    assert names == ends


def test_what_does_not_hold_is_replaced_by_an_earlier_task_of_its_kind():
    """Two steps by hand: the first one's tasks hold, of the second one's one does, and the solver has two in each."""
    proposed = iter([DOUBLE.format("3"), DOUBLE.format("4"), DOUBLE.format("5"), "no task"])

    def script(prefix, number):
        if "What does" not in prefix:
            return next(proposed)
        told = {"f(3)": "[3, 6]", "f(4)": "[4, 8]", "f(5)": "[5, 10]", "f('Hello world')": "'Hello world'"}
        [answer] = [output for call, output in told.items() if call in prefix]
        return f"```output\n{answer if number % 2 else 0}\n```"

    part, rows = rollouts(script, kinds=["deduction"], solutions=2, fill=True)
    part.on_rollouts(rows)
    assert part.metrics() == {"programs": 2.0, "held": 1.0, "filled": 0.0}
    assert [task.inputs for task in part.tasks["deduction"]] == [("'Hello world'",), ("3",), ("4",)]
    again = bind("rlvr.rollout", "absolute_zero").fn
    again.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert again.tasks == part.tasks
    rows = part.run([request(name, 1, group=place) for place, name in enumerate("ab")], context(script, max_tokens=200))
    assert [row.score for row in rows] == [0.5, -1.0, -0.5, 1.0, -0.5, 1.0], (
        "an earlier task does not pay who proposed none"
    )
    new, earlier = (rows[place].prompt[0]["content"] for place in (2, 4))
    assert "f(5)" in new and any(f"f({task.inputs[0]})" in earlier for task in again.tasks["deduction"])
    assert pack(rows, step=0, total_steps=1)["task_role"].tolist() == [0, 0, 1, 1, 1, 1]
    part.on_rollouts(rows)
    assert part.metrics() == {"programs": 2.0, "held": 0.5, "filled": 0.5}
    assert len(part.tasks["deduction"]) == 4 and not part.tasks["induction"]


def test_earlier_tasks_are_drawn_equally_often_and_the_newest_are_kept():
    part = bind("rlvr.rollout", {"kind": "absolute_zero", "capacity": 3}).fn
    rows = [
        scripted_row(paper.Task("abduction", f"def f(x):\n    return {n}", ("1",), (str(n),), "")) for n in range(5)
    ]
    part.on_rollouts(rows)
    assert [task.outputs for task in part.tasks["abduction"]] == [("2",), ("3",), ("4",)]
    drawn = collections.Counter(part._earlier("abduction", number).outputs for number in range(3000))
    assert len(drawn) == 3 and min(drawn.values()) > 900
    assert part._earlier("induction", 0) is None and part._earlier("error", 0).outputs == ("NoError",)
    assert bind("rlvr.rollout", {"kind": "absolute_zero", "fill": False}).fn._earlier("abduction", 0) is None


def scripted_row(task):
    """A row that proposed a task."""
    row = rollouts(lambda prefix, number: "none", kinds=["abduction"])[1][0]
    row.extras |= {"holds": [task.kind, task.program, list(task.inputs), list(task.outputs), task.message]}
    return row


def test_an_induction_is_tried_on_the_inputs_that_were_not_shown():
    def script(prefix, number):
        if "gives these outputs" in prefix:
            body = ["x", "1 if x == 1 else 2"][number % 2]  # the second is right on what it was shown
            return f"```python\ndef f(x):\n    return {body}\n```"
        return "".join(f"```input\n{i}\n```" for i in range(1, 5)) + "```message\nthe same {input}\n```"

    _, rows = rollouts(script, kinds=["induction"], inputs=4, solutions=2)
    assert [row.score for row in rows] == [0.5, 0.5, 1.0, -0.5, 1.0, -0.5]
    shown = rows[2].prompt[0]["content"]
    assert "f(1) = 1\nf(2) = 2" in shown and "f(3)" not in shown and shown.startswith("the same {input}")
    assert pack(rows, step=0, total_steps=1)["task_role"].tolist() == [4, 4, 5, 5, 5, 5]


@pytest.mark.parametrize(
    "program",
    [
        "import random\ndef f(x):\n    return random.random()",
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return n",
        "def f(x):\n    return object()",
        "def f(x):\n    return 1 / 0",
        "def f(x):\n    return open('/etc/passwd').read()",
        "def f(x:\n    return 1",
        "def g(x):\n    return 1",
    ],
    ids=["random", "counter", "no_literal", "raises", "file", "unreadable", "other_name"],
)
def test_programs_that_are_no_task(program):
    [texts] = pool.shared().run(
        [lambda worker: programs.returned(worker, program=program, inputs=["1"], limits=Limits(cpu_s=1))], 60
    )
    assert texts is None


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=6,
)


def test_a_program_s_output_names_no_image():
    """A proposed program can write any letter, and `repr` shows it."""
    mark = marks.mark("0" * 32)
    assert paper._filled("gives {output}", output=repr(mark)) == f"gives {marks.unnamed(repr(mark))}"


@given(st.lists(literals, min_size=1, max_size=3))
def test_literals_come_back_as_they_were(values):
    assert programs.arguments(", ".join(map(repr, values))) == values


@given(st.floats(0, 1))
def test_a_task_pays_most_where_it_is_hardest_to_solve_and_solved(rate):
    value = paper.learnability(rate)
    assert value == -0.5 if rate in (0, 1) else 0 <= value == 1 - rate <= 1


def test_a_role_is_compared_with_itself_alone():
    part = bind("rlvr.advantage", "absolute_zero")
    draw = torch.Generator().manual_seed(0)
    reward, role = torch.rand(9, generator=draw), torch.arange(9) % 3
    mask = torch.arange(4) < torch.randint(1, 5, (9, 1), generator=draw)
    columns = {"reward": reward, "task_role": role, "mask": mask, "scored": torch.ones(9).bool()}
    before, after = part(columns), part(columns | {"reward": reward * (1 + role) + role})
    torch.testing.assert_close(before, after, atol=1e-5, rtol=0)
    for own in range(3):
        assert float(before[role == own][mask[role == own]].mean()) == pytest.approx(0, abs=1e-6)


def test_it_trains_through_the_loop(tmp_path, start, monkeypatch):
    """The toy reads 64 characters and writes no programs: what it writes is taken for the input of one, and half of the time for none.

    A run that is stopped and goes on solves the same tasks of earlier steps, so it ends with the same bytes.
    """
    monkeypatch.setattr(paper, "PROGRAM", "palindrome abc")
    monkeypatch.setitem(paper.ASKED, "deduction", "palindrome {input}")
    blocks = {"python": ["def f(y):\n    return y"], "input": ["'ab'"], "output": []}

    def read(text, name):
        if name == "python":
            return blocks[name] if sum(map(ord, text)) % 2 else []
        return blocks.get(name, []) if name != "output" else ["'ab'" if len(text) % 2 else "0"]

    monkeypatch.setattr(paper, "blocks", read)
    settings = [
        "presets=[absolute_zero]",
        "rlvr.group_size=1",
        "rlvr.steps=3",
        "rlvr.rollout.kinds=[deduction]",
        "rlvr.rollout.solutions=4",
        "rlvr.commit.every=1",
    ]
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    toys.run_stopped(lambda: toys.trainer(stopped, start, toys.recipe(tmp_path), *settings))
    made = toys.trainer(tmp_path, start, toys.recipe(tmp_path), *settings)
    before = torch.cat([weight.detach().flatten().clone() for weight in made.learner.model.parameters()])
    assert made.run()["steps"] == 3
    after = torch.cat([weight.detach().flatten() for weight in made.learner.model.parameters()])
    assert torch.isfinite(after).all() and not torch.equal(before, after)
    lines = [values for _, values in toys.history(tmp_path / "work")]
    seen = {name: value for values in lines for name, value in values.items()}
    held = [values["method/absolute_zero/held"] for values in lines if "method/absolute_zero/held" in values]
    assert (
        min(held) < 1
        and seen["method/absolute_zero/filled"] == 1 - seen["method/absolute_zero/held"]
        and seen["method/absolute_zero/programs"] == 2.0
        and seen["rollout/rows"] == 20
    )
    assert {"reward_component/proposed", "reward_component/solved"} <= seen.keys() and seen["mismatch/max"] < 1e-4
    assert toys.result(tmp_path / "work") == toys.result(stopped / "work")
