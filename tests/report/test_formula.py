"""The page of a rule reads well in a terminal, formulas included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leadline.checks import model_checks
from leadline.report.formula import markdown, plain, readable
from leadline.report.look import Look


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\chi = (g_1 / g_L)^{1/(L-1)}", "χ = (g_1 / g_L)^(1/(L-1))"),
        (r"\partial L / \partial x_\ell", "∂L / ∂x_ℓ"),
        (r"\xi = -1 / \ln \chi", "ξ = -1 / ln χ"),
        (r"\mu\,\Phi(a) + \sigma\,\varphi(a)", "μ Φ(a) + σ φ(a)"),
        (r"\sigma_w^{2}", "σ_w^2"),
        (r"\frac{1}{\sqrt{N}}", "1/√N"),
        (r"\frac{a+b}{\frac{c}{d}}", "(a+b)/(c/d)"),
        (r"1/\sqrt{2N}", "1/√(2N)"),
        (r"\left(\mathrm{relu}(x)\right)", "(relu(x))"),
        (r"\lambda_{max} \le \exp(-6)", "λ_max ≤ exp(-6)"),
        (r"\text{fan in} \cdot \|w\|", "fan in · ‖w‖"),
        (r"\Delta L \approx -\eta\,\lVert g \rVert^2", "ΔL ≈ -η ‖g‖^2"),
        (r"1 - \tfrac12 g^\top H g", "1 - 1/2 g^T H g"),
        (r"\Big(\frac{1}{\sqrt d}\Big)", "(1/(√d))"),
        (r"W \leftarrow \lambda\max(a, b)", "W ← λ max(a, b)"),
        (r"q\cdot\mathrm{norm}(k)", "q· norm(k)"),
        (r"\bar x^2 / \sqrt{\hat v}", "x̄^2 / √(v̂)"),
        (r"\unheardof x", "unheardof x"),
    ],
)
def test_a_formula_is_written_in_plain_signs(latex, text):
    assert plain(latex) == text


@given(st.text(alphabet="ab\\{}_^$ frac", max_size=60))
def test_any_text_can_be_made_readable(text):
    assert "\n" not in plain(text)
    readable(text)


def test_formulas_and_code_survive_the_markdown():
    text = markdown(r"As $a * b * c$ and `x_i * y_i` with [bold]this[/bold].", Look())
    assert text == "As a * b * c and x_i * y_i with [bold]this[/bold].\n"


@pytest.mark.parametrize("rule", model_checks(), ids=lambda rule: rule.code)
def test_the_page_of_a_rule_has_no_latex_left(rule):
    text = markdown(rule.doc, Look())
    assert "$" not in text
    assert "\\" not in text


def test_prose_is_not_set_wider_than_it_can_be_read():
    assert max(map(len, markdown("word " * 200, Look(width=300)).splitlines())) <= 96
