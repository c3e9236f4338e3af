"""Scores of completions from Whetstone's verifiers, for trainers in environments of their own. This file is copied beside the data.

It imports the standard library alone: the verifiers run in a process of Whetstone's Python, which the file `whetstone_reward.json` beside
it says how to start. One is started for each process that scores, and ends with it.
"""

import json
import os
import subprocess
import threading

_lock = threading.Lock()
_judge = None
_owner = 0


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    """The score of a completion, in verl's form: `score`, `acc` (1 where correct) and `unscored` (1 where the verifier itself failed, which
    counts as 0 because trainers know no row without a score).

    Raises:
        RuntimeError: the verifiers cannot be asked, or refuse the row.
    """
    return compute_scores([data_source], [solution_str], [ground_truth], [extra_info])[0]


def compute_scores(data_sources, solution_strs, ground_truths, extra_infos, **others):
    """`compute_score` of a batch, which is verified together."""
    rows = []
    for text, answer, extra in zip(solution_strs, ground_truths, extra_infos, strict=True):
        info = extra.get("info") or "{}"
        rows.append([extra["verifier"], str(text), str(answer), json.loads(info) if isinstance(info, str) else info])
    return _ask(rows)


def _ask(rows):
    global _judge, _owner
    with _lock:
        for _ in (1, 2):
            if _judge is None or _owner != os.getpid() or _judge.poll() is not None:
                _judge, _owner = _start(), os.getpid()
            try:
                _judge.stdin.write(json.dumps(rows) + "\n")
                _judge.stdin.flush()
                reply = json.loads(_judge.stdout.readline() or "null")
            except (BrokenPipeError, ValueError):
                reply = None
            if reply is not None:
                break
            _judge.kill()
            _judge = None
    if reply is None:
        raise RuntimeError("Whetstone's verifiers ended before they answered; their output is in this process's")
    if "error" in reply:
        raise RuntimeError("Whetstone's verifiers: " + reply["error"])
    return reply["scores"]


def _start():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "whetstone_reward.json")) as file:
        about = json.load(file)
    environment = {**os.environ, **about["environment"]}
    return subprocess.Popen(
        about["command"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=about["folder"], text=True
    )
