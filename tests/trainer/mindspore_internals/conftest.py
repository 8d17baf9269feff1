"""A MindSpore that is not what the trainer relies on, and every test finding out anew what it has."""

import pytest

from trainer.mindspore_internals import warn_of_fallback
from trainer.mindspore_internals.shared_memory import try_view


@pytest.fixture(autouse=True)
def _anew():
    try_view.cache_clear()
    warn_of_fallback.cache_clear()
    yield
    try_view.cache_clear()
    warn_of_fallback.cache_clear()
