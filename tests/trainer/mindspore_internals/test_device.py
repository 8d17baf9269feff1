"""The device of a Trainer: who chooses it, what is refused on it, and MindSpore's GPU plugin without a card."""

import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from mindspore import nn

from tests import cuda_stand_ins
from trainer import Trainer
from trainer.embedding import Embedding
from trainer.errors import ConfigurationError
from trainer.experiment.cli import main
from trainer.experiment.commands import device_probes
from trainer.graph import precision
from trainer.mindspore_internals import device, gpu_libraries
from trainer.mindspore_internals.messages import failed_assertion

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
DATA = (X, X.sum(1, keepdims=True))


def dense(**options):
    network = nn.Dense(4, 1)
    return Trainer(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), **options)


@pytest.fixture
def like_gpu(monkeypatch):
    """Let the CPU claim what MindSpore's GPU backend can and cannot do; sums and tables stay on the host."""
    abilities = ("auto_level", "has_bfloat16", "lowers_batch_norm", "keeps_programs_apart", "automatic_steps")
    changed = {name: getattr(device.GPU, name) for name in abilities}
    monkeypatch.setitem(device.DEVICES, "CPU", replace(device.CPU, **changed))
    monkeypatch.delenv(device.UNSAFE, raising=False)
    gc.collect()  # Trainers of other tests


def test_a_name_that_is_no_device_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"device takes 'cpu', 'gpu', 'ascend', 'auto' or None.*'gpu'"):
        dense(device="gpuu")


def test_a_device_that_is_not_there_is_refused_before_anything_is_compiled():
    with pytest.raises(
        ConfigurationError, match=r"device='ascend': (MindSpore has no such device|this process already)"
    ):
        dense(device="ascend")
    assert dense(device="auto").device is dense(device="cpu").device is dense().device is device.CPU


def test_the_command_line_and_the_experiment_choose_the_device(tmp_path, capsys):
    experiment = tmp_path / "one.yaml"
    experiment.write_text(
        "experiment: one\nnetwork: {class_path: mindspore.nn.Dense, init_args: {in_channels: 4, out_channels: 1}}\n"
        "trainer: {device: cpu}\ndata: {train: {class_path: numpy.zeros, init_args: {shape: 4}}}\n"
    )
    assert main(["check", str(experiment)]) == 0
    assert main(["check", str(experiment), "--device", "ascend", "--set", "trainer.devcie=cpu"]) == 2
    assert "device" in capsys.readouterr().err


def test_sparse_tables_are_refused_by_name_where_they_train_to_wrong_values(like_gpu, monkeypatch):
    network = nn.SequentialCell(Embedding(4, mode="sparse", name="users"), nn.Dense(4, 1))
    parts = network, nn.MSELoss(), nn.SGD(network[1].trainable_params(), 0.1)
    with pytest.raises(ConfigurationError, match=r"sparse tables \(users\).*device='cpu'.*TRAINER_UNSAFE_GPU=1"):
        Trainer(*parts)
    monkeypatch.setenv(device.UNSAFE, "1")
    Trainer(*parts)


def test_a_second_training_program_is_refused_while_the_first_lives(like_gpu):
    first, second = dense(), dense()
    first.fit(DATA, 1, batch_size=32, callbacks=[])
    first.evaluate(DATA, batch_size=32)
    with pytest.raises(ConfigurationError, match="two training programs"):
        second.fit(DATA, 1, batch_size=32, callbacks=[])
    first.fit(DATA, 1, batch_size=32, callbacks=[])
    del first
    gc.collect()
    second.fit(DATA, 1, batch_size=32, callbacks=[])


def test_steps_per_call_are_chosen_by_the_device(like_gpu):
    trainer = dense()
    trainer.fit(DATA, 1, batch_size=8, callbacks=[])
    assert trainer.sink_mode == "off: one step per call"
    trainer.fit(DATA, 1, batch_size=8, sink_size=4, callbacks=[])
    assert trainer.sink_mode == "graph loop of 4 steps"


def test_normalisation_stays_in_float32_where_the_device_asks_for_it(like_gpu):
    assert nn.BatchNorm2d in precision.resolve("O3").black_list
    assert precision.resolve("auto").level == "O2"
    with pytest.raises(ConfigurationError, match=r"keep_batchnorm_fp32=False: .* accepts only float32"):
        precision.resolve("O3", keep_batchnorm_fp32=False)
    with pytest.raises(ConfigurationError, match="bfloat16"):
        precision.resolve("O2", "bfloat16")
    assert nn.BatchNorm2d not in precision_of_cpu("O3").black_list


