"""The reward file in a process without the project: row by row the score of the verifiers here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import toys

from pipelines import verifiers
from pipelines.base.project import python
from pipelines.external import whetstone_reward

ROWS = [
    ("number", "so 7. #### 1,007.0", "1007", {}),
    ("number", "eight", "1007", {}),
    ("math", r"\boxed{\frac{1}{2}}", "0.5", {}),
    ("math", r"\boxed{2}", "0.5", {}),
    ("choice", "The answer is (b)", "B", {}),
    ("regex", "abc", "", {"pattern": "a.c", "mode": "fullmatch"}),
    ("json_schema", '{"a": 1}', "", {"schema": {"type": "object", "required": ["a"]}}),
    ("json_schema", "{}", "", {"schema": {"type": "object", "required": ["a"]}}),
    ("exact", "<answer> 4 </answer>", "4", {}),
]
ASKS = """
import json, sys
import whetstone_reward as reward
assert not any(name.startswith(("pipelines", "pydantic", "numpy")) for name in sys.modules)
rows = json.load(open(sys.argv[1]))
def extra(name, info, index):
    return {"index": index, "verifier": name, "info": json.dumps(info), "num_turns": 1}
scores = [reward.compute_score(data_source="s", solution_str=t, ground_truth=a, extra_info=extra(n, i, k))
          for k, (n, t, a, i) in enumerate(rows)]
again = reward.compute_scores(["s"] * len(rows), [r[1] for r in rows], [r[2] for r in rows], [extra(r[0], r[3], 0) for r in rows])
reward._judge.kill()
reward._judge.wait()
after = reward.compute_score("s", rows[0][1], rows[0][2], extra(rows[0][0], rows[0][3], 0))
try:
    reward.compute_score("s", "x", "y", extra("no_such_verifier", {}, 0))
except RuntimeError as error:
    print(json.dumps([scores, again, after, str(error)]))
"""


@pytest.mark.slow
def test_every_row_gets_the_score_that_it_gets_here(tmp_path):
    shutil.copy(str(whetstone_reward.__file__), tmp_path / "whetstone_reward.py")
    (tmp_path / "judge.json").write_text(json.dumps({"plugins": [], "sandbox": "auto"}))
    about = {
        "command": python("pipelines.external.judge", str(tmp_path / "judge.json")), "environment": {}, "folder": str(tmp_path)
    }  # fmt: skip
    (tmp_path / "whetstone_reward.json").write_text(json.dumps(about))
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    told = subprocess.run(
        [sys.executable, "-c", ASKS, "rows.json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=toys.environment(PYTHONPATH=str(tmp_path)),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    scores, again, after, refusal = json.loads(told.stdout.splitlines()[-1])
    here = verifiers.verify_many(ROWS)
    assert {score["acc"] for score in scores} == {0.0, 1.0}
    for score, verdict, row in zip(scores, here, ROWS, strict=True):
        assert score == {"score": verdict.score, "acc": float(verdict.correct), "unscored": 0.0}, row
    assert again == scores and after == scores[0]
    assert "unknown verifier 'no_such_verifier'" in refusal
