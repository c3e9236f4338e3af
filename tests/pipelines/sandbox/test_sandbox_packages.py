"""Packages that programs may import: numpy works at every level, and opens nothing that was closed."""

from __future__ import annotations

import json

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import verifiers
from pipelines.sandbox import isolation, levels
from pipelines.sandbox.compare import equal
from pipelines.sandbox.inside import wire
from pipelines.sandbox.worker import Worker

WALLS = [level for level in ("namespaces", "landlock") if not isolation.trouble(level)]


@pytest.fixture(scope="module", params=WALLS)
def worker(request):
    made = Worker(request.param)
    yield made
    made.close()


def run(worker, source, *args):
    with worker.run({"mode": "functions", "source": source}) as program:
        ready = program.ask(None)
        return program.ask({"name": "f", "args": list(args), "kwargs": {}}) if "ready" in ready else ready


def test_numpy_computes(worker):
    source = (
        "import numpy as np\ndef f(x): return np.linalg.solve(np.array(x, float), np.ones(2)), np.int64(3), np.bool_(1)"
    )
    value = run(worker, source, [[2, 0], [0, 4]])["value"]
    assert equal({"t": [{"n": ["f", [2], [{"f": "0x1p-1"}, {"f": "0x1p-2"}]]}, 3, True]}, value)


CLOSED = {
    "read": "np.fromfile({file!r}, dtype=np.uint8)",
    "map": "np.memmap({file!r}, dtype=np.uint8, mode='r')",
    "load": "np.load({file!r}, allow_pickle=True)",
    "text": "np.loadtxt({file!r})",
    "write": "np.arange(3).tofile({folder!r} + '/written')",
    "save": "np.save({folder!r} + '/written', np.arange(3))",
    "map to write": "np.memmap({folder!r} + '/written', dtype=np.uint8, mode='w+', shape=(4,))",
    "change numpy": "open(np.__file__, 'a')",
    "fork": "__import__('os').fork()",
    "library": "__import__('ctypes').CDLL(None).system(b'true') and 1/0",
    "other packages": "__import__('torch')",
    "their folder": "__import__('os').listdir({site!r})",
}


@pytest.mark.parametrize("what", CLOSED)
def test_nothing_opens_with_it(worker, what, tmp_path):
    tmp_path.chmod(0o777)
    planted = tmp_path / "planted"
    planted.write_text("1 2 3")
    site = str(next(iter(levels.packages().values()))[0].parent)
    action = CLOSED[what].format(file=str(planted), folder=str(tmp_path), site=site)
    reply = run(worker, f"import numpy as np\ndef f():\n    {action}\n    return 'done'")
    assert "error" in reply, reply
    assert not (tmp_path / "written").exists()


def test_memory_that_numpy_asks_for_is_limited(worker):
    assert run(worker, "import numpy as np\ndef f(): return np.ones(1 << 30).sum()")["error"] == "MemoryError"


FORMS = {
    "cases": {"entry_point": "f", "cases": [{"args": [[1, 2]], "expected": [2, 4]}]},
    "asserts": {
        "asserts": ["import numpy as np", "assert np.allclose(f(np.array([1.0, 2.5])), [2, 5])"],
        "entry_point": "f",
    },
    "HumanEval": {
        "test": "def check(candidate):\n    assert (candidate([1, 2]) == [2, 4]).all()\n",
        "entry_point": "f",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_programs_that_use_numpy_pass_hidden_tests(form):
    good = "import numpy as np\ndef f(x):\n    return np.array(x) * 2"
    assert verifiers.verify("python", good, "", FORMS[form]).status == "correct"
    assert verifiers.verify("python", good.replace("2", "3"), "", FORMS[form]).status == "incorrect"


def test_a_literal_list_wants_a_list():
    info = {"entry_point": "f", "cases": [{"args_literal": "([1, 2],)", "expected_literal": "[1, 2]"}]}
    assert (
        verifiers.verify("python", "import numpy as np\ndef f(x): return np.array(x)", "", info).status == "incorrect"
    )


def test_an_array_that_is_changed_in_place_is_seen_by_the_test():
    info = {"asserts": ["import numpy as np\nx = np.zeros(2)\nf(x)\nassert x.sum() == 2"], "entry_point": "f"}
    assert verifiers.verify("python", "def f(x): x += 1", "", info).status == "correct"


numbers = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False))


@given(st.lists(numbers, max_size=6), st.sampled_from([(-1,), (1, -1), (-1, 1)]))
def test_arrays_cross(values, shape):
    array = numpy.array(values, dtype=float if any(isinstance(v, float) for v in values) else None).reshape(shape)
    if array.dtype.kind not in wire.ARRAYS:
        return
    data = json.loads(json.dumps(wire.encode(array)))
    again = wire.decode(data)
    assert again.shape == array.shape and (again == array).all() and again.dtype.kind == array.dtype.kind
    assert equal(wire.encode(array.tolist()), data, tuples=True)
    assert not equal(wire.encode(array.tolist()), data)


@pytest.mark.parametrize(
    "body",
    [
        ["i", [2], [1]],
        ["O", [1], [1]],
        ["i", [-1], [1]],
        ["i", 1, [1]],
        ["i", [1 << 60], []],
        ["i", [1]],
        ["i", [1], ["x"]],
    ],
)
def test_what_is_no_array_is_refused(body):
    with pytest.raises((wire.Uncrossable, ValueError)):
        wire.decode({"n": body})


def test_objects_do_not_cross():
    with pytest.raises(wire.Uncrossable):
        wire.encode(numpy.array([object()]))


def test_a_package_that_only_root_can_reach_is_left_out(monkeypatch):
    monkeypatch.setattr(levels.os, "geteuid", lambda: 0)
    monkeypatch.setattr(levels, "_open_to_others", lambda paths: False)
    assert levels.packages.__wrapped__() == {}
