"""What MkDocs cannot do by itself: a page for each rule, made of its docstring, and formulas as MathML.

MathML is drawn by the browser, so the site needs no script and asks nobody for one.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from leadline.alarms.selection import Check, all_checks
from leadline.fixes import Fix, all_fixes
from leadline.rules import all_rules

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    section = next(each["Rules"] for each in config.nav or [] if "Rules" in each)
    section += [{f"{rule.code} {rule.name}": page_path(rule)} for rule in all_checks()]
    fixes = next(each["Fixes"] for each in config.nav or [] if "Fixes" in each)
    fixes += [{fix.name: f"fixes/{fix.name}.md"} for fix in all_fixes()]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "rules/index.md", content=rules_index(all_checks())))
    for rule in all_checks():
        files.append(File.generated(config, page_path(rule), content=rule_page(rule)))
    files.append(File.generated(config, "fixes/index.md", content=fixes_index(all_fixes())))
    for fix in all_fixes():
        files.append(File.generated(config, f"fixes/{fix.name}.md", content=fix_page(fix)))
    return files


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, content)


def page_path(rule: Check) -> str:
    return f"rules/{rule.code}.md"


def rule_page(rule: Check) -> str:
    return f"# {rule.code} {rule.name}\n\n{rule.doc}\n\n---\n\nSince version {rule.since}.\n"


def rules_index(rules: tuple[Check, ...]) -> str:
    rows = "\n".join(f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.summary} |" for rule in rules)
    return RULES_INDEX + rows + "\n"


def fix_page(fix: Fix) -> str:
    """The fix's docstring, and which rules' findings it is tried for."""
    answered = [rule for rule in all_rules() if rule.code.startswith(fix.answers)]
    links = ", ".join(f"[{rule.code}](../rules/{rule.code}.md)" for rule in answered)
    told = f"Reach: {fix.reach}. Tried for {links}. Since version {fix.since}."
    return f"# {fix.name}\n\n{fix.doc}\n\n---\n\n{told}\n"


def fixes_index(fixes: tuple[Fix, ...]) -> str:
    rows = "\n".join(f"| [{fix.name}]({fix.name}.md) | {fix.reach} | {fix.summary} |" for fix in fixes)
    return FIXES_INDEX + rows + "\n"


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return convert(html.unescape(found[3]), display=display)


FIXES_INDEX = """# Fixes

A fix proposes edits for findings; `leadline fix` proves each on a copy of your model before it recommends it. How far a
fix reaches: *function* leaves what the model computes, *recipe* changes how it is trained, *init* its initial weights,
*architecture* the model itself; *advice* is for you to carry out. `leadline explain NAME` prints the same pages.

| fix | reach | what it does |
| --- | --- | --- |
"""

RULES_INDEX = """# Rules

A rule is a pure function of the measured profile: it sees numbers, never your model. Each page says what the rule
measures, why that hurts, and when the rule is wrong. The same text is printed by `leadline explain CODE`.

The letter says what is sick: **F** the forward signal, **B** the backward signal, **I** the initialisation, **R** the
residual structure, **U** the update, **W** weight decay, **N** the numbers themselves. **T** are alarms: they look
at the recent steps of a running training, not at a profile.

| code | name | in one sentence |
| --- | --- | --- |
"""
