"""What machines have measured for the claims of the book, for readers whose machine cannot.

Beside this file lie those that `make record` writes, one for each machine. They are part of the
package, since a notebook that Colab opens has no repository beside it.
"""

import functools
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from d2lpar._measure.quantity import Quantity
from d2lpar._plain.format import plural

FOLDER = Path(__file__).parent
"""Where the files lie."""

PAGE = "https://d2lpar.github.io/d2lpar/book/evidence.html#every-claim-on-every-machine"
"""The page that shows them beside each other."""


ON_CPU_DEVICES = (
    "book/automatic-parallelism",
    "book/beyond-one-machine",
    *(f"book/solutions/{name}" for name in ("asynchronous-computation", "automatic-parallelism")),
)
"""Pages that use CPU devices on every machine, but for claims with `gpu` in their key."""


class Recorded(NamedTuple):
    """A claim as one machine has recorded it.

    Attributes:
        machine: What it is, in words, such as `"an H200"`.
        has_gpu: Whether JAX sees anything but CPUs there.
        jax: The version of JAX.
        claim: The claim, as `Claim.as_dict` describes it.
    """

    machine: str
    has_gpu: bool
    jax: str
    claim: Mapping[str, Any]


def claims_recorded(key: str) -> tuple[Recorded, ...]:
    """Return what machines have recorded of the claim with this key, the newest first."""
    return _by_key(FOLDER).get(key, ()) if key else ()


def recorded_on_gpu(experiment: str) -> tuple[str, dict[str, dict[str, Quantity]]]:
    """Return what the newest machine with a GPU has recorded of an experiment.

    Returns:
        The machine in words, and for each variant of the experiment its quantities by name.
    """
    results = next(found for found in _files(FOLDER) if has_gpu(found["machine"]["devices"]))
    machine = results["machine"]
    rows = {
        run["variant"]: {row: Quantity(**quantity) for row, quantity in run["rows"].items()}
        for page in results["pages"].values()
        for run in page["experiments"]
        if run["experiment"] == experiment
    }
    return machine_in_words(machine["devices"], machine["cores"]), rows


@functools.cache  # A page has many claims, and reading the files takes longer than showing one.
def _files(folder: Path) -> list[dict[str, Any]]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(files, key=lambda results: results["date"], reverse=True)


@functools.cache
def _by_key(folder: Path) -> dict[str, tuple[Recorded, ...]]:
    found = defaultdict(list)
    for results in _files(folder):
        for name, page in results["pages"].items():
            for claim in page["claims"]:
                if key := claim.get("key"):  # Older files have none.
                    devices, cores = results["machine"]["devices"], results["machine"]["cores"]
                    if name in ON_CPU_DEVICES and "gpu" not in key.split("-"):
                        devices = "1 x cpu"
                    about = machine_in_words(devices, cores), has_gpu(devices)
                    found[key].append(Recorded(*about, results["versions"]["jax"], claim))
    return {key: tuple(records) for key, records in found.items()}


def has_gpu(devices: str) -> bool:
    """Say whether there is anything but CPUs among the devices of a machine.

    Example:
        >>> has_gpu("1 x cpu"), has_gpu("1 x cpu, 1 x NVIDIA H200")
        (False, True)
    """
    return bool(_gpus(devices))


def machine_in_words(devices: str, cores: int) -> str:
    """Return what to call a machine in a sentence: by its GPUs, if it has any.

    Example:
        >>> machine_in_words("1 x cpu, 1 x NVIDIA H200", cores=16)
        'an H200'
        >>> machine_in_words("1 x cpu, 4 x NVIDIA L4", cores=48)
        '4 x L4'
        >>> machine_in_words("2 x cpu", cores=1)
        'a CPU with 1 core'
    """
    gpus = _gpus(devices)
    if not gpus:
        return f"a CPU with {plural(cores, 'core')}"
    if len(gpus) > 1 or not gpus[0].startswith("1 x "):
        return " and ".join(gpus)
    name = gpus[0].removeprefix("1 x ")
    # A letter before a capital or a digit is spelled: an "aitch" two hundred.
    spelled = re.match(r"[AEIOU]|[FHLMNRSX](?=[A-Z\d])", name)
    return f"{'an' if spelled else 'a'} {name}"


def _gpus(devices: str) -> list[str]:
    kinds = [kind for kind in devices.split(", ") if not kind.endswith(" x cpu")]
    return [kind.replace(" x NVIDIA ", " x ") for kind in kinds]
