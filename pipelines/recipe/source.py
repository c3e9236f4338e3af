"""The field `sources` of a curate stage: where rows come from, and how they become records."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipelines.contract.fields import Label, Line, PartName, Seed, Settings
from pipelines.data.files import is_url
from pipelines.recipe.selection import Selection, SelectionKind

OF_RAW_ROWS = (
    "task",
    "config",
    "name",
    "revision",
    "columns",
    "remove_columns",
    "verifier",
    "answer_from",
    "prompt_template",
    "system",
    "preferences",
    "text_column",
    "images",
    "image_folder",
    "most_pixels",
)
"""Fields of a source that say how rows become records."""
OF_KINDS = {
    "task": ("reasoning_gym", "environment"),
    "config": ("reasoning_gym", "environment"),
    "path": ("file", "hub", "stage", "sql"),
    "name": ("hub",),
    "revision": ("hub",),
    "query": ("sql",),
    "url_env": ("sql",),
}
"""Fields that only sources of some kinds read."""
OF_ROWS = ("file", "hub", "sql")
"""Kinds of sources with rows that somebody has written."""
OF_QUESTIONS = ("columns", "verifier", "answer_from", "prompt_template", "system", "preferences")
"""Those that say which problem a row is."""


SELF_SUPERVISED = "curate.self_supervised"
"""Under this name plug-ins bring functions (text, seed) → columns of the problems that are made of it."""
OBSERVATIONS = "observations"
"""The column of texts that an environment's sources have."""
_FILLED = re.compile(r"\{(?:prompt|metadata\.\w+)\}")
"""What rows fill in a `prompt_template`."""
_STRANGE = re.compile(r"(?<![\w\\{}$^])\{(?:[A-Za-z_][\w.]*(?:[:!\[][^{}]*)?)?\}|\{\s*(?:prompt|metadata)\b[^{}]*\}")
"""A name in braces, or nothing; not \\boxed{x}, x_{i} or {{x}}."""


def _template_fault(template: str) -> str:
    """What would stand in every prompt as it is, though braces say that it is to be filled; empty where nothing would.

    >>> _template_fault("sort {metadata.letters} into \\\\boxed{}"), _template_fault("sort {metadata.letters")[:39]
    ('', "a brace is without its other half: '{me")
    """
    fix = "{prompt} is the question, {metadata.KEY} an entry of a reasoning-gym row's metadata"
    rest = _FILLED.sub("\0", template)
    if "{\0}" in rest:
        return f"double braces around a name fill nothing; {fix}"
    if strange := _STRANGE.search(rest):
        return f"{strange[0][:60]} would stand in every prompt as it is; {fix}. Write a space after the brace where it is meant literally"
    opened: list[int] = []
    for place, character in enumerate(rest):
        if character == "{":
            opened.append(place)
        elif character == "}":
            if not opened:
                opened = [place]
                break
            opened.pop()
    if opened:
        shown = rest[opened[-1] : opened[-1] + 40].replace("\0", "{...}")
        return f"a brace is without its other half: {shown!r}; {fix}"
    return "" if rest != template else f"it must contain {{prompt}} or {{metadata.KEY}}: {fix}"


def _kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


