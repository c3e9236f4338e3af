"""Episodes in a shell: tasks are solved by their experts alone, states are copied exactly, and what a command does ends with it."""

from __future__ import annotations

import itertools

import pytest
from worlds import copy_of, problem, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.environments import _shell_tasks, shell
from pipelines.environments._shell_tasks import ERRANDS, MODULES, Drawer
from pipelines.laws import attempt
from pipelines.laws import environments as laws
from pipelines.sandbox import shell as sandboxed

needs_namespaces = pytest.mark.skipif(bool(sandboxed.trouble()), reason=sandboxed.trouble())


def own(files, tests, **info):
    """An episode of a task of one's own."""
    info = {"environment": "shell", "files": files, "tests": tests, **info}
    return started(
        "shell",
        {"prompt": [{"role": "user", "content": "do it"}], "answer": "submit", "verifier": "exact", "info": info},
    )


def outcome(task):
    """The last step of an expert's episode."""
    world = own(task.files, task.tests)
    return [world.step(message) for message in task.walk][-1]


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("kind", ["files", "repair"])
def test_experts_solve_their_tasks_and_those_who_err_do_not(kind):
    solved, missed = Drawer(1, [kind], "train", 0.0), Drawer(1, [kind], "train", 1.0)
    for _ in range(25):
        step = outcome(solved.next())
        assert (step.reward, step.done, step.info["success"], step.info["status"]) == (1.0, True, True, "correct")
    wrong = [outcome(missed.next()) for _ in range(25)]
    # some errors come to the same in a folder: a file of one line, words that are sorted
    assert sum(step.reward for step in wrong) <= (6 if kind == "files" else 0)


@needs_namespaces
def test_each_errand_is_what_its_command_does():
    drawer, tried = Drawer(3, ["files"], "train", 0.0), {}
    while len(tried) < len(ERRANDS):
        task = drawer.next()
        tried.setdefault(task.walk[0].split()[0] + task.text.split()[0] + task.text.split()[-1][:3], task)
        if len(tried) > 60:
            break
    assert all(outcome(task).reward == 1.0 for task in tried.values())


def test_planted_bugs_show_and_differ():
    for function in itertools.chain(*MODULES.values()):
        right = [function.value(function.returns, each) for each in function.arguments]
        assert "Error" not in "".join(right)
        for bug in function.bugs:
            assert [function.value(bug, each) for each in function.arguments] != right, (function.name, bug)
        assert len({function.returns, *function.bugs}) == 4


def test_an_empty_submission_solves_nothing_and_parts_share_nothing():
    train, test = ([Drawer(5, ["repair"], part, 0.0).next() for _ in range(20)] for part in ("train", "test"))
    assert not {(t.text, *t.files.values()) for t in train} & {(t.text, *t.files.values()) for t in test}
    if not sandboxed.trouble():
        world = own(test[0].files, test[0].tests)
        assert world.step("submit").reward == 0.0 and world.done


@needs_namespaces
def test_the_folder_lasts_and_nothing_else():
    world = own({"a.txt": "one\n"}, [{"run": "cat a.txt", "expect": "two"}])
    first = world.step(
        "echo x > /tmp/left; export Y=1; echo two > a.txt; mkdir d; chmod 640 a.txt; ln -s a.txt l; cd d"
    )
    assert first.observation == "[exit 0]" and not first.info["invalid"]
    assert world.step("ls /tmp; echo ${Y:-none}; cat l; stat -c %a a.txt; pwd").observation == "none\ntwo\n640\n/work"
    assert world.step("exit 3").observation == "[exit 3]"
    assert world.step("ls nowhere").calls[0]["outcome"] == "failed"
    assert world.step("submit").info["success"]


