"""What several test files share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch

from mars_core.loaded import LoadedModel
from mars_core.models import load_model
from tests.browser import UNEVEN, launch

# Tiny models are slower on several threads than on one, and far slower where the cores are busy.
torch.set_num_threads(1)

# A shell that runs the tests in the background makes them, and all that they start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no reason to fail, and what was found belongs in a test, not in a directory beside it.
hypothesis.settings.register_profile("mars", deadline=None, database=None)
hypothesis.settings.load_profile("mars")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What fails in a browser is tried once more, and listed: machine and browser stall now and then. Races
    of the page are looked for by MARS_TEST_UNEVEN, where nothing is tried twice."""
    for item in items:
        if item.get_closest_marker("browser") and not UNEVEN:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def default_fp32() -> LoadedModel:
    """The embedded default model in fp32 on the CPU, where equal means equal."""
    return load_model("default", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
