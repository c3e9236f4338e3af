"""regex, json_schema, instructions: the form of a text, with patterns that can be killed."""

from __future__ import annotations

import time

import pytest

from pipelines import verifiers
from pipelines.errors import UserError
from pipelines.verifiers import instructions
from pipelines.verifiers.instructions import FAMILIES


def status(name, completion, answer="", **info):
    return verifiers.verify(name, completion, answer, info).status


def test_regex():
    assert status("regex", " <think>x</think> 7 ", r"<think>.*</think> \d+") == "correct"
    assert status("regex", "x <think>x</think> 7", r"<think>.*</think> \d+") == "incorrect"
    assert status("regex", "so A, I say", pattern="a, i", mode="search", flags="i") == "correct"
    assert status("regex", "x", "(") == "verifier_failed"
    assert status("regex", "x", "x", mode="somewhere") == "verifier_failed"


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"name": "x", "age": 3}', "correct"),
        ('Here:\n```json\n{"name": "x"}\n```', "correct"),
        ('<answer>{"name": "x"}</answer>', "correct"),
        ('{"name": "x", "age": -1}', "incorrect"),
        ('{"name": "x", "more": 1}', "incorrect"),
        ('{"name": "x", "name": "y"}', "unparsable"),
        ('{"name": NaN}', "unparsable"),
        ('{"name": "x"} and more', "unparsable"),
        ("", "unparsable"),
    ],
)
def test_json_schema(text, expected):
    assert status("json_schema", text, schema=SCHEMA) == expected


def test_a_schema_reaches_no_network_and_a_bad_one_is_no_fault_of_the_text():
    began = time.monotonic()
    assert status("json_schema", "1", schema={"$ref": "http://192.0.2.1/schema.json"}) == "verifier_failed"
    assert status("json_schema", "1", schema={"type": "nothing"}) == "verifier_failed"
    assert time.monotonic() - began < 60


FOLLOWED = {
    "keywords:existence": ("one Two", {"keywords": ["two"]}, "twofold one"),
    "keywords:frequency": ("a cat, a cat", {"keyword": "cat", "frequency": 2}, "a cat, cats"),
    "keywords:forbidden_words": ("fine", {"forbidden_words": ["bad"]}, "a Bad one"),
    "keywords:letter_frequency": ("aAa", {"letter": "a", "let_frequency": 3, "let_relation": "at least"}, "a"),
    "length_constraints:number_sentences": ("One. Two! Three", {"num_sentences": 3}, "One, two, three."),
    "length_constraints:number_words": ("a b c", {"num_words": 3, "relation": "at least"}, "a b"),
    "length_constraints:number_paragraphs": ("a\n***\nb", {"num_paragraphs": 2}, "a\n***\n\n***\nb"),
    "length_constraints:nth_paragraph_first_word": (
        "x\n\nHello, y", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "hello"}, "Hello\n\nx",
    ),
    "detectable_content:number_placeholders": ("[name] of [place]", {"num_placeholders": 2}, "[] [name]"),
    "detectable_content:postscript": ("x\nP.S. y", {"postscript_marker": "P.S."}, "x P.S. y"),
    "detectable_format:number_bullet_lists": ("* a\n* b", {"num_bullets": 2}, "* a\n* b\n- c"),
    "detectable_format:constrained_response": ("My answer is no.", {}, "My answer is no. My answer is yes."),
    "detectable_format:number_highlighted_sections": ("*a* and **b**", {"num_highlights": 2}, "*a* and *a*"),
    "detectable_format:multiple_sections": (
        "SECTION 1\nx\nSECTION 2\ny", {"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1",
    ),
    "detectable_format:json_format": ('```json\n{"a": 1}\n```', {}, "{a: 1}"),
    "detectable_format:title": ("<<A title>>\nx", {}, "<< >>"),
    "combination:two_responses": ("a\n******\nb", {}, "a\n******\na"),
    "combination:repeat_prompt": ("Say it. It.", {"prompt_to_repeat": "say it."}, "It. Say it."),
    "startend:end_checker": ("x. The end.", {"end_phrase": "the end."}, "The end. x"),
    "startend:quotation": ('"x"', {}, '"x'),
    "change_case:capital_word_frequency": (
        "GO NOW", {"capital_frequency": 2, "capital_relation": "at least"}, "GO now",
    ),
    "change_case:english_capital": ("ABC 1", {}, "ABc"),
    "change_case:english_lowercase": ("abc 1", {}, "aBc"),
    "punctuation:no_comma": ("a b", {}, "a, b"),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_text_that_follows_and_one_that_does_not(family):
    follows, arguments, breaks = FOLLOWED[family]
    info = {"instruction_id_list": [family], "kwargs": [arguments]}
    assert status("instructions", follows, **info) == "correct"
    assert status("instructions", breaks, **info) == "incorrect"


@pytest.mark.parametrize("text", ["*", "[", "<<", "* a\n", "***\n", "a. ", "\n\n", '"', "P.S. ", "******"])
def test_families_are_linear(text):
    for family, (_, arguments, _) in FOLLOWED.items():
        began = time.process_time()
        FAMILIES[family](text * 50_000, arguments)
        assert time.process_time() - began < 2, family


def test_instructions_that_are_none():
    for info in ({}, {"instruction_id_list": ["language:response_language"]}, {"instructions": [{"id": "x"}]}):
        with pytest.raises(ValueError):
            instructions.instructions_of(info)
        assert status("instructions", "x", **info) == "verifier_failed"
    assert issubclass(UserError, ValueError)
    half = {"instructions": [{"id": "punctuation:no_comma"}, {"id": "change_case:english_capital"}]}
    assert verifiers.verify("instructions", "a", "", half).score == 0.5
    assert verifiers.verify("instructions", "a", "", half | {"strict": True}).score == 0.0
