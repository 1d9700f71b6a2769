"""The files for a cluster: one script, started by every launcher of this machine."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import psutil
import pytest
import yaml
from run_notebook import ROOT

CLUSTER = ROOT / "book" / "cluster"
SCRIPT = str(CLUSTER / "train.py")
SLURM = ["sh", str(CLUSTER / "one-node-slurm")]
# By default, mpirun refuses to run as root, or more processes than cores.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
RUN = [sys.executable, "-m", "d2lpar", "run", "--timeout", "100"]
# Far more steps than a test has time for: training lasts until a signal.
WITHOUT_END = ["--steps", "1000000", "--save-every", "30"]
CPU = {"JAX_PLATFORMS": "cpu"}


def train(launcher, folder, *options, **environment):
    done = subprocess.run(
        [*launcher, SCRIPT, folder, *options],
        env=os.environ | CPU | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train_and_signal(count, folder, sign, after=2):
    """Train in some processes; send number 1 a signal, by default after the first checkpoint."""
    command = [*RUN, "-n", str(count), SCRIPT, folder, *WITHOUT_END]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=os.environ | CPU, **pipe) as running:
        output = ""
        for line in running.stdout:
            output += line
            if ", from step" in output and len(losses(output)) == after:
                break
        else:
            pytest.fail(output)
        started = psutil.Process(running.pid).children(recursive=True)
        (target,) = (p for p in started if p.environ().get("D2LPAR_PROCESS") == "1")
        target.send_signal(sign)
        output += running.stdout.read()
    return running.returncode, output


def losses(output):
    return {int(n): float(loss) for n, loss in re.findall(r"step (\d+), loss (\S+)", output)}


def last_checkpoint(folder):
    return max(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    output = train([sys.executable], tmp_path_factory.mktemp("alone"), "--alone")
    assert "0/1 step 20, loss" in output
    assert losses(output)[20] < losses(output)[5] / 2
    return pytest.approx(losses(output), abs=1e-5)


@pytest.fixture
def slurm():
    """The environment of a Slurm of one node, which is stopped afterwards."""
    begun = subprocess.run([*SLURM, "start"], capture_output=True, text=True, timeout=60)
    if begun.returncode == 2:
        assert "is not installed (Debian: apt-get install munge slurm-wlm)" in begun.stderr
        pytest.skip(begun.stderr)
    assert begun.returncode == 0, begun.stderr
    configuration = Path(begun.stdout.split("=")[1].strip())
    yield {"SLURM_CONF": str(configuration)}
    subprocess.run([*SLURM, "stop", configuration.parent], check=True, timeout=60)
    assert not configuration.parent.exists()
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    assert not [words for words in commands if str(configuration.parent) in " ".join(words)]


def test_rows_that_the_devices_do_not_divide_are_an_error_and_no_shorter_minibatch(tmp_path):
    six = {"XLA_FLAGS": "--xla_force_host_platform_device_count=6"}
    command = [sys.executable, SCRIPT, tmp_path, "--alone"]
    done = subprocess.run(command, env=os.environ | CPU | six, capture_output=True, text=True)
    assert done.returncode == 1
    assert "partitioned 3 times, but the dimension size is 64" in done.stderr


def test_it_is_preempted_and_killed_and_goes_on_in_fewer_processes(tmp_path):
    folder = tmp_path / "checkpoints"
    status, in_four = train_and_signal(4, folder, signal.SIGTERM)
    assert status == 200
    assert "{'data': 2, 'model': 2}, from step 0 on, cpu" in in_four
    assert "ended with the exit status 200" in in_four
    for rank in range(4):  # Only number 1 got the signal.
        assert f"{rank}/4 saved after SIGTERM" in in_four
    saved = last_checkpoint(folder)
    assert saved == max(losses(in_four))

    status, at_once = train_and_signal(4, folder, signal.SIGTERM, after=0)  # Before a step.
    assert status == 200
    saved = last_checkpoint(folder)
    assert saved == max(losses(at_once))

    status, in_two = train_and_signal(2, folder, signal.SIGKILL)
    assert status == 128 + signal.SIGKILL
    assert f"{{'data': 1, 'model': 2}}, from step {saved} on, cpu" in in_two
    assert "Process 1 has died: SIGKILL" in in_two
    saved = last_checkpoint(folder)

    options = ["--alone", "--steps", str(saved + 5), "--save-every", "30"]
    folders = (folder, folder, tmp_path / "anew")
    in_one, once_more, undisturbed = (train([sys.executable], f, *options) for f in folders)
    assert f"{{'data': 1, 'model': 1}}, from step {saved} on, cpu" in in_one
    expected = losses(undisturbed)
    for output in (in_four, in_two, in_one):
        common = losses(output).keys() & expected.keys()
        assert common
        for step in common:
            assert losses(output)[step] == pytest.approx(expected[step], abs=1e-5)
    assert [*losses(in_one)][-1] == saved + 5
    assert losses(once_more) == {}  # Nothing is left to do.


def test_a_bucket_is_an_error_and_no_folder_here(tmp_path):
    command = [sys.executable, SCRIPT, "gs://bucket/run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "gs:/bucket/run is an address" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_after_a_restart_with_larger_minibatches_the_rest_of_an_epoch_may_be_too_short(run_python):
    program = f"""if True:
        import sys
        sys.path.insert(0, {str(CLUSTER)!r})
        import jax, train
        train.ROWS = 128  # After row 896, 104 examples are left.
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        batch, position = train.minibatch((0, 896), one)
        print(len(batch), position)
    """
    assert run_python(program, **CPU) == "128 (1, 128)"


def test_it_trains_on_two_machines_whose_devices_jax_itself_does_not_arrange(alone, tmp_path):
    # JAX tells machines by the file boot_id. One process gets uuid there, which is always new.
    mount = 'cd /proc/sys/kernel/random && mount --bind uuid boot_id && cd - && exec "$@"'
    another = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*another, "true"]).returncode:
        pytest.skip("this user may not mount a file for a single process")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    program = f"""if True:
        import runpy, sys, jax
        jax.distributed.initialize({address!r}, 2, int(sys.argv.pop(1)))
        jax.distributed.initialize = lambda **options: None
        try:
            print(jax.make_mesh((4,), ("data",)).shape)
        except ValueError as error:
            print(error)
        runpy.run_path(sys.argv.pop(1), run_name="__main__")
    """
    command, two = [sys.executable, "-c", program], {"JAX_NUM_CPU_DEVICES": "2"}
    with subprocess.Popen([*another, *command, "1", SCRIPT, tmp_path], env=os.environ | CPU | two):
        output = train([*command, "0"], tmp_path, **two)
    assert ("does not support multi-slice" in output) == (jax.version.__version_info__ >= (0, 10))
    assert "{'data': 2, 'model': 2}" in output
    assert losses(output) == alone


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no Open MPI: apt-get install openmpi-bin")
def test_mpirun_starts_it(alone, tmp_path):
    output = train([*MPIRUN, "-n", "4", sys.executable], tmp_path)
    assert "0/4 {'data': 2, 'model': 2}" in output
    assert losses(output) == alone


def test_slurm_starts_it_and_a_batch_job_saves_after_sigterm_and_is_requeued(
    alone, slurm, tmp_path
):
    # The second time, each of two tasks stands for a node with four devices.
    for tasks, devices, data in ((4, 1, 2), (2, 4, 4)):
        launcher = ["srun", f"-n{tasks}", f"-c{4 // tasks}", sys.executable]
        environment = slurm | {"JAX_NUM_CPU_DEVICES": str(devices)}
        started = train(launcher, tmp_path / f"{tasks} tasks", **environment)
        assert f"0/{tasks} {{'data': {data}, 'model': 2}}" in started
        assert losses(started) == alone

    for name in ("train.py", "job.sbatch"):
        shutil.copy(CLUSTER / name, tmp_path)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    options = {"cwd": tmp_path, "env": os.environ | CPU | environment | path, "text": True}

    def do(*command):
        return subprocess.check_output(command, timeout=60, **options).strip()

    def wait_for(pattern, read):
        end = time.monotonic() + 60
        while not re.search(pattern, text := read()):
            assert time.monotonic() < end, f"not {pattern!r} but {text}"
            time.sleep(0.1)

    # Two processes on this node, where the script asks for one on each of two nodes.
    resources = ("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=2")
    job = do("sbatch", "--parsable", *resources, "job.sbatch", *WITHOUT_END)
    log = tmp_path / f"train-{job}.out"
    wait_for("0: .* 0/2 step 60, loss", lambda: log.read_text() if log.exists() else "")
    do("scancel", "--signal=TERM", job)
    wait_for("JobState=PENDING", lambda: do("scontrol", "show", "job", job))
    assert "saved after SIGTERM" in log.read_text()
    assert "Restarts=1 " in do("scontrol", "show", "job", job)


def test_the_manifest_fits_the_script():
    service, account, _, _, job = yaml.safe_load_all((CLUSTER / "job.yaml").read_text())
    spec, pods = job["spec"], job["spec"]["template"]["spec"]
    # jax/_src/clusters/k8s_cluster.py reads these fields.
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    assert pods["subdomain"] == service["metadata"]["name"]
    assert pods["serviceAccountName"] == account["metadata"]["name"]
    (wait,) = pods["initContainers"]
    first = f"{job['metadata']['name']}-0.{pods['subdomain']}"  # The name that JAX looks up.
    assert f"getent hosts {first};" in wait["command"][-1]
    (container,) = pods["containers"]
    folders = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(Path(container["command"][2]).parent) in folders
    assert str(Path(container["env"][0]["value"]).parent) in folders  # The compiled programs.
    # Kubernetes refuses a podFailurePolicy with any other restartPolicy.
    assert pods["restartPolicy"] == "Never"
    (saved,) = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    assert f"SAVED = {saved} " in (CLUSTER / "train.py").read_text()


@pytest.mark.parametrize(
    ("ends", "again"),  # Each start ends with a status, and leaves this checkpoint as the newest.
    [
        ([(0, 9)], False),
        ([(200, 1)] * 9, True),
        ([(2, "")] * 3, True),
        ([(2, "")] * 4, False),
        ([(1, 9), (137, 9), (200, 9), (1, 9)], True),
        ([(1, 9), (137, 9), (200, 9), (1, 9), (1, 9)], False),
        ([(1, 9), (1, 10), (1, 20), (1, 100), (1, 200)], True),
    ],
)
def test_a_batch_job_begins_again_unless_it_fails_four_times_without_a_new_checkpoint(
    ends, again, tmp_path
):
    for name, last in (("srun", 'mkdir -p "checkpoints/$STEP"; exit $STATUS'), ("scontrol", "")):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "{name} $@, $SRUN_CPUS_PER_TASK CPUs"\n{last}\n'
        )
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    path |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    (tmp_path / "checkpoints" / "1000.orbax-checkpoint-tmp").mkdir(parents=True)  # Unfinished.
    for restarts, (status, step) in enumerate(ends):
        run = {"SLURM_RESTART_COUNT": str(restarts or ""), "STATUS": str(status), "STEP": str(step)}
        done = subprocess.run(
            ["bash", CLUSTER / "job.sbatch", "--steps", "9"],
            env=path | run,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status
    started = "srun --label --kill-on-bad-exit=1 python train.py checkpoints --steps 9, 8 CPUs\n"
    assert done.stdout == started + "scontrol requeue 7, 8 CPUs\n" * again


def test_the_page_shows_the_files_as_they_are():
    page = (ROOT / "book" / "on-a-cluster.md").read_text()
    files = {"python": "train.py", "sh": "job.sbatch"}
    for language, count in (("python", 6), ("sh", 1)):
        shown = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        assert len(shown) >= count
        text = (CLUSTER / files[language]).read_text()
        for code in shown:
            assert any(textwrap.indent(code, depth * " ") in text for depth in (0, 4, 8)), code
            assert all(len(line) <= 78 for line in code.splitlines())
