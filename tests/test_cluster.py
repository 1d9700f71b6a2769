"""The files for a cluster: one script, started in as many ways as there are here."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
import yaml
from run_notebook import ROOT

from d2lpar import num_gpus

CLUSTER = ROOT / "book" / "cluster"
SCRIPT = str(CLUSTER / "train.py")
SLURM = ["sh", str(CLUSTER / "one-node-slurm")]
# mpirun refuses to run as root, or more processes than cores, unless it is told to.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
RUN = [sys.executable, "-m", "d2lpar", "run", "--timeout", "100"]
# Far more than there is time for: it goes on until it gets a signal.
WITHOUT_END = ["--steps", "1000000", "--save-every", "30"]
CPU = {"JAX_PLATFORMS": "cpu"}


def train(launcher, folder, *options, **environment):
    """Run the script, and return what it says if all is well."""
    done = subprocess.run(
        [*launcher, SCRIPT, folder, *options],
        env=os.environ | CPU | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train_and_signal(count, folder, sign):
    """Train in so many processes, send number 1 a signal, and return the status and the output."""
    command = [*RUN, "-n", str(count), SCRIPT, folder, *WITHOUT_END]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=os.environ | CPU, **pipe) as running:
        said = ""
        for line in running.stdout:
            said += line
            if len(losses(said)) == 2:  # The first of the two checkpoints is whole by now.
                break
        else:
            pytest.fail(said)
        (target,) = (
            process
            for process in psutil.Process(running.pid).children(recursive=True)
            if process.environ().get("D2LPAR_PROCESS") == "1"
        )
        target.send_signal(sign)
        said += running.stdout.read()
    return running.returncode, said


def losses(said):
    """Return the loss after each step that was told."""
    return {int(n): float(loss) for n, loss in re.findall(r"step (\d+), loss (\S+)", said)}


def last_checkpoint(folder):
    return max(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process without a launcher finds."""
    said = train([sys.executable], tmp_path_factory.mktemp("alone"), "--alone")
    assert "0/1 step 20, loss" in said
    assert losses(said)[20] < losses(said)[5] / 2
    return pytest.approx(losses(said), abs=1e-5)


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


def test_it_is_preempted_and_killed_and_goes_on_in_fewer_processes(tmp_path):
    folder = tmp_path / "checkpoints"
    status, in_four = train_and_signal(4, folder, signal.SIGTERM)
    assert status != 0
    assert "{'data': 2, 'model': 2}, from step 0 on" in in_four
    assert "ended with the exit status 200" in in_four
    for rank in range(4):  # Also those that got no signal.
        assert f"{rank}/4 saved after SIGTERM" in in_four
    saved = last_checkpoint(folder)
    assert saved == max(losses(in_four))

    status, in_two = train_and_signal(2, folder, signal.SIGKILL)
    assert status != 0
    assert f"{{'data': 1, 'model': 2}}, from step {saved} on" in in_two
    assert "Process 1 has died: SIGKILL" in in_two
    saved = last_checkpoint(folder)

    to_the_end = partial(train, [sys.executable])
    options = ["--alone", "--steps", str(saved + 5), "--save-every", "30"]
    with ThreadPoolExecutor() as pool:
        anew = pool.submit(to_the_end, tmp_path / "anew", *options)
        in_one, once_more = (to_the_end(folder, *options) for _ in range(2))
        undisturbed = anew.result()
    assert f"{{'data': 1, 'model': 1}}, from step {saved} on" in in_one
    expected = losses(undisturbed)
    for said in (in_four, in_two, in_one):
        found = {step: loss for step, loss in losses(said).items() if step in expected}
        assert found
        assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-5)
    assert [*losses(in_one)][-1] == saved + 5
    assert losses(once_more) == {}  # Nothing is left to do.


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no Open MPI: apt-get install openmpi-bin")
def test_mpirun_runs_it(alone, tmp_path):
    said = train([*MPIRUN, "-n", "4", sys.executable], tmp_path)
    assert "0/4 {'data': 2, 'model': 2}" in said
    assert losses(said) == alone


@pytest.mark.skipif(num_gpus() < 2, reason="takes two GPUs")
def test_it_runs_over_two_gpus(alone, tmp_path):
    said = train([*RUN, "-n", "2", "--gpus"], tmp_path, JAX_PLATFORMS="")
    assert "0/2 {'data': 1, 'model': 2}" in said
    assert losses(said) == alone


def test_slurm_runs_it(alone, slurm, tmp_path):
    said = train(["srun", "-n", "4", sys.executable], tmp_path, **slurm)
    assert "0/4 {'data': 2, 'model': 2}" in said
    assert losses(said) == alone


