"""What the pages say can be typed: links lead somewhere, commands parse, snippets of recipes are accepted."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import toys
import yaml
from headings import slug

from flows.cli import main as cli
from pipelines.base import plugins
from pipelines.contract import catalogue
from pipelines.recipe import shipped, yaml_text
from pipelines.recipe.check import check
from pipelines.recipe.read import SECTIONS, read_recipe

PAGES = [p for folder in ("", "docs") for p in sorted((toys.ROOT / folder).glob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FILES = re.compile(
    r"(?<![\w/.*-])((?:benchmarks|docs|evaluation|flows|pipelines|recipes|scripts|tasks|tests)/[\w./*-]*[\w/])"
)
ANY_NAME = ("recipes/x.yaml", "my.yaml", "my_stages.yaml", "pipelines/rlvr/advantage/x.py")
"""Files that stand for any of their kind."""
EXAMPLES = {
    "data/rows.jsonl": '{"prompt": "1 + 1 =", "answer": "2"}\n',
    "chats.jsonl": '{"prompt": "1 + 1 =", "completion": "2"}\n',
    "prompts.jsonl": '{"prompt": "Write a limerick.", "stars": 3}\n',
    "models/my-model/config.json": '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
    "models/my-model/tokenizer.json": "{}",
    "my_judge.py": "def strict(completions, answer, **_):\n    return [float(t == a) for t, a in zip(completions, answer)]\n",
    "my_rewards.py": "def brevity(completions, **_):\n    return [-len(text) for text in completions]\n",
}
EXAMPLES |= {
    match[1]: match[2]
    for page in ("plugins", "your-own")
    for match in re.finditer(
        r"^```(?:python|yaml)\n# (my_\w+\.(?:py|yaml))\n(.*?)^```$",
        (toys.ROOT / f"docs/{page}.md").read_text(),
        re.M | re.S,
    )
}
"""Files that snippets name, in folders of this machine."""
NEEDS: dict[str, dict[str, Any]] = {
    "staleness": {"sampler": {"url": "http://localhost:8000", "weights": "weights"}},
}
"""What the text around a snippet says it needs, by a setting of it."""


SOURCES = [{"kind": "environment", "task": "worked_sums", "size": 9}, {"kind": "file", "path": "data/rows.jsonl"}]
"""Problems that can be played or answered alone, and rows of a file: what the text around a snippet has."""


STAGES: dict[str, dict[str, Any]] = {
    "data": {"kind": "curate"},
    "cold": {"kind": "sft", "data": "data", "steps": 9},
    "short": {"kind": "rlvr", "model": "cold", "data": "data"},
    "drafts": {"kind": "sample", "model": "cold", "data": "data", "k": 8},
    "pairs": {"kind": "curate", "sources": [{"kind": "stage", "path": "drafts", "select": {"kind": "pairs"}}]},
    "scorer": {"kind": "reward_model", "model": "cold", "data": "pairs", "epochs": 1},
}
"""Stages that snippets name and another page defines."""


def blocks(language: str) -> list[Any]:
    """Fenced blocks of all pages."""
    return [
        pytest.param(page, match[2], id=f"{page.name}:{text[: match.start()].count(chr(10)) + 1}")
        for page in PAGES
        for text in [page.read_text()]
        for match in FENCED.finditer(text)
        if match[1] == language
    ]


def anchors(page: Path) -> set[str]:
    return {slug(h) for h in re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", page.read_text())):
        if re.match(r"\w+://", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_of_the_tree_are_there(page):
    if page.name == "CHANGELOG.md":
        return  # it names what was there
    for name in FILES.findall(page.read_text()):
        assert name in ANY_NAME or list(toys.ROOT.glob(name)), name


def stated(block: str) -> list[str]:
    """The command lines of a block, without what stands beside them."""
    lines = [re.split(r" +# |(?<! run)\s{2,}", line.strip())[0] for line in block.replace("\\\n", " ").splitlines()]
    commands = [part.strip() for line in lines for part in re.split(r"; | && ", line)]
    return [c.removeprefix(".venv/bin/") for c in commands if re.match(r"(\.venv/bin/)?whetstone ", c)]


def variants(command: str) -> list[str]:
    """`A [--b] | --c` as `A --b` and `whetstone SUB --c`."""
    first, *others = command.replace("[", " ").replace("]", " ").replace("...", "").split(" | ")
    return [first, *(f"{' '.join(first.split()[:2])} {other}" for other in others)]


@pytest.mark.parametrize(("page", "block"), [b for b in blocks("") if stated(b.values[1])])
def test_commands_are_current(page, block, monkeypatch):
    def refuse(self, message):
        raise AssertionError(message)

    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    monkeypatch.setattr(cli.Parser, "error", refuse)
    for command in stated(block):
        for words in map(shlex.split, variants(command) if "=[" not in command else [command]):
            arguments = cli.parser().parse_args(words[1:])
            recipe = getattr(arguments, "recipe", None)
            if recipe is None or recipe in ANY_NAME:
                continue
            changes = arguments.set
            if arguments.command == "sweep":
                from tasks.sweep import plan as sweep

                changes = sweep.read(
                    recipe, arguments.set, None, "1", arguments.tune, arguments.budget, arguments.split
                ).common
            read_recipe(toys.ROOT / recipe, list(changes))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_between_words_are_current(page):
    """`whetstone COMMAND --option` in running text: there is such a command, and it has the option."""
    commands = cli.parser()._subparsers._group_actions[0].choices
    for text in re.findall(r"`whetstone ([a-z][^`]*)`", FENCED.sub("", page.read_text())):
        name, *words = text.split()
        assert name in commands, text
        options = commands[name]._option_string_actions
        assert all(word.partition("=")[0] in options for word in words if word.startswith("--")), text


def filled(value: Any, otherwise: Any) -> Any:
    """A value of a snippet; `{...}` and `[...]` stand for anything."""
    return otherwise if value in ({"...": None}, ["..."]) else value


def recipe_of(snippet: dict[str, Any], before: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """A whole recipe with a snippet in it.

    Args:
        before: stages of the page's earlier snippets.
        body: of a recipe with plain sections, for all that the snippet leaves out.
    """
    named = snippet.get("stages") or {
        k: v for k, v in snippet.items() if k != "launch" and isinstance(v, dict) and v.keys() & {"kind", "rounds"}
    }
    if not named:
        for name, fields in snippet.items():
            known = body.get(name)
            merged = name in SECTIONS and isinstance(filled(fields, None), dict)
            body[name] = known | fields if merged else filled(fields, known)
        for setting, more in NEEDS.items():
            if setting in body["rlvr"]:
                body["rlvr"] |= more
        if not body["tracking"]:
            del body["tracking"]
        return body
    sections = {name: body.pop(name) for name in SECTIONS}
    stages = {name: dict(fields) for name, fields in named.items() if name != "repeat"}
    before.update(stages)
    waiting = list(named.values())
    while waiting:
        words = set(re.findall(r"\w+", yaml.safe_dump(waiting.pop())))
        read = {name: dict(fields) for name, fields in before.items() if name in words and name not in stages}
        stages |= read
        waiting += read.values()
    for fields in stages.values():
        if fields["kind"] == "curate":
            fields["sources"] = filled(fields.get("sources", ["..."]), sections["curate"]["sources"])
            fields.setdefault("splits", {"train": 0.9, "heldout": 0.1})
    others = {k: v for k, v in snippet.items() if k in ("repeat", "concurrent_stages", "plugins")}
    return body | {"stages": stages} | others


def test_every_recipe_is_an_example():
    text = (toys.ROOT / "docs" / "examples.md").read_text()
    assert [p.stem for p in sorted((toys.ROOT / "recipes").glob("*.yaml")) if f"`{p.stem}`" not in text] == []


def test_every_page_is_in_the_index_and_on_the_site():
    index, site = ((toys.ROOT / name).read_text() for name in ("docs/index.md", "mkdocs.yml"))
    names = {p.name for p in PAGES if p.parent == toys.ROOT / "docs"} - {"index.md"}
    assert {n for n in names if f"]({n})" not in index or f": {n}\n" not in site} == set()


def test_counts_of_the_readme():
    text = (toys.ROOT / "README.md").read_text()
    (presets,) = re.findall(r"Over (\d+) presets", text)
    assert len(list((toys.ROOT / "recipes" / "presets").glob("*.yaml"))) > int(presets)
    (recipes,) = re.findall(r"over (\d+) recipes", text)
    assert len(list((toys.ROOT / "recipes").glob("*.yaml"))) > int(recipes)


@pytest.fixture
def own_modules():
    """Modules and plug-ins of `EXAMPLES` are imported from this test's folder, and not left to the next test."""
    named = dict(plugins._named)
    stems = [Path(name).stem for name in EXAMPLES if name.endswith(".py")]
    others = {stem: sys.modules.pop(stem) for stem in stems if stem in sys.modules}
    yield
    for stem in stems:
        sys.modules.pop(stem, None)
    sys.modules.update(others)
    plugins._named.clear()
    plugins._named.update(named)
    plugins.origins.cache_clear()
    catalogue.load.cache_clear()


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("page", sorted({b.values[0] for b in blocks("yaml")}), ids=lambda p: p.name)
def test_snippets_are_accepted(page, tmp_path, monkeypatch):
    """Every snippet of a recipe, in a recipe that has the rest; stages go on from those of the snippets before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in EXAMPLES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before: dict[str, Any] = {name: dict(fields) for name, fields in STAGES.items()}
    in_editor = jsonschema.Draft202012Validator(json.loads(shipped.SCHEMA.read_text()))
    for case in blocks("yaml"):
        if case.values[0] == page and not re.match(r"# my_preset\.yaml\n", case.values[1]):
            body = yaml.safe_load(toys.recipe(tmp_path, rlvr={"steps": 200}, curate={"sources": SOURCES}).read_text())
            body |= {"tracking": {}}
            file, snippet = tmp_path / "snippet.yaml", case.values[1].replace("path: /", f"path: {tmp_path}/")
            file.write_text(yaml.safe_dump(recipe_of(yaml.safe_load(snippet), before, body), sort_keys=False))
            try:
                check(read_recipe(file))
            except ValueError as error:
                raise AssertionError(f"{case.id}: {error}") from error
            wrong = jsonschema.exceptions.best_match(in_editor.iter_errors(yaml_text.load(file)))
            assert wrong is None, f"{case.id}: {wrong.json_path}: {wrong.message}"


def test_no_hint_fetches_the_package_of_this_name_from_pypi():
    """`whetstone` on PyPI is another project: hints name the library, or the extra of the checkout (`-e ".[gguf]"`)."""
    wrong = re.compile(r"pip install [^\n`]*\bwhetstone\b|whetstone\[[a-z]+\](?!\[)")
    places = [p for f in ("*.md", "docs/*.md", "recipes/**/*.yaml", "Makefile") for p in toys.ROOT.glob(f)]
    places += [p for room in ("flows", "tasks", "pipelines", "evaluation") for p in (toys.ROOT / room).rglob("*.py")]
    told = [p.name for p in places if p.name != "CHANGELOG.md" and wrong.search(p.read_text())]
    assert set(told) <= {"methods.md", "settings.md"}, "generated from what is right by now"
    assert wrong.search('pip install "whetstone[gguf]"') and not wrong.search('pip install -e ".[gguf]"')


@pytest.mark.slow
def test_messages_name_pages_that_an_installed_package_has():
    """A page is named by `pipelines.base.project.page`, which knows where a wheel has it."""
    named = []
    for room in ("flows", "tasks", "pipelines", "evaluation", "whetstone_rlvr"):
        for file in (toys.ROOT / room).rglob("*.py"):
            tree = ast.parse(file.read_text())
            texts = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # docstrings
            for each in ast.walk(tree):
                if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in texts:
                    named += [f"{file.name}:{each.lineno}"] if re.search(r"docs/\w+\.md", each.value) else []
    assert named == []


PROGRAMS = re.findall(
    r"\w+",
    "cp createdb curl docker echo eval export hf ip make mkdir mlflow openssl pg_dump pg_restore pip podman prefect psql python source tar "
    "vllm whetstone",
)
"""What commands of the pages start, beside keywords of the shell."""


def started(block: str) -> list[str]:
    """The programs that a block of commands starts, without their folders.

    >>> started("A=1 make run  # sets up\\nfor x in a b; do .venv/bin/pip install $x | tee log; done")
    ['make', 'pip', 'tee']
    """
    programs = []
    for line in block.replace("\\\n", " ").splitlines():
        first = True
        for token in (reader := shlex.shlex(line, posix=True, punctuation_chars=True)):
            reader.whitespace_split = True
            if set(token) <= set("();|&"):
                first = True
            elif first and token != "do" and not re.match(r"\w+=", token):
                first = False
                programs += [Path(token).name] if token not in ("for", "done", "(", ")") else []
    return programs


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=lambda p: p.name)
def test_blocks_of_commands_can_be_pasted(page):
    """A block without a language is commands, and a shell reads all of it: nothing but comments stands beside them, nothing optional is in
    brackets, and what they print is in a block of its own."""
    for language, block in FENCED.findall(page.read_text()):
        if language not in ("", "sh", "bash"):
            continue
        subprocess.run(["bash", "-n", "-c", block], check=True)
        assert set(started(block)) <= set(PROGRAMS), block
        for line in block.splitlines():
            if line.startswith("whetstone "):
                command = re.split(r"\s# ", line)[0].rstrip()
                assert not re.search(r"\s{2,}|(?<!=)\[| \| |\.\.\.", command), line
