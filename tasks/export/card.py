"""The model card of an exported model, README.md: what it is, how it scored, what it was trained on, where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from pipelines.base.distribution import NAME, version
from pipelines.base.files import read_object, reported
from pipelines.base.secrets import redact
from pipelines.recipe.model_path import PACKAGE
from pipelines.recipe.stage_kind import BASE, DATA, MODEL, SCORES
from tasks.export import adapter
from tasks.export.trained import Trained
from tasks.store import artifacts
from tasks.store.artifacts import Artifact, stored_scores
from tasks.store.known import makes, training

UNKNOWN = "unknown"
"""The hub's word for a model whose licence nobody has said."""
USE = """{peft}from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained({base})
{adapted}messages = [{{"role": "user", "content": "..."}}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**prompt, max_new_tokens=256)
print(tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""
USE_WITH_IMAGES = """{peft}from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained("{name}")
model = AutoModelForImageTextToText.from_pretrained({base})
{adapted}messages = [{{"role": "user", "content": {content}}}]
text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
prompt = processor(text=[text], images=[Image.open("picture.png")], return_tensors="pt", add_special_tokens=False)
answer = model.generate(**prompt, max_new_tokens=256)
print(processor.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def _use(name: str, base: adapter.Base | None, folder: Path) -> str:
    """Python that loads the model, or adapters on their base.

    Args:
        folder: of the model, with its chat template.
    """
    code = USE_WITH_IMAGES if _sees(folder) else USE
    template = folder / "chat_template.jinja"
    of_parts = template.is_file() and "image" in template.read_text(encoding="utf-8")
    content = '[{"type": "image"}, {"type": "text", "text": "..."}]' if of_parts else 'processor.image_token + "..."'
    if base is None:
        return code.format(name=name, base=f'"{name}"', peft="", adapted="", content=content)
    if base.is_random:
        where = f'"{name}/{adapter.BASE}"'
    elif _is_gguf(base.name):
        where = '"FOLDER", gguf_file="FILE.gguf"'
    else:
        where = f'"{base.name}"' + (f', revision="{base.revision}"' if base.revision else "")
    adapted = f'model = PeftModel.from_pretrained(model, "{name}")\n'
    return code.format(name=name, base=where, peft="from peft import PeftModel\n", adapted=adapted, content=content)


def _is_gguf(name: str) -> bool:
    return name.startswith(PACKAGE) or name.lower().endswith(".gguf")


def _belongs(base: adapter.Base, name: str) -> str:
    """What adapters belong to, and how one gets it."""
    if base.is_random:
        return (
            f"These are adapters (LoRA) for the model with random weights in the folder `{adapter.BASE}` beside them. Of a repository, "
            f"make a copy first: `hf download {name} --local-dir {name}`."
        )
    if not artifacts.NAME.fullmatch(base.name):
        what = "GGUF file of the base model" if _is_gguf(base.name) else "base model"
        return f"These are adapters (LoRA) for the {what} `{base.name}`, and are of use with it alone."
    return (
        f"These are adapters (LoRA) for the model that the stage before them made, `{base.name}`, and are of use with it alone. "
        f"`whetstone export {base.name} --to {base.name}` writes it."
    )


def text(model: Trained, name: str, licence: str | None = None, *, only_adapter: bool = False) -> str:
    """The card, without passwords and without folders of this machine.

    Args:
        name: what the model is called: a repository, or the name of a folder.
        licence: of the model; where it is None, the card says that it is unknown, since that of a base model or of data is no proof.
        only_adapter: the card is that of the model's adapters by themselves.
    """
    name, licence = redact(name), redact(licence) if licence else None
    chain = model.known.chain(model.artifact)
    base = adapter.base(model) if only_adapter else None
    evaluation, label = _evaluation(model)
    scores = stored_scores(evaluation.path) if evaluation else {}
    data = [a for a in chain if makes(a) == DATA]
    head = _metadata(model, name, licence or UNKNOWN, chain, scores.get(label) or {}, adapted=only_adapter)
    parts = [
        f"---\n{head}\n---\n\n# {name}\n",
        f"The model of stage `{model.stage}` of the recipe `{model.recipe}`, trained with {NAME} {version()}"
        + (f" in run `{model.run['run_id']}`" if model.run else "")
        + (f" from {_base(chain)}." if _base(chain) else "."),
        _belongs(base, name) if base else "",
        f"## Use\n\n```python\n{_use(name, base, model.folder)}```" + _system(model.folder),
        _scores(scores, label, evaluation),
        "\n\n".join(_data(each) for each in data) and "## Data\n\n" + "\n\n".join(_data(each) for each in data),
        "## Lineage\n\n" + "\n".join(_lineage(chain)),
        f"## Licence\n\n{licence or UNKNOWN}" + ("" if licence else _licence_hint(chain, data)),
    ]
    return redact("\n\n".join(part for part in parts if part) + "\n")


def _metadata(
    model: Trained, name: str, licence: str, chain: list[Artifact], scores: dict[str, Any], *, adapted: bool
) -> str:
    results = [
        EvalResult(
            task_type="text-generation", dataset_type=task, dataset_name=task, metric_type=metric, metric_name=metric,
            metric_value=cell["value"],
        )
        for task, cells in scores.items() for metric, cell in cells.items()
    ]  # fmt: skip
    base = _base(chain)
    about = ModelCardData(
        license=licence,
        library_name="peft" if adapted else "transformers",
        pipeline_tag="image-text-to-text" if _sees(model.folder) else "text-generation",
        base_model=base if base and not base.startswith("a ") else None,
        datasets=sorted(
            {
                str(s["path"])
                for s in _sources(chain)
                if s.get("kind") == "hub" and not adapter.is_folder(str(s["path"]))
            }
        )
        or None,
        tags=["whetstone", *dict.fromkeys(a.stage for a in chain if makes(a) == MODEL)],
        model_name=name,
        eval_results=results or None,
    )
    return str(about.to_yaml())


def _base(chain: list[Artifact]) -> str:
    """The model that the first training started from, in words; a folder of this machine by its last name alone."""
    for artifact in chain:
        model = (artifact.parts.get("settings") or {}).get("model") or {}
        if makes(artifact) == MODEL and model.get("path"):
            path = str(model["path"])
            return f"a local model called {Path(path).name}" if adapter.is_folder(path) else path
        if makes(artifact) == MODEL and model.get("fresh"):
            return f"a new {model['fresh'].get('architecture')} model with random weights"
    return ""


def _sources(chain: list[Artifact]) -> list[dict[str, Any]]:
    settings = [(a.parts.get("settings") or {}).get("curate") or {} for a in chain if makes(a) == DATA]
    return [source for each in settings for source in each.get("sources") or []]


def _sees(folder: Path) -> bool:
    """Whether a model has a vision tower."""
    return "vision_config" in (read_object(folder / "config.json") or {})


def _system(folder: Path) -> str:
    prompt = (read_object(folder / "whetstone.json") or {}).get("system_prompt")
    return f"\n\nIt was trained with this system message:\n\n```text\n{prompt}\n```" if prompt else ""


def _evaluation(model: Trained) -> tuple[Artifact | None, str]:
    """The evaluation that read this model, that of its run first, and what its results call the model."""
    stage = model.known.evaluation_of(model.run, model.stage) if model.run else None
    own = model.known.stage_of(model.run, stage) if model.run and stage else None
    for artifact in [*([own] if own else []), *(a for a in model.known.artifacts if makes(a) == SCORES)]:
        for label, digest in (artifact.parts.get("inputs") or {}).items():
            if digest == model.artifact.digest and label in stored_scores(artifact.path):
                return artifact, label
    return None, ""


def _scores(scores: dict[str, Any], label: str, evaluation: Artifact | None) -> str:
    if evaluation is None:
        return "## Scores\n\nNo evaluation of this model is known."
    settings = (evaluation.parts.get("settings") or {}).get("evaluate") or {}
    share = f"{100 * float(settings.get('confidence') or 0.95):g} % interval"
    columns = [BASE, label] if BASE in scores and label != BASE else [label]
    lines = [f"| benchmark | metric | {' | '.join('this model' if c == label else c for c in columns)} | problems |"]
    lines.append("|---|---|" + "---|" * (len(columns) + 1))
    for task, cells in scores[label].items():
        for metric, cell in cells.items():
            row = [_cell((scores[c].get(task) or {}).get(metric)) for c in columns]
            lines.append(f"| {task} | {metric} | {' | '.join(row)} | {cell['n']} |")
    return f"## Scores\n\nValue [{share}].\n\n" + "\n".join(lines)


def _cell(cell: dict[str, Any] | None) -> str:
    return f"{cell['value']:.4g} [{cell['low']:.4g}, {cell['high']:.4g}]" if cell else "–"


def _data(data: Artifact) -> str:
    card = read_object(reported(data.path, "card.json"), licences=dict, splits=dict, rows=dict) or {}
    lines = ["| source | kind | split | licence |", "|---|---|---|---|"]
    for source in ((data.parts.get("settings") or {}).get("curate") or {}).get("sources") or []:
        place = str(source.get("task") or source.get("path"))
        shown = Path(place).name if source.get("kind") != "stage" and adapter.is_folder(place) else place
        lines.append(f"| {shown} | {source.get('kind')} | {source.get('split')} | {source.get('licence')} |")
    splits = ", ".join(f"{name}: {count}" for name, count in (card.get("splits") or {}).items())
    return "\n".join(lines) + (f"\n\nRows by split: {splits}." if splits else "")


def _lineage(chain: list[Artifact]) -> list[str]:
    """A line for each stage, in the order in which they ran."""
    lines = []
    for number, artifact in enumerate(chain, 1):
        about = [
            *training(artifact),
            f"seed {artifact.parts.get('seed')}",
            f"{artifact.seconds:.0f} s",
            f"contents `{artifact.digest[:12]}`",
        ]
        lines.append(f"{number}. `{artifact.name}`: {', '.join(each for each in about if each)}")
    return lines


def _licence_hint(chain: list[Artifact], data: list[Artifact]) -> str:
    licences = sorted({str(source.get("licence")) for source in _sources(chain)})
    told = f" Licences of the data: {', '.join(licences)}." if data else ""
    return (
        f": nobody has said it. A model may be bound by those of the model that it was made from and of its data.{told}"
    )
