"""The fields of a sample stage."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipelines.contract import template
from pipelines.contract.fields import Identifier, Label, Settings, free
from pipelines.contract.model_endpoint import Concurrency, ModelEndpoint, ModelName, Timeout, Url
from pipelines.contract.sampling import Sampling
from pipelines.judges.asker import Endpoint
from pipelines.recipe.guidance import Guidance
from pipelines.recipe.search import Search
from pipelines.recipe.server import SERVED_ALONE, Server

READING = {"step_labels": (), "comparisons": ("step_labels", "guidance", "sampler")}
"""Fields of stages that read stored completions, and what beside drawing none of them takes."""


class SelfJudge(Settings):
    """How the sampled model is asked for a grade of its own completions (Self-Rewarding); as the fields of `reward: judge`."""

    instruction: str = Field("", max_length=8000)
    template: Annotated[str | None, Field(max_length=8000)] = None
    reference: bool = False
    low: int = Field(0, ge=-1000, le=1000)
    high: int = Field(5, ge=-1000, le=1000)
    max_tokens: int = Field(512, ge=1, le=100_000)
    temperature: float = Field(0.0, ge=0, le=10)
    """0 is greedy."""
    samples: int = Field(1, ge=1, le=1000)
    """Grades drawn of a completion; the mean of those that can be read counts."""

    @model_validator(mode="after")
    def _fits(self) -> SelfJudge:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("samples: greedy grades are all the same; set a temperature above 0, or one sample")
        if self.low >= self.high:
            raise ValueError(f"high ({self.high}) is not above low ({self.low})")
        if fault := template.problem_with(self.template, ("answer",)):
            raise ValueError(f"template: {fault}")
        return self


class Episodes(Settings):
    """Episodes in the environment that each problem names, instead of single answers."""

    max_turns: int = Field(10, ge=1, le=10_000)
    """`sampling.max_tokens` are those of a turn."""


class StepLabels(Settings):
    """Where the steps end whose labels are drawn; as the fields of `reward: process_model`."""

    separator: str = Field("\n\n", min_length=1, max_length=40)
    most: int = Field(64, ge=1, le=1000)
    shortest: int = Field(1, ge=1, le=1000)


NEW_PROMPT = "Here are some tasks:\n\n{examples}\n\nWrite one more task of the kind that is not like any of them. Write the task alone."


class NewPrompts(Settings):
    """How the sampled model is asked for new prompts (Self-Rewarding), which `select: prompts` makes records of."""

    shots: int = Field(8, ge=1, le=1000)
    """Prompts of the split that a request shows."""
    template: str = Field(NEW_PROMPT, min_length=1, max_length=8000)
    """The request, with them in place of {examples}."""
    separator: str = Field("\n\n", min_length=1, max_length=40)
    """Between two of them."""

    @model_validator(mode="after")
    def _shows(self) -> NewPrompts:
        if "{examples}" not in self.template:
            raise ValueError("template: it has no {examples}, so no prompt would be shown; add it")
        return self


OF_JUDGES = ("goal", "analyse", "both_orders", "template", "instruction", "reference", "temperature", "max_tokens")
"""Fields of comparisons that only a judge reads."""


class Comparisons(Endpoint):
    """Who says which of two stored completions, or episodes, of a problem came closer to the goal (RL-VLM-F)."""

    by: Literal["model", "endpoint", "score"] = "model"
    """model: the stage's own `model` judges in this process. endpoint: the model `model` at an endpoint.
    score: no judge but the rule: the higher score is better, unsure where they differ by at most `margin`."""
    model: ModelName | None = None  # type: ignore[assignment]
    url: Url | None = free(None)
    api_key_env: Identifier | None = free(None)
    concurrency: Concurrency = free(16)
    timeout_s: Timeout = free(120.0)
    cache: bool = free(True)
    goal: str = Field("", max_length=8000)
    """In words, after "The goal is"; default: what the conversation asks for."""
    analyse: bool = True
    """Ask twice: what happens in both and what that means for the goal, then for the verdict by that text alone; otherwise once."""
    both_orders: bool = False
    """Ask in both orders, and be unsure where the verdicts differ."""
    template: Annotated[str | None, Field(max_length=8000)] = None
    """The whole question in words of one's own, with `{first}` and `{second}`; the reply ends in "Better: first", "second" or "unsure"."""
    per_problem: int = Field(4, ge=1, le=1_000_000)
    """Most comparisons a problem, drawn by the seed among all pairs that read differently."""
    margin: float = Field(0.0, ge=0)
    states: bool = False
    """Compare what the environment showed after single turns, such as pictures, in place of whole episodes."""

    @model_validator(mode="after")
    def _judge(self) -> Comparisons:
        if (self.by == "endpoint") != (self.model is not None):
            raise ValueError(
                "model is the name of the model behind an endpoint: by: endpoint needs it, and nothing else takes it"
            )
        if self.by != "endpoint" and (self.url or self.api_key_env):
            raise ValueError(
                "url and api_key_env are those of an endpoint; leave them out, or set by: endpoint and its model"
            )
        if self.by != "score" and self.margin:
            raise ValueError("margin is read by: score; leave it out")
        told = [name for name in OF_JUDGES if getattr(self, name) != type(self).model_fields[name].default]
        if self.by == "score" and told:
            raise ValueError(f"{told[0]} is about a judge, and by: score asks none; leave it out")
        if fault := template.problem_with(self.template, ("first", "second")):
            raise ValueError(f"template: {fault}")
        if self.by == "score" and self.states:
            raise ValueError("states have no score of their own; ask a judge, or leave states out")
        if self.template is not None and self.goal:
            raise ValueError("goal stands in the questions that a template replaces; write it into the template")
        return self