def precision_of_cpu(level):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.DEVICES, "CPU", device.CPU)
        return precision.resolve(level)


def test_an_assertion_on_the_card_says_that_the_process_is_lost_and_who_asserted():
    message = "cudaStreamSynchronize failed, ret[710], device-side assert triggered; kernel name: Default/Gather-op12"
    text = failed_assertion(message)
    assert "Default/Gather-op12" in text
    assert "start the process again" in text
    assert "does not name" in failed_assertion("CUDA_ERROR_ASSERT")
    assert failed_assertion("Select CPU operator[Transpose] fail! 710 rows") is None


def test_abilities_of_the_cpu_are_what_mindspore_does():
    abilities = {name: value for name, value in asdict(device.CPU).items() if name in device_probes.PROBES}
    assert len(abilities) == 7
    seen = {}
    for name in abilities:
        try:
            seen[name] = device_probes.PROBES[name]()
        except Exception:
            seen[name] = False
    assert seen == abilities


def test_the_documented_table_is_that_of_the_code(project_root):
    text = (project_root / "docs" / "devices.md").read_text("utf-8")
    rows = {
        cells[0]: cells[2:5]
        for line in text.splitlines()
        if line.startswith("| `") and len(cells := [cell.strip(" `") for cell in line.strip("|").split("|")]) == 5
    }
    for name in asdict(device.CPU):
        if name != "name":
            values = [getattr(kind, name) for kind in (device.CPU, device.GPU, device.ASCEND)]
            assert rows[name] == [_in_words(value) for value in values], name


def _in_words(value):
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


PROGRAM = """
import json, sys
from trainer import Model, Trainer
from mindspore import Tensor, nn
import mindspore, numpy as np
from trainer.errors import ConfigurationError
from trainer.experiment.commands import doctor_command

def make(kind, **options):
    network = nn.Dense(4, 1)
    return kind(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.1), **options)

def refused(kind, **options):
    try:
        return make(kind, **options).device.name
    except ConfigurationError as error:
        return str(error)

found = {"taken": mindspore.get_context("device_target")}
findings = doctor_command.examine(run_a_graph=False)
found["doctor"] = [f"{each.name}: {each.value} {each.advice}" for each in findings if each.name.startswith("gpu")]
found["nothing"], found["auto"], found["model"] = refused(Trainer), refused(Trainer, device="auto"), refused(Model)
found["gpu"] = refused(Trainer, device="gpu")
trainer = make(Trainer, device="cpu")
x = np.ones((8, 4), np.float32)
found["loss"] = float(trainer.fit((x, x[:, :1]), 30, batch_size=8, callbacks=[]).history["loss"][-1])
found["chosen"] = mindspore.get_context("device_target")
found["late"] = refused(Trainer, device="gpu")
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.skipif(not cuda_stand_ins.can_be_built(), reason="needs gcc, nm and MindSpore's GPU plugin")
def test_mindspores_plugin_loads_without_settings_and_no_trainer_takes_its_device_unasked(tmp_path):
    library = "libcurand.so.10"
    site, driver = cuda_stand_ins.build(tmp_path)
    found = run(tmp_path, site, driver)
    assert found["taken"] == "GPU"
    assert "device: MindSpore has selected the GPU by itself; pass device='gpu'" in found["nothing"]
    assert (found["auto"], found["model"], found["gpu"]) == ("GPU", "GPU", "GPU")
    assert (found["chosen"], found["loss"] < 1e-3) == ("CPU", True)
    assert "already runs on another device" in found["late"]
    doctor = "\n".join(found["doctor"])
    assert "supports CUDA 12.4" in doctor
    assert re.search(rf"{cuda_stand_ins.CARD}, compute capability 9.0: the driver compiles .* at first use", doctor)
    assert "libmindspore_gpu.so.11.6 loaded" in doctor
    (site / "nvidia" / gpu_libraries.LIBRARIES[library][1] / "lib" / library).unlink()
    found = run(tmp_path, site, driver)
    assert (found["taken"], found["nothing"], found["loss"] < 1e-3) == ("CPU", "CPU", True)
    assert f"{library} cannot be loaded" in "\n".join(found["doctor"])
    assert "nvidia-curand-cu11" in "\n".join(found["doctor"])
    assert library in found["gpu"]


def run(folder, site, driver):
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", device.UNSAFE)}
    environment["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment["LD_LIBRARY_PATH"] = str(driver)  # the driver is the machine's
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, folder / "program.py"], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
