"""MkDocs hooks: a page per check and per fix from its docstring, the results of the lab, and formulas as MathML.

In the repository, docs link to the file of a check or a fix; on the site such a link leads to the page made from it.
Browsers render MathML themselves, so the site needs no script.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from functools import cache
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

sys.path.insert(0, str(Path(__file__).parents[1]))  # the `mkdocs` command does not search the repository

from benchmarks import figures
from benchmarks.example_pages import source_file

LAB_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "lab.json"
LINK = re.compile(r"\]\(([^)#\s]+)")
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
    """Lead links to sources to the pages made of them, and append the results of the lab to the page of the claims."""
    uri = page.file.src_uri
    made = render_markdown(stored_lab()) if uri == "lab-notes/claims.md" else ""
    return LINK.sub(lambda link: f"]({site_link(uri, link[1])}", markdown) + made


def site_link(uri: str, link: str) -> str:
    """Return the link of a page with this URI; one to a source file or folder becomes one to the page made of it."""
    folder = posixpath.dirname(uri)
    made = pages_of_sources().get(posixpath.normpath(posixpath.join("docs", folder, link)))
    return posixpath.relpath(made, folder or ".") if made else link


@cache
def pages_of_sources() -> dict[str, str]:
    """Return the generated pages by the path in the repository of what they are made of."""
    return {
        "src/leadline/checks": "reference/rules/index.md",
        "src/leadline/fixes": "reference/fixes/index.md",
        "benchmarks/figures.py": "lab-notes/figures.md",
        **{source_file(rule.look): page_path(rule) for rule in all_checks()},
        **{source_file(fix.propose): fix_path(fix) for fix in all_fixes()},
    }


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
    links = ", ".join(f"[{rule.code} {rule.name}](../rules/{rule.code}.md)" for rule in rules)
    reach = f"Reach: {REACH_NAMES[fix.reach]}."
    return f"# {fix.name}\n\n{fix.doc}\n\n---\n\n{reach} Tried for {links}. Since version {fix.since}.\n"


def fixes_index(fixes: tuple[Fix, ...]) -> str:
    rows = "\n".join(
        f"| [{each.name}]({each.name}.md) | {REACH_NAMES[each.reach]} | {each.summary} |" for each in fixes
    )
    return FIXES_INDEX + rows + "\n"


def _mathml(formula: re.Match[str]) -> str:
    display = "block" if formula[2] == "[" else "inline"
    return convert(html.unescape(formula[3]), display=display)


RULES_INDEX = """# Checks

A check is a pure function of measured numbers. It never sees your model. Each page says what the check measures, why it
matters, and when the check is wrong. `leadline explain CODE` prints the same text.

The letter says what the check is about: **F** the forward signal, **B** the backward signal, **I** initialization,
**R** residual structure, **U** the update, **W** weight decay, **N** numerics, **D** dependence: what outputs see,
what the loss rewards and which tensors learn. These are model checks and read the profile of a model. **T** codes are
run checks (alarms) and read the recent steps of a running training.

| code | name | in one sentence |
| --- | --- | --- |
"""

FIXES_INDEX = """# Fixes

A fix proposes edits. Every fix is proved [in the same way](../fix.md) before it is recommended. Each page says what the
fix does, why it works, what it costs and when it does not help. `leadline explain NAME` prints the same text.

| name | reach | in one sentence |
| --- | --- | --- |
"""
