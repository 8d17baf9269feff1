"""A section of one's own, added to a copy of the packages exactly as CONTRIBUTING.md says, is known everywhere."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SECTION = '''
    teacher: Annotated[ObjectSpec | None, sections.ObjectSection("network")] = None
    """A network that the other one learns from."""
'''
CONFIG = """\
experiment: taught
network: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 1}}
loss: mindspore.nn.MSELoss
optimizer: {class_path: mindspore.nn.SGD, init_args: {learning_rate: 0.1}}
teacher: {class_path: mindspore.nn.Dense, init_args: {in_channels: 3, out_channels: 2}}
"""
PROGRAM = """
import json
from pathlib import Path

from scripts.yaml_reference import reference
from trainer.experiment import build, load_config
from trainer.experiment.cli import main
from trainer.experiment.configuration.json_schema import experiment_schema
from trainer.experiment.configuration.yaml_tree import dump

schema = experiment_schema()
config = load_config("taught.yaml", ["teacher.init_args.out_channels=4"])
again = Path("again.yaml")
again.write_text(dump(config.to_dict()))
teacher = build(config, ()).parts["teacher"]
print(json.dumps({
    "codes": [main(["check", name]) for name in ("taught.yaml", "wrong.yaml", "kind.yaml", "misspelt.yaml")],
    "schema": schema["properties"]["teacher"]["description"],
    "reference": reference(schema).partition("## teacher")[2].strip().splitlines()[0],
    "read": config.teacher.init_args,
    "recorded": load_config(again).to_dict() == config.to_dict(),
    "defaults": [path for path in config.default_paths() if path.startswith("teacher")][:1],
    "built": [type(teacher).__name__, teacher.out_channels],
}))
"""


def test_a_section_that_is_declared_once_is_checked_shown_recorded_and_built(tmp_path):
    for package in ("trainer", "callbacks", "mindspore_trainer", "scripts"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (row,) = re.findall(r"\| a section of an experiment \| (\d) \| `(\S+)`.*", (ROOT / "CONTRIBUTING.md").read_text())
    declared = tmp_path / row[1]
    text, last = declared.read_text(), "    report: Annotated["
    assert last in text
    declared.write_text(text.replace(last, f"{SECTION}{last}"))
    (tmp_path / "taught.yaml").write_text(CONFIG)
    (tmp_path / "wrong.yaml").write_text(CONFIG.replace("out_channels: 2", "out_chanels: 2"))
    (tmp_path / "kind.yaml").write_text(
        CONFIG.replace("teacher: {class_path: mindspore.nn.Dense", "teacher: {class_path: mindspore.nn.Adam")
    )
    (tmp_path / "misspelt.yaml").write_text(CONFIG.replace("teacher:", "techer:"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "codes": [0, 2, 2, 2],
        "schema": "A network that the other one learns from.",
        "reference": "A network that the other one learns from.",
        "read": {"in_channels": 3, "out_channels": 4},
        "recorded": True,
        "defaults": ["teacher.init_args.has_bias"],
        "built": ["Dense", 4],
    }
    said = done.stderr
    assert "wrong.yaml:5:71: teacher.init_args.out_chanels: Dense has no argument 'out_chanels'" in said
    assert "kind.yaml:5:23: teacher.class_path: mindspore.nn.Adam is not a mindspore.nn.Cell" in said
    assert "misspelt.yaml:5:1: techer: unknown key; accepts experiment, seed," in said
    assert "did you mean 'teacher'?" in said
