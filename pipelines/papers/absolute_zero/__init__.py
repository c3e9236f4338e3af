"""Absolute Zero: Reinforced Self-play Reasoning with Zero Data.

arXiv 2505.03335. Presets: absolute_zero. Parts: absolute_zero (rollout), absolute_zero (advantage).

The policy proposes tasks on programs, the sandbox says what is true of them, and the policy solves them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.method import Rollout
from pipelines.data import marks
from pipelines.data.records import Stop, Trajectory, by_group
from pipelines.papers.absolute_zero.programs import (
    NO_ERROR,
    Unknown,
    agrees,
    arguments,
    blocks,
    literal,
    raised,
    returned,
)
from pipelines.papers.common.groups import Groups
from pipelines.rlvr.common.answers import answers
from pipelines.rlvr.ops import standardised
from pipelines.sandbox import pool
from pipelines.sandbox.compare import equal
from pipelines.sandbox.inside import wire
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Message

PAPER, TITLE = "2505.03335", "Absolute Zero: Reinforced Self-play Reasoning with Zero Data"
Kind = Literal["deduction", "abduction", "induction", "error"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SEED = ("def f(x):\n    return x", "'Hello world'")
"""The program and the input that the search starts from; the program returns its input."""
BUDGET_S = 600.0
"""Wall time for the programs of a draw."""
PROGRAM = (
    "Write a new Python function `f` and one input for it. {aim} The function must be deterministic, return a value, and use no random "
    "numbers, files, network or clock. It should be unlike these:\n\n{references}\n\nGive the program between ```python and ```, and the "
    "arguments, as Python literals, between ```input and ```."
)
AIMS = {
    "deduction": "Somebody will see the function and the input and has to work out what it returns, which should take several steps.",
    "abduction": "Somebody will see the function and what it returns and has to find an input for it, which should take several steps.",
    "error": "Somebody will see the function and the input and has to say in which exception the call ends, if any. Never write raise.",
}
INPUTS = (
    "```python\n{program}\n```\n\nWrite {count} inputs of this function that show what it does, and a message. Somebody will see half "
    "of the inputs with what the function returns, and the message, and has to write the function; it is tried on the others. The "
    "message must not contain the program. Give the arguments of each input, as Python literals, between ```input and ```, and the "
    "message between ```message and ```."
)
ASKED = {
    "deduction": "```python\n{program}\n```\n\nWhat does `f({input})` return? Give it as a Python literal between ```output and ```.",
    "abduction": (
        "```python\n{program}\n```\n\nFind an input for which `f` returns\n\n{output}\n\nGive the arguments, as Python literals, between "
        "```input and ```."
    ),
    "error": "```python\n{program}\n```\n\nIn which exception does `f({input})` end? Give its type, or NoError, between ```output and ```.",
    "induction": (
        "{message}\n\n{examples}\n\nWrite the Python function `f` that gives these outputs; it is tried on other inputs. Give it between "
        "```python and ```."
    ),
}
COLUMNS = {
    "task_role": Column(
        "B", "int64", Phase.FILTER, "the rollout absolute_zero",
        "Kind of the row's task, twice, plus 1 where the row solves it and 0 where it proposes one.",
        row=lambda t: t.extras.get("task_role", 0), part=True, hint="Propose tasks: rollout: absolute_zero.",
    ),
}  # fmt: skip

Count = Annotated[int, Field(ge=1, le=1000)]


@dataclass(frozen=True)
class Task:
    """A task that the sandbox has checked."""

    kind: Kind
    program: str
    inputs: tuple[str, ...]
    """Arguments as text."""
    outputs: tuple[str, ...]
    """What the program returns for each, as text."""
    message: str = ""

    @property
    def values(self) -> list[Any]:
        """The outputs as data of the sandbox's wire, made here from the text; nothing of names of exceptions."""
        return [] if self.kind == "error" else [wire.encode(literal(text)) for text in self.outputs]

    def question(self) -> str:
        """What a solver is asked; of an induction half of the inputs are shown."""
        shown = range(len(self.inputs) // 2)
        examples = "\n".join(f"f({self.inputs[i]}) = {self.outputs[i]}" for i in shown)
        places = {
            "program": self.program,
            "input": self.inputs[0],
            "output": self.outputs[0],
            "message": self.message,
            "examples": examples,
        }
        return _filled(ASKED[self.kind], **places)

    def hidden(self) -> tuple[list[str], list[Any]]:
        """Inputs and values that an induction's answer is tried on."""
        half = len(self.inputs) // 2
        return list(self.inputs[half:]), self.values[half:]


@dataclass
class Proposal:
    """A proposing row, what it was asked, and what came of it."""

    row: Trajectory
    kind: Kind
    shown: str
    """The program that an induction is about."""
    task: Task | None = None
    solved: Task | None = None
    """What the solver is asked: its task, or where that does not hold one of an earlier step."""
    judged: bool = True
    """Whether the sandbox could say what it is."""
    solutions: list[Trajectory] = field(default_factory=list)


@method(
    paper=PAPER,
    title=f"{TITLE}: its rollouts",
    checked="official code (read; the prompts' wording is ours, the answers that tell a task's difficulty are trained on)",
    requires=(("prompting", "plain"), ("reward", "verifier")),
    makes=("task_role",),
    scores_rows=True,
    sets_group_size=True,
)
class absolute_zero(Rollout):
    """Two sorts of rows: tasks that the policy proposes, and its answers to those that hold.

    The prompts of a step take turns in `kinds`. A deduction is a program f and an input, and asks for the output; an abduction gives the
    output and asks for an input; an induction shows half of `inputs` inputs of a known program with their outputs and a message, and asks
    for a program that agrees on the others. An error, which the released scripts leave out and so does the default, is a deduction of the
    exception that the call ends in, the nearest built-in one, or of NoError; its programs have a buffer of their own, and may not say
    raise. Proposers see `references` programs of the buffer, an induction's one of them. A task holds
    where every input is made of Python literals and the program returns the same literal for it each time that it is called. Programs run
    in the sandbox alone, which has no files, network or clock to ask. One that holds joins the buffer once the draw is scored.

    Every task that holds gets `solutions` answers. So that the solver has as many tasks in every step, one of the same kind that held in an
    earlier step is drawn in the place of each that does not hold (`fill`; every such task equally often, the first program's too; an
    induction needs one that held). Rewards, as released, with p the share of correct answers:

        proposer   1 - p where 0 < p < 1, -0.5 where p is 0 or 1, -1 where the task does not hold
        solver     1 where correct, -0.5 where not, -1 where the answer is not between its marks

    Records are not read but for their place in the step: a split of one record will do. Use `filter: all_rows` and
    `advantage: absolute_zero`. Left out: composite programs and the rewards for complexity and diversity, which the released scripts
    switch off. The buffers are in every commit.

    Take it where there are no problems at all and the policy writes programs already; with problems at hand `svs` makes variants of them.
    Components: `proposed` (rewards of proposers), `solved` (1 or 0). Metrics: `programs`, `held` (share of proposals), `filled` (share of
    proposals in whose place an earlier task was solved).
    """

    def __init__(
        self,
        *,
        kinds: Annotated[list[Kind], Field(min_length=1, max_length=4)] = list(KINDS[:3]),  # noqa: B006
        references: Annotated[int, Field(ge=0, le=100)] = 6,
        inputs: Annotated[int, Field(ge=2, le=100)] = 10,
        solutions: Count = 8,
        capacity: Annotated[int, Field(ge=1, le=1_000_000)] = 16_384,
        cpu_s: Annotated[int, Field(ge=1, le=60)] = 3,
        fill: bool = True,
    ) -> None:
        self.kinds, self.references, self.inputs, self.solutions = kinds, references, inputs, solutions
        self.capacity, self.limits, self.fill = capacity, Limits(cpu_s=cpu_s), fill
        self.programs: dict[str, str] = dict([SEED])
        """Program → an input of it, in the order in which they came."""
        self.failing: dict[str, str] = dict([SEED])
        """The same, of tasks about errors."""
        self.tasks = _first_tasks()
        """Of each kind those that hold, in the order in which they came."""
        self.held: list[tuple[bool, bool]] = []
        """Of each proposal of the step whether it holds, and whether an earlier task was solved in its place."""

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """Proposals, then answers to those that hold; all scored."""
        groups = Groups(requests, context)
        proposals = self._proposals(requests, context)
        self._judge(proposals)
        solved: list[Proposal] = []
        solving: list[tuple[RolloutRequest, list[Message]]] = []
        for proposal in proposals:
            group = groups.next(proposal.row)
            proposal.solved = proposal.task or self._earlier(proposal.kind, context.streams.integer(group))
            if proposal.solved is not None:
                request = replace(groups.origin(proposal.row), group=group, rollouts=self.solutions)
                solved.append(proposal)
                solving.append((request, [{"role": "user", "content": proposal.solved.question()}]))
        solutions = _answers(solving, context)
        of_group = by_group(solutions)
        for proposal, (request, _) in zip(solved, solving, strict=True):
            proposal.solutions = of_group.get(request.group, [])
        self._grade(solved)
        for proposal in proposals:
            _pay(proposal)
        return [proposal.row for proposal in proposals] + solutions

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Keep the tasks that hold and their programs, the newest ones, on every process alike."""
        for row in rows:
            if "holds" in row.extras:
                self.held.append((bool(row.extras["holds"]), row.extras["filled"]))
            if row.extras.get("holds"):
                task = _task(row.extras["holds"])
                self._buffer(task.kind).setdefault(task.program, task.inputs[0])
                self.tasks[task.kind].setdefault(task)
        buffers: list[dict[Any, Any]] = [self.programs, self.failing, *self.tasks.values()]
        for buffer in buffers:
            while len(buffer) > self.capacity:
                del buffer[next(iter(buffer))]
        return rows

    def metrics(self) -> dict[str, float]:
        """Programs of the buffer, and the shares of the step's proposals that held and that an earlier task took the place of."""
        proposed, self.held = self.held, []
        columns = zip(("held", "filled"), zip(*proposed, strict=True), strict=False)
        shares = {name: sum(each) / len(proposed) for name, each in columns}
        return {"programs": float(len(self.programs))} | shares

    def state_dict(self) -> dict[str, Any]:
        """The buffers."""
        tasks = [list(astuple(task)) for each in self.tasks.values() for task in each]
        return {"programs": list(self.programs.items()), "failing": list(self.failing.items()), "tasks": tasks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.programs, self.failing = dict(state["programs"]), dict(state.get("failing", [SEED]))
        self.tasks = _first_tasks() if "tasks" not in state else {kind: {} for kind in KINDS}
        for task in map(_task, state.get("tasks", [])):
            self.tasks[task.kind][task] = None

    def _earlier(self, kind: Kind, number: int) -> Task | None:
        """A task of a kind that held in an earlier step, drawn by a number; None without one."""
        known = list(self.tasks[kind]) if self.fill else []
        return random.Random(number).choice(known) if known else None

    def _buffer(self, kind: Kind) -> dict[str, str]:
        return self.failing if kind == "error" else self.programs

    def _proposals(self, requests: Sequence[RolloutRequest], context: RolloutContext) -> list[Proposal]:
        """The rows that propose tasks."""
        kinds: dict[int, tuple[Kind, str]] = {}
        asked = []
        for request in requests:
            draw = random.Random(context.streams.integer(request.group))
            kind = self.kinds[request.group % len(self.kinds)]
            known = list(self._buffer(kind).items())
            shown = draw.sample(known, min(len(known), 1 if kind == "induction" else self.references))
            if kind == "induction":
                text = _filled(INPUTS, program=shown[0][0], count=str(self.inputs))
            else:
                references = "\n\n".join(
                    f"```python\n{program}\n```\n```input\n{inputs}\n```" for program, inputs in shown
                )
                text = _filled(PROGRAM, aim=AIMS[kind], references=references)
            kinds[request.group] = (kind, shown[0][0] if kind == "induction" else "")
            asked.append((request, [{"role": "user", "content": text}]))
        rows = _answers(asked, context)
        return [Proposal(row, *kinds[row.group]) for row in rows]

    def _judge(self, proposals: Sequence[Proposal]) -> None:
        """Say which proposals hold."""
        read: list[tuple[Proposal, str, list[str]]] = []
        for proposal in proposals:
            inputs = blocks(proposal.row.text, "input")
            programs = [proposal.shown] if proposal.kind == "induction" else blocks(proposal.row.text, "python")[-1:]
            wanted = self.inputs if proposal.kind == "induction" else 1
            if programs and len(inputs) == wanted and all(arguments(text) is not None for text in inputs):
                read.append((proposal, programs[0], inputs))
        outputs_of = self._ran(
            [
                partial(
                    raised if proposal.kind == "error" else returned,
                    program=program,
                    inputs=inputs,
                    limits=self.limits,
                )
                for proposal, program, inputs in read
            ]
        )
        for (proposal, program, inputs), outputs in zip(read, outputs_of, strict=True):
            proposal.judged = outputs is not Unknown
            if outputs is Unknown or outputs is None:
                continue
            messages = blocks(proposal.row.text, "message")
            message = messages[-1] if messages else ""
            proposal.task = Task(proposal.kind, program, tuple(inputs), tuple(outputs), message)

    def _grade(self, proposals: Sequence[Proposal]) -> None:
        """Score the answers to tasks."""
        trials: list[tuple[Trajectory, Callable[[Sandbox], bool]]] = []
        for proposal in proposals:
            task = proposal.solved
            assert task is not None
            for row in proposal.solutions:
                row.extras = {"task_role": 2 * KINDS.index(task.kind) + 1}
                if row.stop == Stop.ERROR:
                    continue
                mark = {"abduction": "input", "induction": "python"}.get(task.kind, "output")
                answer = next(iter(blocks(row.text, mark)[::-1]), None)
                if answer is None:
                    _mark(row, -1.0, "unparsable")
                elif task.kind == "deduction":
                    value = literal(answer)
                    matches = value is not Unknown and equal(task.values[0], wire.encode(value))
                    _mark(row, 1.0 if matches else -0.5, "correct" if matches else "incorrect")
                elif task.kind == "error":
                    matches = re.split(r"[ :]", answer)[0].lower() == task.outputs[0].lower()
                    _mark(row, 1.0 if matches else -0.5, "correct" if matches else "incorrect")
                elif task.kind == "abduction" and arguments(answer) is None:
                    _mark(row, -0.5, "incorrect")
                else:
                    program = answer if task.kind == "induction" else task.program
                    inputs, values = task.hidden() if task.kind == "induction" else ([answer], task.values)
                    trials.append(
                        (row, partial(agrees, program=program, inputs=inputs, values=values, limits=self.limits))
                    )
        for (row, _), correct in zip(trials, self._ran([trial for _, trial in trials]), strict=True):
            if correct is Unknown:
                row.status = "verifier_failed"
            else:
                _mark(row, 1.0 if correct else -0.5, "correct" if correct else "incorrect")

    def _ran(self, jobs: Sequence[Callable[[Sandbox], Any]]) -> list[Any]:
        """What each job returns; `Unknown` where the sandbox could not say."""
        results = pool.shared().run(jobs, BUDGET_S)
        lost = (pool.Late, pool.Unfinished)
        return [Unknown if result in lost or isinstance(result, pool.Failed) else result for result in results]


def _first_tasks() -> dict[Kind, dict[Task, None]]:
    """The buffers of tasks that the search starts with: the first program's, of every kind but inductions, which show several inputs."""
    program, text = SEED
    outputs = {"deduction": text, "abduction": text, "error": NO_ERROR}
    return {kind: {Task(kind, program, (text,), (outputs[kind],)): None} if kind in outputs else {} for kind in KINDS}


def _task(fields: Sequence[Any]) -> Task:
    """What `astuple` made a list of."""
    kind, program, inputs, outputs, message = fields
    return Task(kind, program, tuple(inputs), tuple(outputs), message)


def _pay(proposal: Proposal) -> None:
    """Score a proposal by the answers to its task."""
    row, task = proposal.row, proposal.task
    row.extras = {"task_role": 2 * KINDS.index(proposal.kind), "filled": task is None and proposal.solved is not None}
    if row.stop == Stop.ERROR:
        return
    if not proposal.judged:
        row.status = "verifier_failed"
        return
    row.extras["holds"] = [] if task is None else list(astuple(task))
    if task is None:
        _mark(row, -1.0, "unparsable", "proposed")
        return
    known = [bool(each.correct) for each in proposal.solutions if each.score is not None]
    if not known:
        row.status = "verifier_failed"
        return
    value = learnability(sum(known) / len(known))
    _mark(row, value, "correct" if value > 0 else "incorrect", "proposed")


def learnability(rate: float) -> float:
    """What a task pays whose answers are correct at a rate: 1 - rate, and -0.5 where all or none are.

    >>> [learnability(rate) for rate in (0.0, 0.25, 1.0)]
    [-0.5, 0.75, -0.5]
    """
    return 1 - rate if 0 < rate < 1 else -0.5


def _mark(row: Trajectory, score: float, status: str, component: str = "solved") -> None:
    row.score, row.correct, row.status = score, status == "correct", status
    row.components = {component: score if component == "proposed" else float(status == "correct")}


def _answers(asked: Sequence[tuple[RolloutRequest, list[Message]]], context: RolloutContext) -> list[Trajectory]:
    """Answers to prompts that are no problem's own, each with its prompt for logs."""
    prompts = context.render([messages for _, messages in asked]) if asked else []
    requests = [replace(request, prompt=prompt) for (request, _), prompt in zip(asked, prompts, strict=True)]
    rows = answers(requests, context) if requests else []
    conversations = {request.group: messages for request, messages in asked}
    for row in rows:
        row.prompt = conversations[row.group]
    return rows


def _filled(template: str, **places: str) -> str:
    """A template with texts in the place of {names}; braces of the texts stay what they are, and an output names no image."""
    return re.sub(r"\{(\w+)\}", lambda match: marks.unnamed(places.get(match[1], match[0])), template)


@method(
    paper=PAPER,
    title=f"{TITLE}: a baseline for each task and role (TRR++)",
    checked="third-party code (verl, called as the official trainer does), 3 cases",
    crosses_groups="a role is compared over the batch",
    group_of_one="is compared with the rows of its role",
    reduces_to="with one role it is reinforce_pp",
)
def absolute_zero_advantage(
    reward: PerRow,
    task_role: PerRow,
    mask: PerToken,
    scored: PerRow,
    *,
    eps: Annotated[float, Field(gt=0)] = 1e-8,
) -> PerToken:
    """(r - mean) / (deviation + eps) over the tokens of all rows of the same kind of task and the same role; ddof 1.

    Proposers and solvers, and the three kinds of task, are paid at different levels: one baseline for all would train on the difference
    between them. Long rows count as often as they have tokens.

    >>> import torch
    >>> r, role, one = torch.tensor([1.0, -1.0, 3.0, 3.0]), torch.tensor([0, 0, 1, 1]), torch.ones(4, 1).bool()
    >>> [round(v, 6) for v in absolute_zero_advantage(r, role, one, one[:, 0]).flatten().tolist()]
    [0.707107, -0.707107, 0.0, 0.0]
    """
    trained = mask & scored[:, None]
    per_token, roles = (each[:, None].expand_as(mask).flatten() for each in (reward, task_role))
    value = standardised(per_token, roles, trained.flatten(), eps=eps).view(mask.shape)
    return torch.where(trained, value, torch.zeros_like(value)).float()
