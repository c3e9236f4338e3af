"""A formula is the gold answer in another form, or something else, whatever it begins with."""

from __future__ import annotations

import json
import time
from fractions import Fraction

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.verifiers import verify_here
from pipelines.verifiers._equality import same
from pipelines.verifiers._formula import read

MATH500 = toys.ROOT.parent / "shared" / "data" / "math500" / "test.jsonl"
FORMS = [r"So it is $\boxed{%s}$.", "#### %s", "<answer>%s</answer>", "The answer is $%s$.", "Therefore $%s$"]

SAME = {
    r"x \in (-\infty,2]\cup[5,\infty)": [r"x \le 2 \text{ or } x \ge 5", r"(-\infty,2]\cup[5,\infty)"],
    "1/3": [r"33\frac13\%", r"0.\overline{3}"],
    r"\frac{1}{2}": ["0.5", "1/2", r"\dfrac12", r"\frac 12", r"\frac{2}{4}", r"50\%", ".5", "2^{-1}", r"\sin 30^\circ",
        r"\cos(60^\circ)", r"\frac{1}{2}.", r"\left(\frac12\right)", r"{1 \over 2}", r"\sin(\pi/6)", "cos(pi/3)",
        r"\sqrt{1/4}", r"\frac{1}{3}+\frac16", "0.50", "½", r"\tfrac{1}{2}", "x = 1/2", r"P = \frac{1}{2}", r"1 - \frac12",
        r"\log_4 2", "50 percent"],
    r"\frac{1}{3}": [r"0.\overline{3}", r"0.\bar{3}", r"0.\dot{3}", "0.(3)", "0.333...", r"0.333\ldots", "1/3", r"\frac13",
        "3^{-1}"],
    r"0.\overline{142857}": ["1/7", r"\frac17", r"0.\dot{1}4285\dot{7}", "0.142857142857..."],
    r"\frac{1}{6}": [r"0.1\overline{6}", "0.1666...", "0.1(6)"],
    "1234567": ["1,234,567", "12,34,567", "1{,}234{,}567", r"1\,234\,567", "1234567.0", "1 234 567", r"1.234567 \times 10^6",
        "1.234567e6", r"1,\!234,\!567"],
    "18": ["18", "18.0", r"18\text{ apples}", r"\$18", "$18$", "18 dollars", r"18\ \mathrm{cm}", r"\frac{36}{2}", r"2\cdot 9",
        "3*6", r"2 \times 9", "9+9", "x=18", r"\textcolor{red}{18}", r"\color{blue}{18}", r"\boxed{18}", "18%", r"\mathbf{18}",
        "(18)", r"18 \text{ square units}", "+18", r"\displaystyle 18", "18 (since 9+9=18)"],
    "-1": [r"e^{i\pi}", "i^2", r"\cos\pi", "cos(pi)", "-1.0", "-(1)", r"\sqrt[3]{-1}", r"\log_{10} 0.1", "(-1)^{99}", "−1"],
    "e^{16} - 1": ["-1 + exp(16)", "exp(16)-1", "e^{16}-1", "e**16 - 1", "-1+e^{16}", r"\exp(16)-1", "(e^8-1)(e^8+1)"],
    r"\frac{\pi}{2}": ["pi/2", r"\pi/2", r"\frac\pi2", "π/2", r"\frac{1}{2}\pi", r"0.5\pi", r"90^\circ", r"\arcsin 1",
        "asin(1)", r"\frac{2\pi}{4}", r"\dfrac{\pi}{2}"],
    r"2\pi": ["2*pi", "2pi", "2π", r"2 \pi", r"\pi \cdot 2", r"2\pi \text{ cm}"],
    "x^2+1": ["x**2 + 1", "1+x^2", "x^{2}+1", "x*x + 1", "y = x^2+1", "f(x) = x^2 + 1", "(x+i)(x-i)", "(x+1)^2-2x", "x²+1"],
    r"\{1,2,3\}": [r"\left\{1, 2, 3\right\}", r"\{3,2,1\}", "1,2,3", "3, 1, 2", r"\lbrace 1,2,3\rbrace", "1, 2, and 3",
        r"\{1,2,3,3\}", r"x \in \{1,2,3\}"],
    r"\frac{-1\pm\sqrt{5}}{2}": [r"\frac{-1 \pm \sqrt{5}}{2}", r"x = \frac{-1\pm\sqrt5}{2}",
        r"\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}", r"-\frac12 \pm \frac{\sqrt5}{2}",
        r"\left\{\frac{-1+\sqrt5}{2}, \frac{-1-\sqrt5}{2}\right\}", r"\frac{\pm\sqrt5 - 1}{2}",
        r"x_{1,2} = \frac{-1\pm\sqrt5}{2}"],
    r"\{-3,3\}": [r"\pm 3", "-3, 3", r"x = \pm 3", "x = 3 or x = -3", r"\{3,-3\}", r"x=3 \text{ or } x=-3", "3 and -3",
        "x_1 = 3, x_2 = -3"],
    "11,-11": ["11, -11", "-11,11", r"\pm 11", r"\{11,-11\}"],
    r"(-\infty,1)\cup(3,\infty)": ["x < 1 or x > 3", r"x<1 \text{ or } x>3", r"(-\infty, 1) \cup (3, +\infty)",
        r"x \in (-\infty,1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,1)", r"\mathbb{R}\setminus[1,3]", r"x>3 \text{ or } x<1",
        r"\{x \mid x<1 \text{ or } x>3\}", r"x < 1 \lor x > 3"],
    "[-2,7]": [r"-2 \le x \le 7", r"x \in [-2,7]", r"\left[-2,7\right]", r"7 \ge x \ge -2", r"x\ge -2 \text{ and } x \le 7",
        r"\{x : -2 \leq x \leq 7\}", "-2 <= x <= 7"],
    r"(2,\infty)": ["x>2", "2<x", r"(2, +\infty)", r"x \in (2,\infty)", "(2,∞)"],
    r"x \ne 3": [r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}", r"x \neq 3"],
    r"\sqrt{8}": [r"2\sqrt2", "2*sqrt(2)", "sqrt(8)", r"2\sqrt{2}", "2^{3/2}", r"\sqrt 8", "8^{1/2}", "2√2",
        r"\frac{4}{\sqrt2}", "8**0.5", r"2\sqrt(2)", r"\operatorname{sqrt}(8)"],
    r"\sqrt[3]{2}": ["2^{1/3}", "cbrt(2)", r"2^{\frac13}", "∛2"],
    r"\sqrt{ab}": [r"\sqrt{a}\sqrt{b}", "(ab)^{1/2}", r"\sqrt{a b}", r"\sqrt{a\cdot b}"],
    r"\ln(x^2)": [r"2\ln x", r"2\ln(x)", "2 ln(x)", r"\ln x^2", r"\ln x + \ln x"],
    r"\sqrt{1/n}": [r"\frac{1}{\sqrt{n}}", "n^{-1/2}", r"\frac{\sqrt n}{n}"],
    "3+4i": ["3 + 4*i", "4i+3", r"3+4\mathrm{i}", "3.0+4.0i", "3 + 4i", r"5e^{i\arctan(4/3)}"],
    "14 - i": ["14.0 - 1.0i", "14.0 + -1.0i", "14-1i", "-i+14"],
    r"(3, \frac{\pi}{2})": [r"\left(3, \frac{\pi}{2}\right)", "(3, pi/2)", r"(3,\pi/2)", "(3.0, π/2)",
        r"(r,\theta) = (3,\pi/2)"],
    "1,2": ["1, 2", "2,1", r"\{1,2\}", "1 and 2", r"1 \text{ and } 2", "x=1 or x=2"],
    "7": [r"7\text{ cm}", "7 cm", r"7\,\text{m}/\text{s}", "7 miles per hour", r"7^\circ", r"\$7", "7.", "7 students",
        r"7 \text{ cm}^3", "7.00", "7 m^2"],
    r"7\text{ m}": ["7 meters", "7", r"7\,\mathrm{m}", r"7 \text{ m}", "7 metres"],
    r"864 \mbox{ inches}^2": ["864", "864 square inches", r"864\text{ in}^2", r"864 \text{ square units}"],
    r"137 \frac{1}{2}": ["137.5", "137 1/2", r"\frac{275}{2}", r"137\frac12", "137½"],
    r"-1\frac{1}{2}": ["-1.5", "-3/2", "-1 1/2"],
    r"\frac{3}{10^{25}}": [r"3\times 10^{-25}", "3e-25", r"3\cdot 10^{-25}"],
    "2^{100}": ["1267650600228229401496703205376", "4^{50}", "1024^{10}"],
    r"\begin{pmatrix}1/2\\3\end{pmatrix}": [r"\begin{pmatrix}0.5\\3\end{pmatrix}", r"\begin{bmatrix}\frac12\\3\end{bmatrix}",
        r"\left(\begin{matrix}1/2\\3\end{matrix}\right)", r"\left(\begin{array}{c}1/2\\3\end{array}\right)"],
    "y = 2x + 3": ["2x - y + 3 = 0", "y=3+2x", "2x+3", "y - 2x = 3"],
    "5x - 7y + 11z + 4 = 0": ["-5x+7y-11z-4=0", "5x+11z+4=7y", "10x - 14y + 22z + 8 = 0"],
    r"\text{Evelyn}": ["Evelyn", r"\text{evelyn}", r"\textbf{Evelyn}", r"$\text{Evelyn}$", "evelyn."],
    r"\text{(B)}": ["B", "(B)", r"\text{B}", r"\textbf{(B)}"],
    "52_8": ["52_8", "52_{8}", "52", r"52_{\text{8}}"],
    r"1,2,\ldots,n": [r"1, 2, \dots, n", "1, 2, ..., n", r"1,2,\cdots,n"],
    "120": ["5!", r"\binom{10}{3}", r"\binom{16}{2}", r"120\text{ ways}", r"{10 \choose 3}", r"1.2 \times 10^2", "1.2e2"],
    "55": [r"\sum_{i=1}^{10} i", r"\sum^{10}_{k=1} k", r"11 \cdot 5"],
    r"\cot x": [r"\frac{\cos x}{\sin x}", r"\frac{1}{\tan x}", "cot(x)", r"\cot(x)"],
    r"\frac{n(n+1)}{2}": [r"\sum_{k=1}^{n} k", "n(n+1)/2", r"\binom{n+1}{2}", r"\frac{n^2+n}{2}", "1/2 n(n+1)", "0.5n^2+0.5n"],
    "|x|": [r"\left|x\right|", r"\sqrt{x^2}", "abs(x)", r"\lvert x\rvert"],
    "5000000": ["5 million", r"5\text{ million}", r"\$5,000,000", "50 lakh", r"5 \times 10^6"],
    "84": ["7 dozen", r"7\text{ dozen}"],
    r"90^\circ": ["90", "90 degrees", r"90^{\circ}", r"\frac{\pi}{2}", "90°", r"90\text{ degrees}"],
    r"3 \pi": [r"3\pi \text{ cm}^2", r"\pi*3"],
    r"\$18.90": ["18.9", "18.90 dollars", r"\$18.9", "$18.90"],
    "0.5": ["0,5", "50%"],
    r"\emptyset": [r"\{\}", r"\varnothing", "∅"],
    r"\infty": ["∞", r"+\infty", "infinity"],
    "a+b": ["b+a", "A+B"],
    "2k": ["k+k", "2 k", r"2\cdot k", "k*2"],
}  # fmt: skip
"""Gold answer -> forms of it."""

