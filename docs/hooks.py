"""What MkDocs cannot do by itself: a page for each rule and each fix, from its docstring; the lab; formulas as MathML.

MathML is drawn by the browser, so the site needs no script and asks nobody for one.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as SitePage

from leadline.checks import Check, all_checks
from leadline.fixes import Fix, all_fixes
from leadline.lab.claims_page import render_markdown
from leadline.records import Lab
from leadline.report.pages.repair import REACH_NAMES

sys.path.insert(0, str(Path(__file__).parents[1]))  # the `mkdocs` command does not look into the repository

from benchmarks import figures

LAB_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "lab.json"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    reference = next(each["Reference"] for each in config.nav or [] if "Reference" in each)
    sections = {title: pages for each in reference for title, pages in each.items()}
    sections["Checks"] += [{f"{rule.code} {rule.name}": page_path(rule)} for rule in all_checks()]
    sections["Fixes"] += [{fix.name: fix_path(fix)} for fix in all_fixes()]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/rules/index.md", content=rules_index(all_checks())))
    for rule in all_checks():
        files.append(File.generated(config, page_path(rule), content=rule_page(rule)))
    files.append(File.generated(config, "reference/fixes/index.md", content=fixes_index(all_fixes())))
    for fix in all_fixes():
        files.append(File.generated(config, fix_path(fix), content=fix_page(fix)))
    files.append(File.generated(config, "lab-notes/figures.md", content=figures.page()))
    return files


def on_page_markdown(markdown: str, *, page: SitePage, **_: Any) -> str:
    """The page of the claims, followed by what the lab found."""
    if page.file.src_uri == "lab-notes/claims.md":
        return markdown + render_markdown(stored_lab())
    return markdown


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def stored_lab() -> Lab:
    return Lab.from_json(LAB_RESULTS.read_text())


def page_path(rule: Check) -> str:
    return f"reference/rules/{rule.code}.md"


def rule_page(rule: Check) -> str:
    return f"# {rule.code} {rule.name}\n\n{rule.doc}\n\n---\n\nSince version {rule.since}.\n"


def rules_index(rules: tuple[Check, ...]) -> str:
    rows = "\n".join(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.summary} |" for rule in rules)
    return RULES_INDEX + rows + "\n"


def fix_path(fix: Fix) -> str:
    return f"reference/fixes/{fix.name}.md"


def fix_page(fix: Fix) -> str:
    rules = [rule for rule in all_checks() if rule.code.startswith(fix.answers)]
    tried = ", ".join(f"[{rule.code} {rule.name}](../rules/{rule.code}.md)" for rule in rules)
    told = f"It {REACH_NAMES[fix.reach]}." if fix.reach == "function" else f"Reach: {REACH_NAMES[fix.reach]}."
    return f"# {fix.name}\n\n{fix.doc}\n\n---\n\n{told} Tried for {tried}. Since version {fix.since}.\n"


def fixes_index(fixes: tuple[Fix, ...]) -> str:
    rows = "\n".join(
        f"| [{each.name}]({each.name}.md) | {REACH_NAMES[each.reach]} | {each.summary} |" for each in fixes
    )
    return FIXES_INDEX + rows + "\n"


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return convert(html.unescape(found[3]), display=display)


RULES_INDEX = """# Rules

A rule is a pure function of the measured profile: it sees numbers, never your model. Each page says what the rule
measures, why that hurts, and when the rule is wrong. The same text is printed by `leadline explain CODE`.

The letter says what is sick: **F** the forward signal, **B** the backward signal, **I** the initialisation, **R** the
residual structure, **U** the update, **W** weight decay, **N** the numbers themselves. **T** are alarms: they look
at the recent steps of a running training, not at a profile.

| code | name | in one sentence |
| --- | --- | --- |
"""

FIXES_INDEX = """# Fixes

A fix proposes edits, which are proved before they are recommended, all in the same way ([how](../fix.md)). Each page
says what the fix does, why it works, what it costs and when it does not help; so does `leadline explain NAME`.

| name | reach | in one sentence |
| --- | --- | --- |
"""
