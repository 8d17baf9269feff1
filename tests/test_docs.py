"""The site builds without a warning, Chinese pages keep step, references are those of the code."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys

import pytest

import callbacks
from scripts.site_pages import example, keyword_table, public_names, with_glossary_links
from scripts.yaml_reference import PAGE, reference
from trainer.compat import keywords
from trainer.experiment.configuration.json_schema import experiment_schema
from trainer.metrics.registry import metric_names

pytestmark = pytest.mark.docs
SEARCHED = [
    "freezing", "troubleshooting", "macOS", "Windows", "proxy", "NumPy 2", "importance", "negative sampling",
    "parameter groups", "warm-up", "Schedule", "GAUC", "BySlice", "recall@10/user", "negative_sampling_rate",
    'Publish(rows="int8")', "row-wise Adagrad", "delayed join", "class weights", "early stopping", "best weights",
    "DataFrame", "FAQ", "imbalanced", "overfitting",
]  # fmt: skip
# The search ranks titles first.
TITLES = [
    "feature importance", "freeze layers", "fine-tune", "pretrained", "gradient clipping", "custom loss", "latency",
    "reproducible", "deploy", "REST API", "authentication", "monitoring", "logging", "debugging", "roll back",
    "NumPy 2", "out of memory", "cold start", "Split into", "Jupyter", "hyperparameter search", "GPU", "NumPy",
    "cross-validation", "best model", "warmup", "class imbalance", "restart", "kafka", "sliding window", "CUDA",
    "mixed precision", "wandb", "data augmentation", "load one", "custom metric", "custom callback", "seeds", "slow",
    "feature engineering", "docker", "top k", "A/B test", "distributed", "int8", "test split", "texts, dates", "cron",
    "compatibility", "time series", "every n steps", "rollback", "exactly once", "quickstart", "weight decay", "sql",
    "unseen ids", "eviction", "delayed labels", "encoding", "explain", "logging", "gradient accumulation",
    "one-hot", "3.13", "confusion matrix", "plots of the loss", "dimension", "Windows", "multi-label",
]  # fmt: skip


@pytest.mark.long
def test_the_site_builds_without_a_warning(project_root, tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=project_root, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "api" / "index.html").read_text("utf-8")
    entries = re.split(r'<h3 id="', page)[1:]
    assert {re.search(r">(\w+)<", entry)[1] for entry in entries} == set(public_names())
    assert [entry[:30] for entry in entries if "<p>Example (" not in entry] == []
    assert re.search(r"sink_size.*?default:.*?-1", page, re.S)
    page = (tmp_path / "site" / "callbacks-reference" / "index.html").read_text("utf-8")
    shown = set(re.findall(r'<h2 id="\w+">(\w+)', page))
    assert shown == set(callbacks.__all__) - {"HOOKS", "adapt", "CallbackList", "Every", "Callback"}
    assert "Raises" in page  # the docstrings are there as well
    page = (tmp_path / "site" / "metrics" / "index.html").read_text("utf-8")
    shown = re.sub("<[^>]+>", "", " ".join(re.findall(r"<h3 .*?</h3>|<p>These names.*?</p>", page, re.S)))
    words = set(re.findall(r"[\w@<>/]+", html.unescape(shown)))
    assert set(metric_names()) - words == {"acc"}  # is accuracy
    found = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text("utf-8"))["docs"]
    texts = [html.unescape(re.sub("<[^>]+>", "", f"{part['title']} {part['text']}")).lower() for part in found]
    assert [word for word in SEARCHED if not any(word.lower() in text for text in texts)] == []
    titles = [html.unescape(part["title"]).lower() for part in found]
    assert [word for word in TITLES if not any(word.lower() in title for title in titles)] == []
    assert (tmp_path / "site" / "tutorials" / "offline" / "index.html").read_text().count("ARCHITECTURE/#snapshot") == 1


@pytest.mark.parametrize(("english", "chinese"), [("README.md", "README_CN.md"), ("docs/index.md", "docs/index_cn.md")])
def test_a_chinese_page_has_the_same_code_headings_and_links(project_root, english, chinese):
    pages = [(project_root / name).read_text("utf-8") for name in (english, chinese)]
    blocks, headings, links = [], [], []
    for page in pages:
        blocks.append(re.findall(r"^```\w+\n.*?^```", page, re.M | re.S))
        prose = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
        headings.append([len(level) for level in re.findall(r"^(#+) ", prose, re.M)])
        links.append([link for link in re.findall(r"\]\(([^)]+)\)", prose) if not link.startswith(("http", "README"))])
        assert all((project_root / english).parent.joinpath(link).exists() for link in links[-1])
    assert blocks[0] == blocks[1]
    assert headings[0] == headings[1]
    assert links[0] == links[1]
    assert len(re.findall(r"[\u4e00-\u9fff]", pages[1])) > 100


def test_questions_are_those_that_the_code_asks(project_root):
    """Each heading in quotation marks is a part of a message; a keyword's hint may end in what a page says."""
    sources = [path.read_text("utf-8") for room in ("trainer", "callbacks", "mindspore_trainer") for path in
               (project_root / room).rglob("*.py")]  # fmt: skip
    messages = re.sub(r'"\s*f?"', "", "\n".join(sources))  # literals over several lines
    asked = re.findall(r'^## "(.*)"$', (project_root / "docs" / "faq.md").read_text("utf-8"), re.M)
    assert len(asked) >= 10
    assert [text for text in asked if text not in messages] == []
    table = keyword_table()
    assert [name for name in (*keywords.HINTS, *keywords.VERBS, *keywords.SAME_MEANING) if f"{name}" not in table] == []


