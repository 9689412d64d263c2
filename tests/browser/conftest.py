"""Pages in a real browser, with the network off. `make test-browser` installs what this needs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_server import run, serve

__all__ = ["run", "serve"]

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@dataclass
class Opened:
    """A page on the screen, and all that it did: requests, messages and errors, dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def __getattr__(self, name):
        return getattr(self.page, name)


@pytest.fixture(scope="session")
def chromium():
    """The browser. Where it is missing these tests fail: what is not tested must not look tested."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is missing: run `make test-browser`, which installs it")
    if not CHROMIUM:
        pytest.fail("chromium is missing: run `make test-browser`, which installs it, or set CHROMIUM")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium, tmp_path):
    """`show(html)` opens it from a file, offline; further arguments are those of a browser context."""
    contexts = []

    def show(text: str, **choices) -> Opened:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        size = {"width": choices.pop("width", 1100), "height": 900}
        contexts.append(chromium.new_context(viewport=size, offline=True, **choices))
        opened = Opened(contexts[-1].new_page())
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.on("console", lambda message: opened.messages.append(message.text))
        opened.page.on("pageerror", lambda error: opened.messages.append(str(error)))
        opened.page.on("dialog", lambda dialog: (opened.dialogs.append(dialog.message), dialog.dismiss()))
        opened.page.goto(path.as_uri())
        if choices.get("java_script_enabled", True) and "data-ready" not in text:
            opened.page.wait_for_function("document.readyState === 'complete'")
        return opened

    yield show
    for context in contexts:
        context.close()
