"""Options of the test suite."""

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-browser",
        action="store_true",
        help="fail, instead of skip, the tests that need chromium where there is none",
    )


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tests are many small operations on two cores that they share: more threads would only wait for each other."""
    torch.set_num_threads(1)
