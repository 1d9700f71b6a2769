"""Run D2L's experiments in PyTorch and in JAX, and write what the page beside-pytorch.md shows.

PyTorch is no dependency of the book, and comes in an environment of its own, with the same Python:

    python3.11 -m venv ../torch && ../torch/bin/pip install torch numpy
    .venv/3.11/bin/python evidence/beside_pytorch.py ../torch/bin/python

That takes some four minutes on two cores. Leave the machine alone meanwhile. Each framework has a
process of its own, in turn (PyTorch, JAX), three times. Where JAX and PyTorch both find a GPU, they
run there, and what takes one runs as well; name another file then. (This part has been tried only
with the CPU in the GPU's place: the numbers of `h200.json` are from the programs that these were
written anew from.)
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
    """Run each of some programs in each round; return the last answers, and all medians.

    Args:
        programs: What `run` takes, by the name of the framework.
        run: Returns what a program has printed, as a dictionary.
        rounds: How often.
    """
    answers, medians = {}, {name: {} for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            answers[name] = run(program)
            for work, seconds in answers[name]["seconds"].items():
                medians[name].setdefault(work, []).append(float(f"{seconds:.4g}"))
    return answers, medians


def answer_of(command):
    """Return what a program prints in its last line, read as JSON."""
    print(*command, flush=True)
    return json.loads(subprocess.check_output(command, text=True).splitlines()[-1])


def main():
    """Measure both, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("torch", help="a Python that has PyTorch")
    parser.add_argument("file", nargs="?", type=Path, default=HERE / "two-cores.json")
    parser.add_argument("--steps", default="", help="of training, fewer than 50 for a trial")
    asked = parser.parse_args()
    pythons = {"PyTorch": (asked.torch, "peer_torch.py"), "JAX": (sys.executable, "peer_jax.py")}
    commands = {
        name: [python, str(HERE / program), *filter(None, [asked.steps])]
        for name, (python, program) in pythons.items()
    }
    answers, medians = in_turn(commands, answer_of)
    run = this_run()
    machine = run["machine"]
    gpu = "" if machine["devices"].endswith("cpu") else f"{machine['devices']}, "
    found = {
        "about": f"Seconds, D2L's sizes. Each list has the medians of {ROUNDS} processes.",
        "machine": f"{gpu}{machine['processor']} with {machine['cores']} cores",
        "date": run["date"].partition("T")[0],
        "versions": {name: answer["version"] for name, answer in answers.items()}
        | {"Python": platform.python_version()},
        "training steps": answers["JAX"]["training steps"],
        "seconds": medians,
    }
    write_whole(asked.file, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
