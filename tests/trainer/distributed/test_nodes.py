"""One job of msrun on two machines: two network namespaces joined by a virtual cable."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.process, pytest.mark.long]

PORT = 8127
TRAINS = """
import sys
import numpy as np
from tests.trainer.distributed.test_nodes import train

weights, rank = train()
np.save(f"{sys.argv[1]}/weights_{rank}", weights)
"""


def train():
    """Train on the breast cancer data; return the weights and the rank."""
    from mindspore import nn

    from tests.trainer.distributed.fit_program import data
    from trainer import Trainer

    x, y = data()
    network = nn.Dense(30, 1, weight_init="zeros", bias_init="zeros")
    trainer = Trainer(network, nn.BCEWithLogitsLoss(), nn.Adam(network.trainable_params(), 0.03), seed=3)
    trainer.fit({"x": x, "y": y}, 1, callbacks=[], batch_size=40 // trainer.group.size)
    return network.weight.asnumpy(), trainer.group.rank


@pytest.fixture(scope="module")
def machines():
    """The names of two network namespaces, 10.213.0.1 and 10.213.0.2."""
    names = [f"trainer-{os.getpid()}-{number}" for number in range(2)]

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0

    try:
        made = shutil.which("ip") and all(ip("netns", "add", name) for name in names)
        made = made and ip(
            *("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth1", "netns", names[1])
        )
        for number, name in enumerate(names):
            made = made and ip("-n", name, "link", "set", "lo", "up")
            made = made and ip("-n", name, "addr", "add", f"10.213.0.{number + 1}/24", "dev", f"veth{number}")
            made = made and ip("-n", name, "link", "set", f"veth{number}", "up")
        if not made:
            pytest.skip("network namespaces cannot be made here")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


def test_msrun_trains_on_two_machines_like_one_process(machines, tmp_path):
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    msrun = Path(sys.executable).with_name("msrun")
    environment = {**os.environ, "PATH": f"{msrun.parent}{os.pathsep}{os.environ['PATH']}"}
    jobs = []
    for number, name in enumerate(machines):
        options = ["--worker_num=2", "--local_worker_num=1", "--master_addr=10.213.0.1", f"--master_port={PORT}"]
        options += [f"--node_rank={number}", "--join=True", f"--log_dir={tmp_path}/logs{number}"]
        command = ["ip", "netns", "exec", name, msrun, *options, script, tmp_path]
        worker = {**environment, "MS_WORKER_IP": f"10.213.0.{number + 1}"}
        output = subprocess.PIPE
        jobs.append(subprocess.Popen(command, env=worker, stdout=output, stderr=subprocess.STDOUT, text=True))
    outputs = [job.communicate(timeout=400)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    alone, _ = train()
    for rank in range(2):
        np.testing.assert_allclose(np.load(tmp_path / f"weights_{rank}.npy"), alone, rtol=0, atol=1e-6)
