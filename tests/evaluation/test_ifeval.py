"""IFEval: four figures by our verifier, which agrees with lm-eval's own checker."""

from __future__ import annotations

import importlib.util
import json
import random

import pytest

from evaluation import harness, ifeval, named_files
from evaluation.own_rows import RowFault
from pipelines.base.distribution import install_hint
from pipelines.base.errors import UserError
from pipelines.recipe.settings import Evaluate
from pipelines.verifiers import instructions

SMALL = harness.BENCHMARKS / "ifeval" / "small.jsonl"
ROW = {
    "key": 7, "prompt": "Say hello.", "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"num_words": None, "relation": None}, {"num_words": 3, "relation": "at least"}],
}  # fmt: skip
HOW = ("at least", "less than")
ARGUMENTS = {
    "keywords:existence": [{"keywords": ["cat", "Sea"]}],
    "keywords:frequency": [{"keyword": "sea", "frequency": 2, "relation": how} for how in HOW],
    "keywords:forbidden_words": [{"forbidden_words": ["cat", "sea"]}],
    "keywords:letter_frequency": [{"letter": "e", "let_frequency": 5, "let_relation": how} for how in HOW],
    "length_constraints:number_sentences": [{"num_sentences": 2, "relation": how} for how in HOW],
    "length_constraints:number_words": [{"num_words": 6, "relation": how} for how in HOW],
    "length_constraints:number_paragraphs": [{"num_paragraphs": 2}],
    "length_constraints:nth_paragraph_first_word": [
        {"num_paragraphs": 2, "nth_paragraph": n, "first_word": "the"} for n in (1, 2)
    ],
    "detectable_content:number_placeholders": [{"num_placeholders": 2}],
    "detectable_content:postscript": [{"postscript_marker": mark} for mark in ("P.S.", "P.P.S")],
    "detectable_format:number_bullet_lists": [{"num_bullets": n} for n in (1, 2)],
    "detectable_format:constrained_response": [{}],
    "detectable_format:number_highlighted_sections": [{"num_highlights": 2}],
    "detectable_format:multiple_sections": [{"section_spliter": "SECTION", "num_sections": 2}],
    "detectable_format:json_format": [{}],
    "detectable_format:title": [{}],
    "combination:two_responses": [{}],
    "combination:repeat_prompt": [{"prompt_to_repeat": "The cat"}],
    "startend:end_checker": [{"end_phrase": "the sea."}],
    "startend:quotation": [{}],
    "change_case:capital_word_frequency": [{"capital_frequency": 2, "capital_relation": how} for how in HOW],
    "change_case:english_capital": [{}],
    "change_case:english_lowercase": [{}],
    "language:response_language": [{"language": language} for language in ("en", "de")],
    "punctuation:no_comma": [{}],
}
NEED_PUNKT = ("length_constraints:number_sentences", "change_case:capital_word_frequency")
PIECES = [
    "The cat", "the sea.", "sea", "concatenate", "\n", "\n\n", "* ", "*", "**bold**", "*it*", "***", "******", "- ", "[a]", "[", "]",
    "P.S. x", "p. p. s", "SECTION 1", "SECTION 22", "<<t>>", "<< >>", '"', "```json\n", "```", "{}", "1", '{"a": 1}',
    "My answer is yes.", " ", ",", "USA", "NATO", "U.S.A.", "A-B", "e", "Das ist ein kurzer Satz.", "THIS IS ALL IN CAPITALS",
    "this is all in small letters and english", "'the", "The",
]  # fmt: skip


