"""Our methods against the numbers of the papers' own code; tests/golden/README.md says where they come from."""

from __future__ import annotations

import json

import pytest
import toys

from benchmarks import golden, golden_cases

FOLDER = toys.ROOT / "tests" / "golden"
FILES = sorted(FOLDER.rglob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_agrees_with_the_source(path):
    result = golden.compare_file(path)
    assert result.passes, "\n".join(result.problems)


def differing():
    for path in FILES:
        for number, case in enumerate(json.loads(path.read_text())["cases"]):
            for differ in case.get("differs") or []:
                if isinstance(differ["rows"], list) or differ["rows"] == "all":
                    yield pytest.param(path, number, id=f"{path.stem}-{number}")


@pytest.mark.parametrize(("path", "number"), differing())
def test_what_differs_on_purpose_does_differ(path, number):
    body = golden._today(json.loads(path.read_text()))
    case = body["cases"][number]
    ours = {**body.get("ours", {}), **case.get("ours", {})}
    full = {**case, "method": body["method"], "slot": golden.SLOTS.get(body["slot"], body["slot"]), "ours": ours}
    made = golden_cases.run(full, golden_cases.torch.float64)
    names = [name for name in case["outputs"] if not name.startswith("also_")]
    assert any(golden.relative(made[name], case["outputs"][name]) > 1e-3 for name in names), "the note is out of date"


def test_a_difference_fails_the_command(tmp_path, capsys, monkeypatch):
    body = json.loads((FOLDER / "advantage" / "rloo.json").read_text())
    body["cases"][0]["outputs"]["advantage"][0][0] += 0.01
    (tmp_path / "rloo.json").write_text(json.dumps(body))
    monkeypatch.setattr("sys.argv", ["golden", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        golden.main()
    assert stopped.value.code == 1
    assert capsys.readouterr().out.strip().endswith("0 of 1 pass")
