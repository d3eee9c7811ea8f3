"""Run verbs programs on Adverb's software NIC, without RDMA hardware.

``environment`` returns the environment of such programs for ``subprocess``. The package also has the command ``adverb``
and a plugin for pytest, ``pytest --adverb``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Dict, Mapping, Optional, Union

__all__ = ["Error", "command", "environment", "libraries"]


class Error(RuntimeError):
    """A failed operation of this package."""


def command() -> Path:
    """Returns the path of the command ``adverb``."""
    installed = _installed("adverb")
    if installed is not None:
        return installed
    found = shutil.which("adverb")
    if found is None:
        raise Error("the command adverb is not installed: run `pip install --force-reinstall adverb`")
    return Path(found)


def libraries() -> Path:
    """Returns the directory with Adverb's libibverbs.so.1 and librdmacm.so.1.

    As for the command, the environment variable ``ADVERB_LIBRARIES`` can name another directory.
    """
    named = os.environ.get("ADVERB_LIBRARIES")
    if named and Path(named, "libibverbs.so.1").is_file():
        return Path(named)
    installed = _installed("libibverbs.so.1")
    if installed is None:
        raise Error("the libraries are not installed: run `pip install --force-reinstall adverb`")
    return installed.parent


def environment(
    *,
    device: Optional[str] = None,
    loss: Optional[float] = None,
    reorder: Optional[float] = None,
    duplicate: Optional[float] = None,
    corrupt: Optional[float] = None,
    delay: Optional[float] = None,
    seed: Optional[int] = None,
    trace: Union[str, "os.PathLike[str]", None] = None,
    base: Optional[Mapping[str, str]] = None,
) -> Dict[str, str]:
    """Returns an environment in which programs use the software NIC::

        subprocess.run(["ib_send_bw", "-d", "adverb0", "-x", "0"], env=adverb.environment(loss=1, seed=7))

    The arguments are the options of ``adverb run``: percentages of packets, ``delay`` in milliseconds, the seed of these
    faults, the address of the device (``"soft:192.0.2.7"``), and the file of a recording. The result contains all
    variables of ``base``, by default those of this process.

    Raises ``Error`` if an argument is invalid or the libraries are missing.
    """
    given = {
        "device": device,
        "loss": loss,
        "reorder": reorder,
        "duplicate": duplicate,
        "corrupt": corrupt,
        "delay": delay,
        "seed": seed,
        "trace": None if trace is None else os.fspath(trace),
    }
    variables = dict(os.environ if base is None else base)
    words = [str(command()), "run", "--print-env", "--format", "json"]
    words += [f"--{name}={value}" for name, value in given.items() if value is not None]
    result = subprocess.run(words, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        raise Error(f"`adverb run --print-env` failed: {result.stderr.strip()}")
    variables.update(json.loads(result.stdout)["variables"])
    return variables


def _installed(name: str) -> Optional[Path]:
    """Returns the path of a file that pip installed outside of the package, such as the command."""
    try:
        files = metadata.distribution("adverb").files or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == name:
            path = Path(os.path.normpath(file.locate()))
            if path.is_file():
                return path
    return None
