"""The files for a cluster: one script, started in as many ways as there are here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from run_notebook import ROOT

from d2lpar import num_gpus

CLUSTER = ROOT / "book" / "cluster"
WORKER = str(CLUSTER / "worker.py")
SLURM = ["sh", str(CLUSTER / "one-node-slurm")]
# mpirun refuses to run as root, or more processes than cores, unless it is told to.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]


def train(*launcher, **environment):
    """Run the script, and return how many processes there were, and the loss."""
    done = subprocess.run(
        [*launcher, WORKER],
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ((processes, loss),) = re.findall(r"processes: (\d+), loss: (\S+)", done.stdout)
    return int(processes), float(loss)


@pytest.fixture(scope="module")
def alone():
    """The loss of one process without a launcher."""
    processes, loss = train(sys.executable)
    assert processes == 1
    return pytest.approx(loss, abs=1e-5)


@pytest.fixture
def slurm():
    """The environment of a Slurm of one node, which is taken down again."""
    if not shutil.which("slurmd", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("no Slurm: apt-get install slurm-wlm, as root")
    begun = subprocess.run([*SLURM, "start"], capture_output=True, text=True, timeout=60)
    assert begun.returncode == 0, begun.stderr
    configuration = Path(begun.stdout.split("=")[1].strip())
    yield {"SLURM_CONF": str(configuration)}
    subprocess.run([*SLURM, "stop", configuration.parent], check=True, timeout=60)
    assert not configuration.parent.exists()
    left = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in left if str(configuration.parent) in command]


def test_workers_of_this_package_run_it(alone):
    assert train(sys.executable, "-m", "d2lpar", "run", "-n", "2") == (2, alone)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no Open MPI: apt-get install openmpi-bin")
def test_mpirun_runs_it(alone):
    assert train(*MPIRUN, sys.executable) == (2, alone)


@pytest.mark.skipif(num_gpus() < 2, reason="takes two GPUs")
def test_it_runs_over_two_gpus(alone):
    run = ("-m", "d2lpar", "run", "-n", "2", "--gpus")
    assert train(sys.executable, *run, JAX_PLATFORMS="") == (2, alone)


def test_slurm_runs_it(alone, slurm):
    assert train("srun", "-n", "2", sys.executable, **slurm) == (2, alone)


def test_each_process_is_watched_into_a_file_of_its_own_and_the_files_are_compared(slurm, tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("no Open MPI: apt-get install openmpi-bin")
    for launcher in (MPIRUN, ["srun", "-n", "2"]):
        report = tmp_path / launcher[0] / "report.json"
        report.parent.mkdir()
        watch = (sys.executable, "-m", "d2lpar", "watch", "--json", str(report))
        assert train(*launcher, *watch, **slurm)[0] == 2
        files = sorted(report.parent.iterdir())
        assert [file.name for file in files] == ["report.0.json", "report.1.json"]
        merge = [sys.executable, "-m", "d2lpar", "merge", *files]
        said = subprocess.run(merge, capture_output=True, text=True, check=True).stderr
        assert "--- Process 0" in said
        assert "--- Process 1" in said


def test_a_slurm_without_its_programs_says_what_to_install(tmp_path):
    (tmp_path / "munged").write_text("#!/bin/sh\n")
    (tmp_path / "munged").chmod(0o755)
    script = (CLUSTER / "one-node-slurm").read_text().replace("PATH=$PATH:/usr/sbin", "")
    shell = {"input": script, "env": {"PATH": str(tmp_path)}, "capture_output": True, "text": True}
    refused = subprocess.run(["/bin/sh", "-s", "start"], **shell)
    assert refused.returncode == 2
    assert "slurmctld is not installed (Debian: apt-get install munge slurm-wlm)" in refused.stderr


def test_the_manifest_has_what_jax_looks_for():
    # As jax/_src/clusters/k8s_cluster.py reads it. That it runs has not been tried; it says so.
    text = (CLUSTER / "job.yaml").read_text()
    service, account, role, binding, job = yaml.safe_load_all(text)
    pods = job["spec"]["template"]["spec"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert pods["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert str(service["spec"]["clusterIP"]) == "None"
    assert pods["serviceAccountName"] == account["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account["metadata"]["name"]]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    allowed = {what: rule["verbs"] for rule in role["rules"] for what in rule["resources"]}
    assert allowed == {"pods": ["list"], "services": ["list"], "jobs": ["get"]}
    assert "it has not run on a cluster" in text


def test_the_script_of_a_batch_job_starts_the_worker_on_each_node():
    *_, command = (CLUSTER / "job.sbatch").read_text().splitlines()
    assert command == "srun python worker.py"
