"""What happens when something dies, one row per fault, each with a test that makes it happen; and what hostile inputs are tried.

`make docs` writes both tables into docs/operations.md; a test checks that they are fresh and that the tests exist. The counts of the
second are those of the last `make test-hostile`, which stores them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- faults: written by `make docs` from tests/hostile/faults.py -->", "<!-- /faults -->"
INPUTS_BEGIN, INPUTS_END = "<!-- inputs: written by `make docs` from tests/hostile/faults.py -->", "<!-- /inputs -->"
COUNTS = Path(__file__).with_name("counts.json")
"""Kind → [tests that were run, tests that passed], as `make test-hostile` left it."""


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    dies: str
    when: str
    happens: str
    code: str
    """Exit code of the command; – where it continues."""
    do: str
    test: str
    """Where it is tried: `file::function`, below tests/."""


SIGNALS = "hostile/test_processes.py::test_signals"
FAULTS = [
    Fault(
        "the command: Ctrl+C (SIGINT to its group)", "at any moment",
        "the stage ends at its last commit, its MLflow runs are marked KILLED, the embedded Prefect server stops; one line is printed",
        "130", "start the same command: it continues in the same MLflow runs", SIGNALS,
    ),
    Fault("the command: SIGTERM, SIGHUP", "at any moment", "as above", "143, 129", "start the same command", SIGNALS),
    Fault(
        "the command: SIGKILL, out of memory, power", "at any moment",
        "its stage, all ranks, what they started and the embedded server end by themselves; the next start or `whetstone sync` "
        "closes the MLflow runs with the reason",
        "137", "start the same command: it continues from the last commit", SIGNALS,
    ),
    Fault(
        "the command: SIGKILL", "while the stage's process is still importing", "the stage's process ends before it begins",
        "137", "start the same command", "tasks/test_process.py::test_a_job_whose_owner_is_gone_never_begins",
    ),
    Fault(
        "the command, on a machine that stays down", "after it opened its MLflow runs",
        "the next start of any recipe in this folder, and `whetstone sync`, mark the runs KILLED and say which run they belonged to",
        "–", "nothing", "tasks/tracking/test_leases.py::test_stages_of_a_killed_run_are_closed_too",
    ),
    Fault(
        "one of two simultaneous pipelines of a recipe", "in the stage that both need",
        "each has its own parent run, and only that of the killed one is marked; the other one, which was waiting, continues "
        "the stage from its last commit",
        "–", "nothing", "hostile/test_processes.py::test_two_pipelines_at_once",
    ),
    Fault(
        "one rank of several", "while the stage runs", "the other ranks are ended; the stage has failed", "1",
        "read stage.log, start the same command", "tasks/test_process.py::test_a_rank_that_fails_ends_the_others",
    ),
    Fault(
        "the launcher of a stage's ranks", "while the stage runs", "the ranks and what they started end",
        "–", "Prefect starts the stage once more", "tasks/test_process.py::test_nothing_outlives_its_owner",
    ),
    Fault(
        "a stage's process: SIGKILL", "while it runs", "Prefect starts it once more; it continues from its last commit",
        "–", "nothing; 1 after the second time", "hostile/test_processes.py::test_a_killed_stage_goes_on",
    ),
    Fault(
        "a Prefect worker: SIGKILL", "while a flow works",
        "its flow ends by itself within seconds, the stage at its last commit: MLflow says KILLED, Prefect Crashed",
        "–", "nothing: the upkeep deployment restarts it; so does any later run of the recipe",
        "flows/test_faults.py::test_a_killed_worker",
    ),
    Fault(
        "`whetstone worker`: SIGTERM, Ctrl+C", "while a flow works", "as above, within 10 seconds", "143, 130",
        "nothing; a service manager should signal this process alone (systemd: `KillMode=mixed`)",
        "flows/test_operations.py::test_a_worker_that_is_asked_to_leave",
    ),
    Fault(
        "an RLVR stage on several sources: SIGKILL", "between commits, with episodes and answers, groups of two sizes and terms by source",
        "its next start continues from the last commit and ends with the same bytes", "137", "start the same command",
        "pipelines/rlvr/test_by_source.py::test_a_killed_run_on_episodes_and_answers_ends_with_the_same_bytes",
    ),
    Fault(
        "worker, flow and stage at once: SIGKILL, power", "while a flow works",
        "after five minutes without a heartbeat the Prefect server marks the flow run Crashed (or upkeep does, at its second check); "
        "upkeep restarts it, at most twice; it continues from the last commit, in the same MLflow runs",
        "–", "nothing", "flows/test_automations.py::test_the_server_marks_what_died_with_its_worker_and_has_it_started_again",
    ),
    Fault(
        "Prefect's and MLflow's servers", "for minutes, while a stage trains",
        "training continues; when they are back, every metric point arrives once and the flow run is Completed",
        "–",
        "nothing; Prefect's worker no longer checks for cancellations of that run, so to cancel it stop `whetstone worker`",
        "flows/test_operations.py::test_both_servers_away_in_mid_training",
    ),
    Fault(
        "the machine of a worker or a command", "for good",
        "15 minutes after its last sign of life the next run in any project folder of the store, `whetstone sync` and the upkeep "
        "deployment close its MLflow runs with the reason; its flow run is marked Crashed and started elsewhere",
        "–", "nothing", "tasks/tracking/test_leases.py::test_a_run_of_a_machine_that_never_came_back_is_closed_elsewhere",
    ),
    Fault(
        "the embedded Prefect server", "before it answers", "one line that names its log", "2",
        "`whetstone doctor`; remove its folder, or name a server", "tasks/test_prefect_server.py::test_a_server_that_cannot_start",
    ),
    Fault(
        "the reader of the output (`| head`)", "at any moment", "the command runs to its end without output", "0", "nothing",
        "flows/cli/test_output.py::test_a_reader_that_leaves",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """A kind of hostile input that is tried beside the module that it is for, instead of in tests/hostile."""

    fed: str
    right: str
    """What has to come out."""
    files: tuple[str, ...]
    """Test files, below tests/: all of their tests count."""


INPUTS = {
    "statistics of a comparison": Inputs(
        "ties, shares of 0 and 1, five problems, one changed answer of thousands, correlated answers",
        "interval and p-value agree with each other and with the exact test, and hold their level and coverage",
        ("pipelines/base/test_intervals.py", "evaluation/test_paired.py", "evaluation/test_ranking.py"),
    ),
    "math answers": Inputs(
        "half-read formulas, lists with dots, units and scale words, near misses of 1e-16, other spellings of the right value",
        "a right answer is paid, any other is not, within its time",
        ("pipelines/verifiers/test_math.py", "pipelines/verifiers/test_equality.py", "pipelines/verifiers/test_number.py"),
    ),
    "choices and instructions": Inputs(
        "letters in prose, hedged answers, several boxes, words inside words",
        "the letter that is meant, or none; IFEval's own verdict",
        ("pipelines/verifiers/test_choice.py", "pipelines/verifiers/test_form.py"),
    ),
    "one answer against its batch": Inputs(
        "bombs, sleepers, deep replies, killed workers, texts that no encoding likes",
        "it costs its own score; the others have theirs, and rows that had no turn are unscored",
        ("pipelines/verifiers/test_pool.py", "pipelines/sandbox/test_sandbox.py", "pipelines/verifiers/test_python.py"),
    ),
    "rows and columns of data": Inputs(
        "conventions of other libraries, reasoning, tools, nulls that Arrow fills in, columns that nobody knows",
        "all of a row is in its record, or named as unused, or the row is quarantined",
        ("pipelines/curate/test_conventions.py", "pipelines/curate/test_cells.py", "pipelines/curate/test_formats.py"),
    ),
    "chat templates": Inputs(
        "templates that strip reasoning, ignore roles or tools, write no end token, do not end; control tokens in the text",
        "what is trained and shown is the conversation with its end token, or the template is refused before a run",
        ("pipelines/data/test_template.py", "pipelines/data/test_template_families.py"),
    ),
    "benchmarks": Inputs(
        "unknown verifiers, wrong tasks, broken rows, programs that attack",
        "refused by `plan` with file and line, or run in the sandbox",
        ("evaluation/test_benchmark_files.py", "evaluation/test_programs.py"),
    ),
    "training that learns nothing": Inputs(
        "rewards all 0 or all 1, a learning rate of 5, answers that are cut or grow, a reward against the verifier",
        "an alarm that says what to do; none in healthy runs",
        ("pipelines/rlvr/test_train_silent_failures.py", "pipelines/monitor/test_healthy_runs.py"),
    ),
    "commands of a shell": Inputs(
        "other files, processes, namespaces, the network, bombs of processes, memory and files, what would outlive a command, odd names",
        "nothing outside is read or changed, each ends in its time, the next episode finds nothing of it",
        ("hostile/test_shells.py",),
    ),
}  # fmt: skip


def kind_of(path: Path) -> str | None:
    """The kind of hostile input that a test file tries, of those outside tests/hostile; None for any other file."""
    name = path.as_posix().rpartition("/tests/")[2]
    return next((kind for kind, inputs in INPUTS.items() if name in inputs.files), None)


def table() -> str:
    """The rows as Markdown."""
    lines = ["| what dies | when | what happens | exit code | what to do |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = (fault.dies, fault.when, fault.happens, fault.code, fault.do)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def inputs_table() -> str:
    """The kinds of hostile inputs as Markdown, with the tests that were run and passed; those of tests/hostile by their counts alone."""
    counts = json.loads(COUNTS.read_text())
    lines = ["| kind | what is fed | what has to come out | tried | right |", "|---|---|---|---|---|"]
    for kind in [*INPUTS, *sorted(counts.keys() - INPUTS.keys())]:
        about = INPUTS.get(kind)
        fed, right = (about.fed, about.right) if about else ("damaged inputs and faults (tests/hostile)", "as above")
        tried, passed = counts.get(kind, ("–", "–"))
        lines.append(f"| {kind} | {fed} | {right} | {tried} | {passed} |")
    return "\n".join(lines)


def put(page: str) -> str:
    """The page with both tables between their marks."""
    for begin, end, text in ((BEGIN, END, table()), (INPUTS_BEGIN, INPUTS_END, inputs_table())):
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{text}\n{end}{after}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["--files"]:
        names = [name for inputs in INPUTS.values() for name in inputs.files if not name.startswith("hostile/")]
        print(*(f"tests/{name}" for name in names))
    else:
        path = Path(sys.argv[1])
        path.write_text(put(path.read_text()))