class Source(Settings):
    """Where problems come from."""

    kind: Literal["reasoning_gym", "environment", "file", "hub", "sql", "stage"]
    task: PartName | None = None
    """reasoning_gym: the task's name; environment: its name."""
    size: int | None = Field(None, ge=1, le=1_000_000_000)
    """reasoning_gym, environment: how many problems; file, hub and stage: read at most this many rows."""
    seed: Seed = 0
    """reasoning_gym, environment: seed of the generator; stage: of random pairs; all kinds: of `preferences`."""
    config: dict[str, Any] = {}
    """reasoning_gym, environment: its own settings."""
    splits: list[Label] | None = None
    """Splits that this source's records go to; default: all of `curate.splits`."""
    path: Line | None = None
    """file: a JSONL, JSON, Parquet or CSV file or glob, also at an address (`s3://`, `gs://`, `hf://`, ...);
    hub: the dataset's name or a local dataset folder; sql: SQLAlchemy's address of a database (`sqlite:///rows.db`);
    stage: the name of a stage of kind `sample`."""
    query: str | None = Field(None, min_length=1, max_length=100_000)
    """sql: a SELECT whose columns are those of a row; it may name what it leaves out by LIMIT."""
    url_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=100)] | None = None
    """sql: the environment variable with the database's address, where a user or a password is in it; else `path` has the address."""
    select: Annotated[Selection, BeforeValidator(_kind, json_schema_input_type=SelectionKind | Selection)] | None = None
    """stage: which completions become records."""
    name: Line | None = None
    """hub: configuration name."""
    split: Line = "train"
    """hub: split to read; for every kind: written to the record's info."""
    revision: Line | None = None
    columns: dict[Literal["prompt", "answer", "solution", "system", "uid", "images"], Line] = {}
    """Which column holds what: any of prompt, answer, solution, system, uid, images → column name. Default: recognised
    from the conventions of TRL, verl, open-r1, verifiers, GSM8K, Alpaca and ShareGPT."""
    remove_columns: list[Line] = []
    """Columns that are left out on purpose. Any other that no part of a record is made of is kept in `info`, and the data card names it."""
    verifier: PartName | None = None
    """How completions are scored: a verifier's name. Default: chosen from the row, else `math`."""
    answer_from: Literal["column", "gsm8k", "boxed"] | None = None
    """How to read the gold answer out of the answer column. Default: recognised."""
    licence: Annotated[Line, Field(max_length=200)] = "unknown"
    max_row_bytes: int = Field(16 * 2**20, ge=1024, le=2**29)
    """file: a longer row is quarantined."""
    max_unpacked_ratio: float = Field(200.0, ge=1)
    """file: a .gz that unpacks to more than this many times its size (and to over 64 MiB) is refused."""
    corpus: Line | None = None
    """file, hub: what the verifier `retrieval` and the tool `search` of the rows search: a file of passages, or `generated:NAME`."""
    text_column: Line | None = None
    """file, hub: the column of raw texts, for continued pre-training. Each becomes a record without a question (`info.text`), which
    an sft stage trains whole; every other column stays unread. environment: `observations`, what its expert is shown in an episode."""
    images: Literal["keep", "drop"] = "keep"
    """file, hub, sql: what becomes of the images in rows; `drop` leaves the text alone."""
    image_folder: Line | None = None
    """file, hub, sql: the folder that paths of images in rows are relative to, and may not lead out of. Its files are in the
    stage's key."""
    most_pixels: int | None = Field(None, ge=1, le=16_777_216)
    """file, hub, sql: an image with more is made smaller, in its proportions."""
    self_supervised: PartName | None = None
    """file, hub: such problems are made of the texts in the column `columns.prompt` (default: text); none needs a label. sentence_order,
    masked_span, next_sentence, or one of a plug-in's."""
    prompt_template: str | None = None
    """Text put around every question, with `{prompt}`, or with `{metadata.KEY}` from a reasoning-gym entry."""
    system: str | None = None
    """System message put before every prompt."""
    preferences: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$", max_length=60)]] = Field([], max_length=20)
    """Aims whose worth each record names in its system message and in `info.preferences`: weights that add up to 1, drawn from `seed` and
    the prompt. Terms of a reward with `weight: preference` take theirs."""

    @property
    def label(self) -> str:
        """What its records name as their source, unless their rows do."""
        return str(self.task or self.path or self.url_env)

    @model_validator(mode="after")
    def _complete(self) -> Source:
        if self.kind in ("reasoning_gym", "environment") and not (self.task and self.size):
            raise ValueError(f"a source of kind {self.kind} needs `task` and `size`")
        if self.kind in ("file", "hub", "stage") and not self.path:
            raise ValueError(f"a {self.kind} source needs `path`")
        if self.kind == "sql" and (self.query is None or (self.path is None) is (self.url_env is None)):
            raise ValueError(
                "a sql source needs `query`, and the database's address: `path`, or `url_env` where it is secret"
            )
        if self.kind == "sql" and self.size is not None:
            raise ValueError("rows of a query have no order; write LIMIT in it in the place of `size`")
        if (self.kind == "stage") != (self.select is not None):
            raise ValueError(
                "`select` says which completions of a sample stage become records: kind stage needs it, no other takes it"
            )
        for name, kinds in OF_KINDS.items() if self.kind != "stage" else ():
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is read of sources of kind {' and '.join(kinds)}, and this is a {self.kind} source: leave it out"
                )
        if self.corpus is not None and self.kind not in OF_ROWS:
            raise ValueError("`corpus` is what rows of a file or hub source search; environments take one in `config`")
        if self.self_supervised and self.kind not in OF_ROWS:
            raise ValueError("`self_supervised` makes problems of the texts of a file or hub source")
        if self.text_column is not None:
            watched = self.kind == "environment" and self.text_column == OBSERVATIONS
            if not watched and (self.kind not in OF_ROWS or self.self_supervised):
                raise ValueError(
                    "`text_column` makes records of the texts of a file or hub source, or of the `observations` of an environment's expert"
                )
            for name in OF_QUESTIONS:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is about questions; raw texts have none: leave it out")
        for name in OF_RAW_ROWS if self.kind == "stage" else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is about raw rows; a sample stage holds records already: leave it out")
        if self.preferences and len(set(self.preferences)) < max(2, len(self.preferences)):
            raise ValueError("`preferences` weighs aims against each other: name two or more, each once")
        if self.prompt_template is not None and (fault := _template_fault(self.prompt_template)):
            raise ValueError(f"prompt_template: {fault}")
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether the rows are in an object store, at another address or in a database; `pipelines.recipe.fetched` has copies of them."""
        return self.kind == "sql" or (self.kind == "file" and is_url(str(self.path)))


def sources_of(settings: Any) -> list[Source]:
    """The sources in a stage's settings; empty where it has none, and where a kind of a plug-in means something else by the name."""
    listed = getattr(settings, "sources", None)
    return [each for each in listed if isinstance(each, Source)] if isinstance(listed, list) else []
