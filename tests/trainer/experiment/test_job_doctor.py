"""`trainer doctor` in a job of two processes: that they reach each other, and what differs between them."""

import pytest

from tests.trainer.distributed import jobs
from trainer.experiment.commands import doctor_command as doctor

pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture(scope="module")
def job():
    return jobs.run("doctor", "--quick", options=["--all-output"])


def test_a_sound_job_is_found_sound(job):
    code, output = job
    assert code == 0, output
    for rank in range(2):
        assert f"rank {rank} of 2 processes: 2 on " in output
    assert output.count("ok     same on all ranks") == 2
    assert output.count("AllGather of 1 KB in ") == 2
    assert output.count("1 MB to each of the others in ") == 2


def test_processes_of_unequal_environments_are_told_apart(tmp_path):
    """A script that sets a variable on one of them, as another machine's profile would."""
    script = tmp_path / "uneven.py"
    script.write_text(
        "import os, sys\n"
        "if os.environ.get('MS_NODE_ID') == '1': os.environ['ONEDNN_MAX_CPU_ISA'] = 'AVX2'\n"
        "from trainer.experiment.cli import main\n"
        "sys.exit(main(['doctor', '--quick']))\n"
    )
    code, output = jobs.run("python", script, options=["--all-output"])
    assert code == 1
    assert "WRONG  ONEDNN_MAX_CPU_ISA" in output
    assert "differs: ranks [0]: none; ranks [1]: AVX2" in output
    assert "give all processes the same ONEDNN_MAX_CPU_ISA" in output


def test_what_differs_is_named_with_the_ranks():
    facts = [doctor.local_facts() for _ in range(3)]
    (finding,) = doctor.compare_ranks(facts)
    assert (finding.name, finding.state) == ("same on all ranks", doctor.OK)
    facts[2]["code of trainer"] = "00000000"
    (finding,) = doctor.compare_ranks(facts)
    assert (finding.name, finding.state) == ("code of trainer", doctor.WRONG)
    assert finding.value.startswith("differs: ranks [0, 1]: ")
    assert finding.value.endswith("; ranks [2]: 00000000")


def test_one_process_has_no_job():
    assert not any(finding.name == "job" for finding in doctor.examine(run_a_graph=False))