def test_a_batch_job_saves_after_sigterm_and_is_requeued(slurm, tmp_path):
    for name in ("train.py", "job.sbatch"):
        shutil.copy(CLUSTER / name, tmp_path)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = {"cwd": tmp_path, "env": os.environ | CPU | slurm | path, "text": True}

    def do(*command):
        return subprocess.check_output(command, timeout=60, **options).strip()

    # Four processes of one node, where it asks for one of each of two nodes.
    resources = ("--nodes=1", "--ntasks-per-node=4")
    job = do("sbatch", "--parsable", *resources, "job.sbatch", *WITHOUT_END)
    said = tmp_path / f"train-{job}.out"

    def until(pattern, look):
        end = time.monotonic() + 60
        while not re.search(pattern, seen := look()):
            assert time.monotonic() < end, f"not {pattern!r} but {seen}"
            time.sleep(0.1)

    def output():
        return said.read_text() if said.exists() else ""

    def state():
        return do("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")

    until("0/4 step 60, loss", output)
    do("scancel", "--signal=TERM", job)
    until("PENDING", state)
    assert "saved after SIGTERM" in output()
    assert "Restarts=1 " in do("scontrol", "show", "job", job)
    do("scancel", job)  # Slurm would have it wait for two minutes or more.
    until("CANCELLED", state)

    folder = tmp_path / "checkpoints"
    saved = last_checkpoint(folder)
    srun = ["srun", "-n", "2", sys.executable]
    assert f"from step {saved} on" in train(srun, folder, "--steps", str(saved + 1), **slurm)


def test_each_process_is_watched_into_a_file_of_its_own_and_the_files_are_compared(slurm, tmp_path):
    if not shutil.which("mpirun"):
        pytest.skip("no Open MPI: apt-get install openmpi-bin")
    for launcher in (MPIRUN, ["srun"]):
        report = tmp_path / launcher[0] / "report.json"
        report.parent.mkdir()
        watch = (sys.executable, "-m", "d2lpar", "watch", "--json", str(report))
        said = train([*launcher, "-n", "2", *watch], tmp_path / launcher[0] / "saved", **slurm)
        assert "0/2 step 20, loss" in said
        files = sorted(report.parent.glob("*.json"))
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
    (container,) = pods["containers"]
    assert container["command"][:2] == ["python", "/train.py"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == {volume["name"] for volume in pods["volumes"]}
    assert mounted["checkpoints"] == container["command"][2]


def test_the_manifest_lets_all_pods_begin_again():
    *_, job = yaml.safe_load_all((CLUSTER / "job.yaml").read_text())
    assert job["spec"]["backoffLimit"] >= job["spec"]["completions"]
    # Kubernetes refuses a podFailurePolicy with any other.
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["Ignore", "Ignore"]
    assert rules[1]["onExitCodes"]["values"] == [200]


@pytest.mark.parametrize(
    ("statuses", "again"),
    [
        ([0], False),
        ([200] * 9, True),
        ([1], True),
        ([1, 137, 1], True),
        ([1, 137, 1, 1], False),
        ([1, 137, 1, 200, 1, 1, 1], True),
        ([1, 200, 1, 137, 1, 1], False),
    ],
)
def test_a_batch_job_begins_again_unless_it_fails_four_times_in_a_row(statuses, again, tmp_path):
    for restarts, status in enumerate(statuses):
        requeued = end_batch_job(status, str(restarts or ""), tmp_path)
    assert requeued == again


def end_batch_job(status, restarts, folder):
    """End what a batch job runs with a status, and return whether it is requeued."""
    programs = {"srun": f'echo "srun $@"; exit {status}', "scontrol": 'echo "scontrol $@"'}
    for name, program in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts}
    done = subprocess.run(
        ["/bin/sh", CLUSTER / "job.sbatch", "--steps", "9"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == status
    started, *requeued = done.stdout.splitlines()
    assert started == "srun --kill-on-bad-exit=1 python train.py checkpoints --steps 9"
    assert requeued in ([], ["scontrol requeue 7"])
    return bool(requeued)


def test_the_chapter_shows_the_files_as_they_are():
    page = (ROOT / "book" / "beyond-one-machine.md").read_text()
    _, _, section = page.partition("\n## From Two Processes to Sixteen GPUs\n")
    section, _, _ = section.partition("\n## ")
    files = {"python": "train.py", "sh": "job.sbatch"}
    for language, count in (("python", 6), ("sh", 1)):
        shown = re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        assert len(shown) >= count
        text = (CLUSTER / files[language]).read_text()
        for code in shown:
            assert any(textwrap.indent(code, depth * " ") in text for depth in (0, 4, 8)), code
            assert all(len(line) <= 78 for line in code.splitlines())