OF_OWN_MODELS = ("episodes", "reference", "guidance", "search", "self_judge", "step_labels", "comparisons", "sampler")
"""Fields of a sample stage that read a model's tokens, or load it."""


class Sample(Settings):
    """Completions of a model on the problems of a split."""

    model: ModelEndpoint | None = None
    """Instead of the name of a stage: a model behind an OpenAI-compatible server, such as a teacher whose answers are to be learned."""
    split: Label = "train"
    k: int = Field(8, ge=1, le=100_000)
    """Completions a problem."""
    problems: int | None = Field(None, ge=1, le=1_000_000_000)
    """At most this many of the split's problems, from its start; default: all."""
    episodes: Episodes | None = None
    """Play the problems' episodes; they are scored by the sum of their rewards, and `select: segments` makes pairs of their parts."""
    sampling: Sampling = Sampling()
    rows_per_shard: int = Field(4096, ge=1, le=1_000_000)
    """Rows of a file, rounded down to whole problems (at least one): what a killed run repeats at most, and what memory must hold."""
    decode_rows: int = Field(1024, ge=1)
    """Rows decoded side by side."""
    micro_batch_tokens: int = Field(16_384, ge=1)
    """Tokens of a pass of the reward model and of the reference, where the stage has them."""
    reference: Label | None = None
    """A stage whose model each completion's log-probability is compared with: the component `log_ratio`, and the metric `kl/mean`."""
    guidance: Guidance | None = None
    """Draw from the model together with one that it was trained from; the log-probabilities are those of the mixture."""
    search: Search | None = None
    """Choose each completion among several that are drawn for it, by a score: the component `search_score`, beside `drawn_tokens` and
    `scored_tokens`. Log-probabilities stay the model's own, which is not what searched completions are distributed by."""
    self_judge: SelfJudge | None = None
    """The sampled model also grades its completions: the component `judge`, from 0 to 1, null where it cannot be read."""
    new_prompts: NewPrompts | None = None
    """Ask for new prompts instead of answers, `k` in the place of each problem of the split; they are not scored."""
    step_labels: StepLabels | None = None
    """`data` is another sample stage, whose completions are labelled: from the end of each step `k` continuations are drawn and verified,
    and the share that is correct is the step's label; `select: steps` makes records of them."""
    comparisons: Comparisons | None = None
    """`data` is another sample stage, of whose completions or episodes a judge compares two at a time; `select: preferred` makes pairs of
    them. The judge is the stage's `model`, or what `by` says."""
    sampler: Server | None = None
    """vLLM servers that decode instead of this process. They draw with other random numbers, and report no entropies."""
    processes: int = free(1, ge=1, le=100_000)
    """Processes of the stage, one per GPU, each with the whole model: they divide the files of `rows_per_shard` rows. The samples are the
    same bytes for any number of them."""

    @model_validator(mode="after")
    def _of_endpoint(self) -> Sample:
        if self.model is None:
            return self
        for name in OF_OWN_MODELS:
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name}: it needs the model itself, and an endpoint gives its answers alone; leave it out"
                )
        if self.processes > 1:
            raise ValueError(
                "processes: an endpoint computes no model here, and `concurrency` says how many requests are under way; leave it out"
            )
        if self.sampling.adaptive is not None:
            raise ValueError("sampling.adaptive: an endpoint has one temperature for all tokens; leave it out")
        return self

    @model_validator(mode="after")
    def _answers(self) -> Sample:
        if self.guidance is not None and self.sampler is not None:
            raise ValueError("guidance: servers decode one model; leave `sampler` out, or `guidance`")
        if self.search is not None:
            if self.sampler is not None:
                raise ValueError("search: it draws and scores in this process; leave `sampler` out, or `search`")
            if self.search.kind == "hierarchy":
                raise ValueError(
                    "search: hierarchy samples answers from prompts of its own, and stored log-probabilities are those of the problem; "
                    "use another strategy, or search in an evaluate stage"
                )
            if self.reference is not None:
                raise ValueError(
                    "reference: the KL of searched completions cannot be told from their log-probabilities; leave it out, or `search`"
                )
            if self.sampling.temperature == 0 and self.search.n > 1:
                raise ValueError(
                    "search: sampling is greedy, so all candidates would be equal; give it a temperature above 0"
                )
        if self.processes > 1:
            if self.sampler is not None:
                raise ValueError(SERVED_ALONE)
            if self.comparisons is not None and self.comparisons.by != "model":
                raise ValueError(
                    f"processes: comparisons by: {self.comparisons.by} compute no model here; leave processes out"
                )
        for field, other in READING.items():
            if getattr(self, field) is None:
                continue
            for name in ("episodes", "reference", "self_judge", "search", *other):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{field}: it reads completions that are there, and `{name}` is about new ones; leave it out"
                    )
            if self.split != "train":
                raise ValueError(f"{field}: the stage that drew the completions chose the split; leave `split` out")
        if self.new_prompts is not None:
            for name in ("episodes", *READING, "self_judge", "search"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"new_prompts: it asks for prompts, and `{name}` is about answers; leave it out, and answer them in a stage that "
                        "reads their records"
                    )
        if self.episodes is not None:
            for name in ("reference", "self_judge", "search"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is about single answers, and `episodes` plays several turns; leave it out"
                    )
        return self