@needs_namespaces
def test_a_fork_of_the_state_goes_its_own_way_and_the_other_stays():
    world = own({"a.txt": "one\n"}, [{"run": "cat a.txt", "expect": "one"}])
    world.step("mkdir -p d/e && echo 1 > d/e/n && chmod 000 d/e")
    fork = copy_of("shell", world)
    assert fork.step("chmod 700 d/e; cat d/e/n; rm a.txt").observation == "1"
    assert fork.step("submit").reward == 0.0
    assert world.step("chmod 700 d/e; ls -A d/e").observation == "n"
    assert world.step("submit").reward == 1.0


@needs_namespaces
def test_a_command_that_is_ended_says_why_and_the_folder_is_as_before_where_it_grew_too_large():
    world = own({"a.txt": "one\n"}, [], seconds=1)
    assert "it took too long" in world.step("sleep 60").observation
    assert "it printed too much" in world.step("yes").observation
    grown = world.step("rm a.txt; head -c 1000000 /dev/zero > big").observation
    assert "the folder is as before" in grown
    assert world.step("ls").observation == "a.txt"


@pytest.mark.slow
@needs_namespaces
def test_hidden_tests_and_their_answers_are_not_in_reach():
    world = own({"a.txt": "one\n"}, [{"run": "echo $((6 * 7)) # zqx_of_a_hidden_test", "expect": "42"}])
    seen = world.step(
        "grep -r zqx_of_a_hidden_test / --exclude-dir=packages 2>/dev/null | head; env; cat /proc/*/cmdline; ls -R /work"
    ).observation
    assert "zqx_of_a_hidden_test" not in seen and "42" not in seen
    assert world.step("submit").reward == 1.0


@needs_namespaces
def test_replies_of_a_test_are_compared_and_its_failure_fails():
    for run, expect, passes in (
        ("echo a", "a\n", True),
        ("echo 'a '", "a", True),
        ("echo a; false", "a", False),
        ("echo b", "a", False),
    ):
        assert own({}, [{"run": run, "expect": expect}]).step("submit").info["success"] is passes


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ("ls", ("ls", False)),
        ("submit", ("", True)),
        ("  ls -l\n\nsubmit \n", ("ls -l", True)),
        ("Look:\n```bash\nls\n```\nthen ```sh\nrm a\n```", ("ls", False)),
        ("```\ncat a\nsubmit\n```", ("cat a", True)),
        ("echo submit", ("echo submit", False)),
        ("a\0b", ("ab", False)),
        ("", ("", False)),
    ],
)
def test_what_a_message_asks(message, command):
    assert shell.command_of(message) == command


@needs_namespaces
def test_the_laws_hold():
    assert [each for each in attempt(laws.LAWS, "shell") if each.result == "broken"] == []


@needs_namespaces
def test_demonstrations_begin_with_what_the_commands_show():
    [row] = itertools.islice(environments.problems("shell", 1, 2, {"kinds": ["repair"], "demonstrations": True}), 1)
    assert [message["role"] for message in row["prompt"]] == ["user", "assistant", "user"]
    assert "return" in row["prompt"][-1]["content"]
    world = environments.make("shell")
    assert world.reset(problem(row)) == row["prompt"]
    assert world.step(row["info"]["solution"]).reward == 1.0


def test_unknown_kinds_are_refused():
    assert next(each.field for each in shell.refusals({"kinds": ["fils"]})) == "kinds"
    assert next(each.field for each in shell.refusals({"kinds": []})) == "kinds"
    with pytest.raises(RecipeError, match="no kind 'fils'"):
        next(environments.problems("shell", 1, 1, {"kinds": ["fils"]}))


def test_a_machine_without_namespaces_is_told_of(monkeypatch):
    monkeypatch.setattr(sandboxed.isolation, "trouble", lambda level: "no bubblewrap")
    assert "no bubblewrap" in next(each.problem for each in shell.refusals({}))
    with pytest.raises(sandboxed.SandboxError, match="no bubblewrap"):
        own({}, []).step("ls")


def test_tasks_are_those_of_the_seed():
    first, again = ([Drawer(4, _shell_tasks.KINDS, "train", 0.3).next() for _ in range(5)] for _ in range(2))
    assert first == again