OTHER = {
    "5": [
        r"5 \mod 7", r"5 \pmod 7", r"5 \text{ tens}", r"\hat{5}", r"\ll 5", r"5 \propto x", r"5\text{k}",
        r"5 \text{ out of }10", r"5 \wedge 6", "5 + O(x)",
        "|5", "5|", "(5", "5)", "5,", "4 < 5", r"5 \angle 30", "2(3)", "2 3",
    ],
    "3": ["3 + sqrt(2)", r"\ge 3", r"3 \notin S", "3 + c", r"3 \to \infty", r"3 \in S", "< 3", r"\le 3", "> 3", "3 +", "3 -",
        "3 *", "3/", "3^", "3^{", "3!!!!", r"3\sim5", r"3 \approx 4", r"\neg 3", r"\lnot 3", r"3 \neq 4", r"3 \mid 6",
        r"3 \equiv 1 \pmod 2", r"3 \Rightarrow 4", r"3 \rightarrow 4", r"3 \mapsto 4", r"3\det A", r"3\mathbf{i}", r"3\vec{v}",
        r"3 \partial x", r"3 \nabla f", r"3 \underline{5}", r"3 \overline{5}", r"3 + \text{something}", r"3 + \ln", r"3\ln",
        r"3\sqrt", r"3\frac(1,2)", r"3\frac", r"3\sin", r"3 + \cbrt{2}", "3∛2", r"3\operatorname{sqrt}(2)",
        r"3\operatorname{foo}(2)", r"3 \oplus 1", r"3 \cup 4", r"3 \cap 4", r"3 \subset S", "3x", "3k", "3M", "3B", "3K",
        "3 k", "3 million", "3 lakh", "3 crore", "3 dozen", "3 hundred", r"3\text{ thousand}", "3 or more", "3 or any number",
        "3 to 5", "3-5", "3 +- 1", r"3 \pm 1", r"\pm 3", "3, 4", "3; 4", "3 and 4", r"3 \text{ or } 4", r"\{3\}", r"\{3,4\}",
        "(3,4)", "[3,3]", "3...", r"3\ldots", r"3, \ldots", r"3,4,\ldots", r"3\%+1", r"3 \bmod 2", r"\frac{3}{", "3i", "3e",
        r"3\pi", r"3^\circ C + x", "3 half", "3 tenths", "3 squared", r"3\text{ cubed}", "not 3", r"\text{not }3",
        r"\text{at least } 3", "at most 3", "about 3", "x > 3", r"x \ge 3", r"x\neq 3", r"\text{greater than } 3",
        r"3 \% off 5", "3_4", "3_{10}_2", "3:4", "3 4", r"3\,\,4", "3(2)", r"3\left(2\right)", "|{-3}|+1", "3'", r"3 \cdot",
        r"3\times", "3 less than 5", "3 times", "3 choose 2", r"\log 3", r"\sqrt{3}", r"3 \text{ percent more}", "3!", "3;",
        r"\int_0^3", r"\lim 3", r"3 \int x", "3 // 1", "3 = 4", "3 == x", "3 & 4", r"3 \\ 4", "3 | 4", "f(3)", r"\max(3, 4)",
        r"3 \text{ if } x>0", r"3 \text{ (for } n>2)", "3 - 4i", "3 + 0.0000001", "3.0000000001", "3.1", "-3", "three hundred",
        "3,000", "0.3", "30%", "{3", "3e5", "3^2", "3?"],
    r"\frac{1}{2^{99}}": [r"\frac{1}{2^{98}}", "0", "2^{-98}", r"-\frac{1}{2^{99}}", r"\frac{1}{2^{100}}"],
    r"\frac{1}{21!}": [r"\frac{1}{20!}", "0"],
    r"\frac{3}{10^{25}}": [r"\frac{1}{10^{25}}", "3e-26", "0"],
    r"\left(\frac{5}{6}\right)^{201}": [r"\left(\frac{5}{6}\right)^{200}"],
    "1-2^{-1000}": ["1", "1-2^{-999}"],
    "e^{-1000}": ["0", "e^{-999}", "2e^{-1000}"],
    r"\tanh 200": ["1"],
    r"\frac{1}{3}": ["0.333", "0.3333333333333333", r"0.\overline{4}", r"0.\overline{34}", "0.334...", "33%"],
    r"0.\overline{3}": [r"0.\overline{4}", "0.3", r"0.\overline{33}4"],
    r"\sqrt{2}": ["1.414", "1.41421356237309504880168872420969807857", "1.4142...", r"\sqrt{2.0000001}", r"-\sqrt2",
        r"\pm\sqrt2"],
    r"\pi": ["3.14", "3.14159265358979", "22/7", r"\frac{22}{7}", "3.1415926535897932384626433832795"],
    "1,2": ["1.2", "12", "1, 2, 3", "1", "(1,2,3)", "1.2.3", "2"],
    r"1, 2, \ldots, n": [r"1, 3, 5, \ldots, 2n-1", "1,2", "1, 2, n", r"1,2,\ldots,2n"],
    r"1+2+\cdots+n": [r"1+3+\cdots+n", "1+2+n"],
    "4": [r"4\sqrt(2)", "2+2+c", r"4 \text{ or } 5"],
    r"7\text{ m}": [r"7\text{ km}", "7 cm", "7 hours", r"7\text{ m}^2", "7 feet"],
    "7 hours": ["7 minutes", "7 days"],
    "18": ["18B", "18 lakh", "18M", "$18M$", "18 billion", "18 crore", "18 gross", "18 score", "1.8", "180"],
    "(1,2)": ["[1,2]", r"\{1,2\}", "(2,1)", "(1,2]", "1<x<=2", "(1,2,3)"],
    "[1,3]": ["(1,3)", "1<x<3", "[1,3)", r"[1,\infty)"],
    r"(-\infty,1)\cup(3,\infty)": [r"(-\infty,1]\cup[3,\infty)", "x<1", "x>3", "(1,3)", "x<1 and x>3",
        r"(-\infty,1)\cup(4,\infty)", r"(-\infty,1)\cap(3,\infty)"],
    "x^2+1": ["x^2", "x^2-1", "y^2+1", "x^2+1+c", "2x", "x^2+1 > 0", "x^2 +", "|x|^2+2", "x^{2+1}"],
    "x": ["|x|", r"\sqrt{x^2}", "-x", "x'", "x_1", "y", r"\vec{x}"],
    r"\pi(R^2-r^2)": ["0", r"\pi(r^2-R^2)", r"\pi(R-r)^2"],
    "x=5": ["y=5", "x=6", "x>5", "x=5, y=2", r"x \ne 5"],
    "y = 2x + 3": ["y=2x", "x = 2y+3", "y=2x-3", "y>2x+3", "3"],
    "x+y=3": ["3", "x+y=4", "x-y=3"],
    "3+4i": ["3-4i", "5", "3", "4i", "7i", "3+4", "3+4j+1"],
    r"\text{Evelyn}": ["Carla", "Evelyn and Carla", "not Evelyn", "9"],
    r"\text{(B)}": ["A", "(C)", "A or B", "AB"],
    "52_8": ["52_7", "42", "53_8", "53"],
    r"\{-3,3\}": ["3", "-3", "(3,-3)", r"\pm 9", "x=3"],
    "120": ["5!!", "12", "119.9999999999"],
    "2x": ["2", "2x^2", "2y", "2x+0.1"],
    r"-1\frac12": [r"-\frac12", "1.5", "-1/2"],
    r"137 \frac{1}{2}": ["137/2", "68.5", "137"],
    r"\begin{pmatrix}1\\2\end{pmatrix}": [r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", "1",
        r"\begin{pmatrix}1\\2\\0\end{pmatrix}"],
    r"\infty": [r"-\infty", "1/0", "10^{100}"],
    "0": ["2x+3=0", r"\emptyset", "10^{-30}", "e^{-100}", r"\frac{1}{10^{18}}", "x"],
    "6": ["2(2)", "2 3", "2+3"],
    "50": ["0.5%"],
}  # fmt: skip
"""Gold answer -> what is something else, and mostly begins with it."""


