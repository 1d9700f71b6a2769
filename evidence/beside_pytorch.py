"""Run D2L's experiments in PyTorch and in JAX, and write what the page beside-pytorch.md shows.

PyTorch is no dependency of the book, and comes in an environment of its own, with the same Python:

    python3.11 -m venv ../torch && ../torch/bin/pip install torch numpy
    .venv/3.11/bin/python evidence/beside_pytorch.py ../torch/bin/python

That takes some four minutes on two cores. Leave the machine alone meanwhile. Each framework has a
process of its own, in turn (PyTorch, JAX), three times. Where JAX and PyTorch both find a GPU, they
run there, and the experiments that need one run as well; name another file then. (This part has
been tried only with the CPU in the GPU's place: the numbers of `h200.json` are from earlier
programs, and these are a rewrite.)
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path

from conditions import this_run
from run_notebook import ROOT

from d2lpar._plain.format import write_whole

HERE = ROOT / "evidence"
ROUNDS = 3


def in_turn(programs, run, rounds=ROUNDS):
    """Run each program in each round; return the last reports, and the medians of all rounds.

    Args:
        programs: An argument for `run`, by the name of the framework.
        run: Returns the report that a program has printed, as a dictionary.
        rounds: How often.
    """
    reports, medians = {}, {name: {} for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            reports[name] = run(program)
            for work, seconds in reports[name]["seconds"].items():
                medians[name].setdefault(work, []).append(float(f"{seconds:.4g}"))
    return reports, medians


def report_of(command):
    """Return the report that a program prints in its last line, as JSON."""
    print(*command, flush=True)
    return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("torch", help="a Python that has PyTorch")
    parser.add_argument("file", nargs="?", type=Path, default=HERE / "two-cores.json")
    arguments = parser.parse_args()
    programs = {
        "PyTorch": [arguments.torch, str(HERE / "peer_torch.py")],
        "JAX": [sys.executable, str(HERE / "peer_jax.py")],
    }
    reports, medians = in_turn(programs, report_of)
    run = this_run()
    machine = run["machine"]
    gpu = "" if machine["devices"].endswith("cpu") else f"{machine['devices']}, "
    data = {
        "about": f"Seconds, D2L's sizes. Each list has the medians of {ROUNDS} processes.",
        "machine": f"{gpu}{machine['processor']} with {machine['cores']} cores",
        "date": run["date"].partition("T")[0],
        "versions": {name: report["version"] for name, report in reports.items()}
        | {"Python": platform.python_version()},
        "training steps": reports["JAX"]["training steps"],
        "seconds": medians,
    }
    write_whole(arguments.file, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
