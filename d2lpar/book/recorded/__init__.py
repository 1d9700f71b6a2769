"""Recorded measurements of the claims, for readers whose own machine cannot test them.

This folder holds the files that `make record` writes, one for each machine. The files are part of
the package because a notebook on Colab has the package and no repository.
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
"""The folder with the recorded files."""

MIME_TYPE = "application/vnd.d2lpar.experiment+json"
"""The MIME type, among a notebook's outputs, of times that a GPU records for other machines."""

PAGE = "https://d2lpar.github.io/d2lpar/book/evidence.html#every-claim-on-every-machine"
"""The page that compares all recorded claims."""


ON_CPU_DEVICES = (
    "book/automatic-parallelism",
    "book/beyond-one-machine",
    *(f"book/solutions/{name}" for name in ("asynchronous-computation", "automatic-parallelism")),
)
"""Pages that compute on CPU devices on every machine, except in claims with `gpu` in their key."""


class Recorded(NamedTuple):
    """A claim as one machine has recorded it.

    Attributes:
        machine: The machine in words, such as `"an H200"`.
        has_gpu: Whether the machine computed the claim with a GPU.
        jax: The version of JAX.
        claim: The claim, as `Claim.as_dict` describes it.
    """

    machine: str
    has_gpu: bool
    jax: str
    claim: Mapping[str, Any]


def claims_recorded(key: str) -> tuple[Recorded, ...]:
    """Return the records of the claim with this key, newest first."""
    return _by_key(FOLDER).get(key, ()) if key else ()


class KeptTime(NamedTuple):
    """A time that readers do not see in a notebook, and that `make record` keeps."""

    way: str
    at_once: Quantity

    def _repr_mimebundle_(self, include=None, exclude=None):
        rows = {"at once": self.at_once.as_dict()}
        return {MIME_TYPE: {"experiment": "P6", "variant": self.way, "rows": rows}}


def times_on_gpu() -> tuple[str, dict[str, Quantity]]:
    """Return the newest machine with a GPU, in words, and the times that it has kept, by way."""
    results = next(file for file in _files(FOLDER) if has_gpu(file["machine"]["devices"]))
    machine = results["machine"]
    times = {
        run["variant"]: Quantity(**run["rows"]["at once"])
        for page in results["pages"].values()
        for run in page["experiments"]
        if run["experiment"] == "P6"
    }
    return machine_in_words(machine["devices"], machine["cores"]), times


@functools.cache  # Reading the files takes longer than showing a claim, and a page has many.
def _files(folder: Path) -> list[dict[str, Any]]:
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return sorted(files, key=lambda results: results["date"], reverse=True)


@functools.cache
def _by_key(folder: Path) -> dict[str, tuple[Recorded, ...]]:
    by_key = defaultdict(list)
    for results in _files(folder):
        for name, page in results["pages"].items():
            for claim in page["claims"]:
                devices, cores = results["machine"]["devices"], results["machine"]["cores"]
                if name in ON_CPU_DEVICES and "gpu" not in claim["key"].split("-"):
                    devices = "1 x cpu"
                machine = machine_in_words(devices, cores)
                jax = results["versions"]["jax"]
                by_key[claim["key"]].append(Recorded(machine, has_gpu(devices), jax, claim))
    return {key: tuple(records) for key, records in by_key.items()}


def has_gpu(devices: str) -> bool:
    """Return whether a machine has any device other than CPUs.

    Example:
        >>> has_gpu("1 x cpu"), has_gpu("1 x cpu, 1 x NVIDIA H200")
        (False, True)
    """
    return bool(_gpus(devices))


def machine_in_words(devices: str, cores: int) -> str:
    """Return a machine's name for a sentence: its GPUs, or its number of cores.

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
    # A name such as H200 is spelled, so it begins with the sound of its letter: "aitch".
    spelled = re.match(r"[AEIOU]|[FHLMNRSX](?=[A-Z\d])", name)
    return f"{'an' if spelled else 'a'} {name}"


def _gpus(devices: str) -> list[str]:
    kinds = [kind for kind in devices.split(", ") if not kind.endswith(" x cpu")]
    return [kind.replace(" x NVIDIA ", " x ") for kind in kinds]