def test_every_public_name_has_an_example():
    names = public_names()
    assert len(names) > 120
    assert all(example(name)[1] for name in names)


def test_the_first_use_of_a_word_leads_to_the_glossary():
    text = "# Snapshots\n\n`snapshot` and [a snapshot](x.md)\n\n```python\nsnapshot = 1\n```\nA snapshot, snapshots.\n"
    linked = with_glossary_links(text, "ARCHITECTURE.md")
    assert linked == text.replace("A snapshot,", "A [snapshot](ARCHITECTURE.md#snapshot),")


def test_the_reference_of_yaml_is_that_of_the_schema():
    made = reference(experiment_schema())
    assert PAGE.read_text("utf-8") == made, "run python scripts/yaml_reference.py"


def test_the_readme_names_every_extra_and_fits_two_screens(project_root):
    import configparser

    parser = configparser.ConfigParser()
    parser.read(project_root / "setup.cfg")
    extras = set(parser["options.extras_require"]) - {"test", "dev", "docs"}
    for name in ("README.md", "README_CN.md"):
        readme = (project_root / name).read_text("utf-8")
        assert {extra for extra in extras if f"`[{extra}]`" not in readme} == set(), name
        assert len(readme.splitlines()) <= 120
        assert "](docs/pictures/" in readme.split("\n## ")[0], f"{name} begins with a picture of the product at work"
        cells = [line.split("|")[2:] for line in re.findall(r"^ *\|.*", readme, re.M)]
        figures = [cell.strip() for row in cells for cell in row if re.fullmatch(r" [\d,.]+ ", cell)]
        assert 10 < len(figures) < 20, f"{name}: one small table of figures"
        measured = (project_root / "docs" / "benchmarks.md").read_text("utf-8")
        assert [figure for figure in figures if f": {figure} us/step |" not in measured] == []


@pytest.mark.long
def test_the_long_description_has_links_that_a_package_index_can_follow(project_root, tmp_path):
    """Of a source archive, which holds the metadata, as twine checks it."""
    import shutil

    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project_root / name, source)
    for name in ("trainer", "callbacks", "mindspore_trainer"):
        (source / name).mkdir()
        shutil.copy(project_root / name / "__init__.py", source / name)
    for url in ("https://example.org/owner/trainer", ""):
        environment = {**os.environ, "MINDSPORE_TRAINER_URL": url}
        build = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path / "dist")]
        subprocess.run(build, cwd=source, check=True, env=environment, capture_output=True, timeout=120)
        (archive,) = (tmp_path / "dist").iterdir()
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", str(archive)], check=True, timeout=120)
        (info,) = source.glob("*.egg-info/PKG-INFO")
        text = info.read_text("utf-8")
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert all(link.startswith("https://") for link in links)
        assert (f"Project-URL: Source, {url}" in text) == bool(url)
        assert any("docs/streaming.md" in link for link in links) == bool(url)


def test_every_picture_is_small_and_shown_and_every_callback_is_explained(project_root):
    docs = project_root / "docs"
    text = "\n".join(page.read_text("utf-8") for page in [*docs.rglob("*.md"), project_root / "README.md"])
    pictures = [path for path in (docs / "pictures").rglob("*") if path.is_file()]
    assert {path.name for path in pictures if f"/{path.name})" not in text} == set()
    assert {path.name for path in pictures if path.stat().st_size > 150_000} == set()
    makers = [*(project_root / "scripts").glob("*.py"), *(project_root / "examples").rglob("*.py")]
    code = "\n".join(path.read_text("utf-8") for path in makers)
    assert {path.name for path in pictures if path.name.split("-")[0].partition(".")[0] not in code} == set()
    names = set(callbacks.__all__) - {"HOOKS", "adapt", "CallbackList", "Every", "Callback", "Logger"}
    explained = (docs / "callbacks.md").read_text("utf-8")
    assert {name for name in names if f"**{name}**" not in explained} == set()
    alternatives = " ".join(re.findall(r"!\[([^\]]*)\]", explained))
    (without,) = re.findall(r"^## Without a picture\n(.*?)^## ", explained, re.M | re.S)
    for name in names:
        shown, excused = (re.search(rf"\b{name}\b", part) is not None for part in (alternatives, without))
        assert shown != excused, f"docs/callbacks.md has no picture of {name}, and does not say why"
