"""The tables of docs/reliability.md are what `python scripts/reliability_tables.py` finds."""

import pytest

from scripts.reliability_tables import PAGE, TABLES, updated_page

pytestmark = [pytest.mark.docs, pytest.mark.long]


@pytest.mark.parametrize("name", TABLES)
def test_the_page_tells_what_the_command_finds(name):
    page = PAGE.read_text(encoding="utf-8")
    assert updated_page(page, [name]) == page