@pytest.mark.parametrize("gold", SAME)
def test_forms_of_an_answer(gold):
    wrong = [text for text in SAME[gold] if verify_here("math", FORMS[0] % text, gold, {}).status != "correct"]
    assert not wrong


@pytest.mark.parametrize("gold", OTHER)
def test_what_begins_with_an_answer_is_not_it(gold):
    wrong = [
        (form, text)
        for text in OTHER[gold]
        for form in FORMS
        if verify_here("math", form % text, gold, {}).correct is not False
    ]
    assert not wrong


@pytest.mark.parametrize(
    "text",
    ["Therefore 3 + sqrt(2)", "The answer is 3 or more.", "3 \\notin S", "3 + c", "The answer is 3 rather than 4."],
)
def test_unmarked_texts_are_read_whole_too(text):
    assert verify_here("math", text, "3", {}).correct is False
    assert verify_here("math", text, "4", {}).correct is False


def test_several_boxes_are_one_list():
    assert verify_here("math", "x=\\boxed{11}, x=\\boxed{-11}", "11,-11", {}).correct
    assert not verify_here("math", "x=\\boxed{11}, x=\\boxed{-11}", "-11", {}).correct


rationals = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**6)


@given(rationals, rationals)
def test_rationals_are_equal_exactly(one, other):
    text = rf"\frac{{{one.numerator}}}{{{one.denominator}}}"
    assert same(read(text), read(str(other))) == (one == other)
    assert same(read(f"({text})x + 1"), read(f"1 + {text} x"))
    assert not same(read(text), ("num", one + Fraction(1, 10**30)))


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=5), st.lists(st.integers(-9, 9), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_products_of_polynomials_are_what_they_expand_to(first, second):
    def text(coefficients):
        return " + ".join(f"({c})x^{n}" for n, c in enumerate(coefficients))

    expanded = [0] * (len(first) + len(second) - 1)
    for n, a in enumerate(first):
        for m, b in enumerate(second):
            expanded[n + m] += a * b
    product = read(f"({text(first)})({text(second)})")
    assert same(product, read(text(expanded)))
    expanded[-1] += 1
    assert not same(product, read(text(expanded)))


@given(
    st.text("0123456789xyei+-*/^!%()[]{}|\\\\ ,=<>._$fracsqtpm", max_size=60),
    st.sampled_from(["3", "x^2", "(1,2)", "x>3"]),
)
@settings(max_examples=300, deadline=None)
def test_any_text_is_judged(text, gold):
    assert verify_here("math", f"<answer>{text}</answer>", gold, {}).status in ("correct", "incorrect", "unparsable")


@pytest.mark.parametrize(
    "text",
    [
        "10^{10^{10^{10}}}", "9^9^9^9", "(10^9)!", "((99!)!)!", r"\binom{10^9}{5\cdot 10^8}", r"\sum_{i=1}^{10^9} i",
        r"\prod_{k=1}^{10^7} k", "(" * 400 + "1" + ")" * 400, "-" * 900 + "1", "1+" * 900 + "1",
        "x" + "^{2" * 300 + "}" * 300, "2^{" * 50 + "2" + "}" * 50, "0.1^{99999999}",
        r"\sum_{a=1}^{999}\sum_{b=1}^{999}\sum_{c=1}^{999} abc", r"\sqrt{" * 200 + "2" + "}" * 200, "x!^{x!^{x!}}",
        "1/" * 500 + "3", "|" * 500,
    ],
)  # fmt: skip
def test_work_is_bounded(text):
    for gold, answer in ((text, "42x"), ("42", text), (text, f"{text}+1")):
        began = time.process_time()
        verify_here("math", f"<answer>{answer}</answer>", gold, {})
        assert time.process_time() - began < 5


def test_golds_of_math500():
    if not MATH500.is_file():
        pytest.skip(f"MATH-500 is not at {MATH500}; it is not part of the repository")
    golds = list(dict.fromkeys(json.loads(line)["answer"] for line in MATH500.read_text().splitlines()))
    for gold in golds:
        for form in (*FORMS, "%s", "**Final Answer:** \\(%s\\)"):
            assert verify_here("math", form % gold, gold, {}).correct, (form, gold)
    numbers = [gold for gold in golds if gold.lstrip("-").isdigit()][:60]
    for gold in numbers:
        assert not any(verify_here("math", FORMS[0] % other, gold, {}).correct for other in numbers if other != gold)
