"""Hands over to setuptools; the metadata is in setup.cfg, but for links that a package index could not follow."""

import os
import re
from pathlib import Path

from setuptools import setup

# Where the sources of this build are shown: MINDSPORE_TRAINER_URL=https://host/owner/mindspore-trainer
URL = os.environ.get("MINDSPORE_TRAINER_URL", "").rstrip("/")


def long_description() -> str:
    """Return the README with absolute links; without a URL with their texts alone, and without pictures."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    picture, link = r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*", r"\[([^\]]*)\]\((?!https?:|#)([^)]+)\)"
    if not URL:
        return re.sub(link, r"\1", re.sub(picture, "", text))
    text = re.sub(picture, rf"![\1]({URL}/raw/main/\2)\n\n", text)
    return re.sub(link, rf"[\1]({URL}/blob/main/\2)", text)


project_urls = {"Source": URL, "Changelog": f"{URL}/blob/main/CHANGELOG.md", "Documentation": f"{URL}/tree/main/docs"}
setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    **({"url": URL, "project_urls": project_urls} if URL else {}),
)
