"""A plugin for pytest: ``pytest --adverb`` runs the tests on Adverb's software NIC.

The plugin starts pytest again under ``adverb run``, once, before it loads tests. The libraries of a running process can't
be replaced, so this covers a libibverbs in the process of pytest, and all processes that it starts, such as those of
pytest-xdist.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Dict, List, Optional

import pytest

import adverb

#: The environment variable with the options of the ``adverb run`` that started this pytest.
_STARTED = "ADVERB_PYTEST"


def _number(maximum: float):
    def parse(text: str) -> str:
        if not 0 <= float(text) <= maximum:
            raise ValueError(text)
        return text

    parse.__name__ = f"number from 0 to {maximum:g}"
    return parse


def _seed(text: str) -> str:
    if not 0 <= int(text) < 1 << 64:
        raise ValueError(text)
    return text


_seed.__name__ = "unsigned number"

#: The options that are passed to ``adverb run``: name, type, placeholder and help.
_OPTIONS = [
    ("device", str, "NAME", "the device: `soft:` and an address of this machine"),
    ("loss", _number(100), "PERCENT", "the percentage of sent packets that are lost"),
    ("reorder", _number(100), "PERCENT", "the percentage of sent packets that later packets overtake"),
    ("duplicate", _number(100), "PERCENT", "the percentage of sent packets that are sent twice"),
    ("corrupt", _number(100), "PERCENT", "the percentage of sent packets that are corrupted"),
    ("delay", _number(10_000), "MILLISECONDS", "the time by which each sent packet is delayed"),
    ("seed", _seed, "NUMBER", "the seed of these faults, by default 0"),
    ("trace", str, "FILE", "the file of a recording of requests, packets and completions"),
]


def pytest_addoption(parser) -> None:
    group = parser.getgroup("adverb", "Adverb's software NIC")
    group.addoption(
        "--adverb",
        action="store_true",
        help="run the tests under `adverb run`, where programs of libibverbs need no RDMA hardware",
    )
    for name, kind, metavar, text in _OPTIONS:
        group.addoption(f"--adverb-{name}", type=kind, metavar=metavar, help=text)


def _words(options) -> List[str]:
    """Returns the given options in the form of ``adverb run``."""
    values = ((name, getattr(options, f"adverb_{name}", None)) for name, *_ in _OPTIONS)
    return [f"--{name}={value}" for name, value in values if value is not None]


# A wrapper that comes first runs before pytest redirects the standard output.
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config):
    options = early_config.known_args_namespace
    words = _words(options)
    if words and not options.adverb:
        raise pytest.UsageError(f"--adverb-{words[0][2:].split('=')[0]} has no effect without --adverb")
    if options.adverb and os.environ.get(_STARTED) != json.dumps(words):
        _restart(words, early_config.invocation_params.args)
    yield


def _restart(words: List[str], arguments) -> None:
    """Replaces this process by ``adverb run``, which starts the same command line again."""
    if list(arguments) != sys.argv[1:]:
        raise pytest.UsageError(
            "--adverb can't start a program again that calls pytest.main with arguments of its own: "
            "start the program with `adverb run --`, and without --adverb"
        )
    try:
        command = str(adverb.command())
    except adverb.Error as error:
        raise pytest.UsageError(str(error)) from error
    program = [command, "run", *words, "--", sys.executable, *_command_line()[1:]]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command, program, {**os.environ, _STARTED: json.dumps(words)})


def _command_line() -> List[str]:
    """Returns the command line of this process, with the options of Python's interpreter."""
    words = getattr(sys, "orig_argv", None)
    if words is None:
        # Python 3.9 doesn't have it.
        words = [os.fsdecode(word) for word in Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]]
    return list(words)


def pytest_configure(config) -> None:
    if config.getoption("adverb"):
        config.pluginmanager.register(_Reporter(config), "adverb-reporter")


class _Reporter:
    """Adds the seed and the files of recordings to the reports of failed tests."""

    def __init__(self, config) -> None:
        self._options = _words(config.option)
        self._seed = config.getoption("adverb_seed") or "0"
        trace = config.getoption("adverb_trace")
        self._trace = Path(os.path.abspath(trace)) if trace else None
        self._before: Dict[Path, int] = {}

    def pytest_report_header(self) -> str:
        options = " ".join(self._options)
        return f"adverb: on the software NIC, {options or 'without faults'}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._before = self._traces()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        report = (yield).get_result()
        if report.failed:
            report.sections.append(("adverb", self._text()))

    def _text(self) -> str:
        # The option with the default repeats the same faults.
        options = [word for word in self._options if not word.startswith(("--seed=", "--trace="))]
        options.append(f"--seed={self._seed}")
        again = " ".join(word.replace("--", "--adverb-", 1) for word in options)
        lines = [f"seed {self._seed}; to repeat the faults: pytest --adverb {again}"]
        if self._trace is not None:
            before = self._before
            lines += [f"trace {path}" for path, time in self._traces().items() if before.get(path) != time]
            if _has_opened_the_device():
                numbered = self._numbered(str(os.getpid()))
                lines.append(f"trace of this process, written when it exits: {self._trace}, or {numbered} if that exists")
        return "\n".join(lines)

    def _traces(self) -> Dict[Path, int]:
        """Returns the existing recordings, with their times."""
        if self._trace is None:
            return {}
        pattern = self._numbered("*").name
        found = [self._trace, *sorted(self._trace.parent.glob(pattern))]
        return {path: path.stat().st_mtime_ns for path in found if path.is_file()}

    def _numbered(self, number: str) -> Path:
        """Returns the name of the recording of a process after the first one."""
        assert self._trace is not None
        return self._trace.with_name(f"{self._trace.stem}-{number}{self._trace.suffix}")


def _has_opened_the_device() -> bool:
    directory: Optional[str] = os.environ.get("ADVERB_REPORT")
    return directory is not None and Path(directory, str(os.getpid())).exists()
