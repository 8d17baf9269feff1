"""What `trainer doctor` sees."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import pytest

from trainer.experiment.cli import main
from trainer.experiment.commands import doctor_command as doctor
from trainer.mindspore_internals import differences


def test_this_installation_is_found_sound(capsys):
    assert main(["doctor"]) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert "compiled and ran" in shown
    assert "MindSpore uses CPU" in shown


def test_a_module_that_hides_the_package_is_reported(tmp_path, monkeypatch):
    (tmp_path / "callbacks.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = [finding for finding in doctor.examine(run_a_graph=False) if finding.name == "module callbacks"]
    assert [(finding.state, finding.value) for finding in found] == [(doctor.NOTE, str(tmp_path / "callbacks.py"))]
    assert "my_callbacks.py" in found[0].advice


def told(name):
    """Return what an examination finds about one thing."""
    (finding,) = [finding for finding in doctor.examine(run_a_graph=False) if finding.name == name]
    return finding


@pytest.mark.skipif(sys.platform != "linux", reason="ELF files")
def test_binaries_for_another_machine_are_reported(tmp_path, monkeypatch):
    ours = doctor.elf_machine(os.path.realpath(sys.executable))
    assert ours == {"amd64": "x86_64", "arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    other = tmp_path / "other.so"
    other.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", 0xB7))
    assert doctor.elf_machine(other) == "aarch64"
    monkeypatch.setattr(doctor, "elf_machine", lambda path: "aarch64" if ours == "x86_64" else "x86_64")
    assert told("mindspore binaries").state == doctor.WRONG


@pytest.mark.parametrize("has", [True, False])
def test_what_this_mindspore_lacks_is_reported(monkeypatch, has):
    monkeypatch.setattr(differences, "can_plan_for_one_core", lambda: has)
    told = [finding for finding in doctor.examine() if finding.name == "mindspore differs"]
    about = [finding for finding in told if "`Trainer(deterministic=True)` is refused" in finding.value]
    assert [finding.state for finding in about] == ([] if has else [doctor.NOTE])
    assert told


def test_numpy_2_is_reported(monkeypatch):
    real = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: "2.1.0" if name == "numpy" else real(name))
    (wrong,) = [finding for finding in doctor.examine(run_a_graph=False) if finding.state == doctor.WRONG]
    assert wrong.name == "numpy"
    assert "numpy<2,>=1.25" in wrong.advice


NETWORK = """
import sys
import numpy as np
from mindspore import Tensor, nn


class Scaled(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def construct(self, x):
        return x * self.factor


print(Scaled(float(sys.argv[1])).compile_and_run(Tensor(np.ones(1, np.float32))).asnumpy()[0])
"""


@pytest.mark.long
@pytest.mark.process
def test_mindspores_graph_cache_is_reported_because_it_can_run_another_settings_graph(tmp_path, monkeypatch):
    (tmp_path / "network.py").write_text(NETWORK)
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "1")
    monkeypatch.setenv("MS_COMPILER_CACHE_PATH", str(tmp_path / "graphs"))

    def run(factor):
        command = [sys.executable, tmp_path / "network.py", factor]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()[-1]

    assert (run("2"), run("5")) == ("2.0", "2.0"), "MindSpore now tells the two apart: its cache could be used"
    finding = told("graph cache")
    assert (finding.value, finding.state) == ("on", doctor.NOTE)
    monkeypatch.setenv("MS_COMPILER_CACHE_ENABLE", "0")
    finding = told("graph cache")
    assert (finding.value, finding.state) == ("off", doctor.OK)


@pytest.mark.parametrize(("cores", "expected"), [(2, "same bits"), (16, "taskset -c 0,1")])
def test_it_says_where_bits_are_repeatable(monkeypatch, cores, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    (finding,) = (each for each in doctor.examine(run_a_graph=False) if each.name == "repeatability")
    assert expected in f"{finding}"