def documents(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(ifeval.documents(str(path)))


def has_punkt():
    import nltk

    try:
        return bool(nltk.data.find("tokenizers/punkt_tab"))
    except LookupError:
        return False


def made_answers(count):
    draw = random.Random(5)
    for _ in range(count):
        text = draw.choice(["", " "]).join(draw.choices(PIECES, k=draw.randint(1, 8)))
        yield draw.choice([text] * 9 + [f'"{text}"'])


@pytest.mark.parametrize("name", sorted([*instructions.FAMILIES, ifeval.LANGUAGE]))
def test_it_agrees_with_lm_eval_s_checker(name, monkeypatch):
    for library in named_files.IFEVAL_LIBRARIES:
        pytest.importorskip(library, reason="the extra ifeval is missing")
    import nltk

    if name in NEED_PUNKT and not has_punkt():
        pytest.skip("lm-eval splits sentences and words with NLTK's punkt_tab, which is downloaded and not here")
    monkeypatch.setattr(nltk, "download", lambda *arguments, **options: False)  # it would ask for punkt_tab at import
    from lm_eval.tasks.ifeval import utils as theirs

    compared, followed = 0, set()
    for text in made_answers(60 if "language" in name or "english" in name else 300):
        for arguments in ARGUMENTS[name]:
            example = theirs.InputExample(0, [name], "prompt", [arguments])
            strict, loose = (
                judge(example, text).follow_all_instructions
                for judge in (theirs.test_instruction_following_strict, theirs.test_instruction_following_loose)
            )
            doc = {"instruction_id_list": [name], "kwargs": json.dumps([arguments])}
            ours = ifeval.process_results(doc, [[text]])
            assert ours["inst_level_strict_acc"] == [strict] and ours["inst_level_loose_acc"] == [loose], (
                text,
                arguments,
            )
            compared, followed = compared + 1, followed | {strict}
    assert compared >= 60 and followed == {True, False}, "every instruction is followed by some and not by others"


def test_every_prompt_of_ours_can_be_followed():
    rows = [json.loads(line) for line in SMALL.read_text().splitlines()]
    named = {name for row in rows for name in row["instruction_id_list"]}
    assert named == set(instructions.FAMILIES) - set(ifeval.CASES), "all that need no extra"
    for doc, row in zip(ifeval.documents(str(SMALL)), rows, strict=True):
        made = ifeval.process_results(doc, [[row["example"]]])
        assert made["prompt_level_strict_acc"] == made["prompt_level_loose_acc"] == 1.0, row["prompt"]
        assert ifeval.process_results(doc, [["One, two, this is late"]])["prompt_level_strict_acc"] == 0.0, row[
            "prompt"
        ]


def test_four_figures_of_known_answers(tmp_path):
    (doc,) = documents(tmp_path, ROW)
    assert json.loads(doc["kwargs"])[0] == {}, "arguments without a value are none"
    made = ifeval.process_results(doc, [["Well, yes.\nHello dear friend\nBye, bye", "Hello my friend"]])
    assert made["inst_level_strict_acc"] == [False, True, True, True] and made["prompt_level_strict_acc"] == 0.5
    assert made["inst_level_loose_acc"] == [True] * 4 and made["prompt_level_loose_acc"] == 1.0
    assert ifeval.process_results(doc, [[" \n"]])["inst_level_loose_acc"] == [False, False]
    assert ifeval.pooled([[True, False, True], [False]]) == 0.5


def test_through_lm_eval(tmp_path):
    documents(tmp_path, ROW, ROW)
    task = {"name": "mine", "benchmark": "ifeval", "data": str(tmp_path / "rows.jsonl")}
    settings = Evaluate.model_validate({"tasks": [task]})
    (loaded,) = harness.load_task(harness.manager(settings), settings.tasks[0]).values()
    assert (
        loaded.doc_to_text(loaded.eval_docs[1]) == "Say hello."
        and loaded.config.generation_kwargs["max_gen_toks"] == 1280
    )
    results = {"prompt_level_strict_acc,none": 0.5, "inst_level_strict_acc,none": 0.75}
    samples = [
        {"prompt_level_strict_acc": 1.0, "inst_level_strict_acc": [True, True]},
        {"prompt_level_strict_acc": 0.0, "inst_level_strict_acc": [True, False]},
    ]
    cells = harness._mean_metrics(results, samples, 0.95)
    assert cells["inst_level_strict_acc"]["value"] == 0.75 and cells["inst_level_strict_acc"]["low"] < 0.7
    assert set(loaded.aggregation()) == {
        f"{level}_level_{how}_acc" for level in ("prompt", "inst") for how in ("strict", "loose")
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompt": None}, "prompt: is missing"),
        ({"instruction_id_list": [], "kwargs": []}, "instruction_id_list: is empty"),
        ({"kwargs": [{}]}, "kwargs: has 1 entries for 2 instructions"),
        (
            {"instruction_id_list": ["punctuation:no_comma", "x:y"]},
            r"instruction_id_list\[1\]: no instruction 'x:y'; known: change_case",
        ),
        (
            {"kwargs": [{}, {"num_words": 3, "relation": "about"}]},
            r"kwargs\[1\]: length_constraints:number_words: relation 'about'",
        ),
        (
            {"kwargs": [{}, {"relation": "at least"}]},
            r"kwargs\[1\]: length_constraints:number_words: lacks 'num_words'",
        ),
        ({"kwargs": ["", {}]}, r"kwargs\[0\]: is no object"),
    ],
)
def test_a_fault_has_its_file_row_and_column(tmp_path, change, told):
    with pytest.raises(RowFault, match=rf"rows.jsonl:2: {told}"):
        documents(tmp_path, ROW, ROW | change)


def test_languages_need_the_extra(tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "langdetect" else real(name, *more)
    )
    assert documents(tmp_path, ROW)
    row = ROW | {"instruction_id_list": ["change_case:english_capital"], "kwargs": [{}]}
    with pytest.raises(UserError, match=r"langdetect is not installed \(extra: ifeval\)") as told:
        documents(tmp_path, row)
    assert install_hint("ifeval") in str(told.value)
    assert named_files.missing("ifeval", None) == ("ifeval needs langdetect (extra: ifeval)", install_hint("ifeval"))
    assert "langdetect" in named_files.missing("leaderboard_ifeval", None)[0]
    assert (
        named_files.missing("ifeval", "rows.jsonl")
        is named_files.missing("ifeval_small", None)
        is named_files.missing("sums", None)
        is None
    )
