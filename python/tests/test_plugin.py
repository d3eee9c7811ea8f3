"""``pytest --adverb``, as processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("adverb")

#: Tests that open the device in the process of pytest. Each process that loads conftest.py adds a line to `starts`.
FILES = {
    "conftest.py": """
        import os
        with open(os.environ["STARTS"], "a") as starts:
            starts.write(os.environ.get("PYTEST_XDIST_WORKER", "main") + "\\n")
    """,
    "test_device.py": """
        import os, subprocess, sys
        import devices

        def test_process_finds_the_device():
            assert devices.names() == ["adverb0"]

        def test_child_finds_the_device():
            output = subprocess.check_output([sys.executable, devices.__file__], text=True)
            assert output == "adverb0\\n"
    """,
    "test_failure.py": """
        import subprocess, sys
        import devices

        def test_fails_after_a_child():
            subprocess.check_call([sys.executable, devices.__file__])
            assert False

        def test_fails_after_opening():
            assert devices.names() == []
    """,
}


class Project:
    """A directory with tests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            lines = text.splitlines()[1:]
            indent = len(lines[0]) - len(lines[0].lstrip())
            (root / name).write_text("\n".join(line[indent:] for line in lines))
        self.starts = root / "starts"

    def run(self, *words: str, cwd=None):
        """Runs a command, and returns its result with the lines of `starts`."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ADVERB_", "PYTEST_"))}
        variables.update(STARTS=str(self.starts), PYTHONPATH=str(Path(__file__).parent), PYTHONDONTWRITEBYTECODE="1")
        result = subprocess.run(words, cwd=cwd or self.root, env=variables, capture_output=True, text=True, timeout=300)
        result.starts = self.starts.read_text().split() if self.starts.exists() else []
        return result

    def pytest(self, *arguments: str, cwd=None):
        return self.run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)


@pytest.fixture
def project(tmp_path):
    directory = tmp_path / "project"
    directory.mkdir()
    return Project(directory)


def test_process_and_its_children_use_the_device(project):
    result = project.pytest("--adverb", "--adverb-loss", "1", "--adverb-seed", "7", "test_device.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "adverb: on the software NIC, --loss=1 --seed=7" in result.stdout
    assert result.starts == ["main"], "the files of the project are loaded once"
    assert "adverb: 2 processes opened the device\n" in result.stderr


def test_command_from_another_directory(project, tmp_path):
    command = str(Path(sys.executable).with_name("pytest"))
    result = project.run(command, "--adverb", "-q", str(project.root / "test_device.py"), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (result.starts, "2 processes opened" in result.stderr) == (["main"], True), result.stderr


def test_options_in_the_configuration(project):
    (project.root / "pytest.ini").write_text("[pytest]\naddopts = --adverb --adverb-delay 1\n")
    result = project.pytest("test_device.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "--delay=1" in result.stdout and result.starts == ["main"]


def test_workers_of_xdist_use_the_device(project):
    pytest.importorskip("xdist")
    result = project.pytest("--adverb", "-p", "xdist", "-n", "2", "--adverb-loss", "1", "test_device.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert sorted(result.starts) == ["gw0", "gw1", "main"]
    assert "opened the device\n" in result.stderr, "each process has a report"


def test_failure_shows_the_seed_and_the_recordings(project):
    result = project.pytest("--adverb", "--adverb-seed", "7", "--adverb-trace", "t.jsonl", "test_failure.py")
    assert result.returncode == 1, result.stdout + result.stderr
    trace = project.root / "t.jsonl"
    first, second = result.stdout.split("- adverb -")[1:]
    assert "seed 7; to repeat the faults: pytest --adverb --adverb-seed=7\n" in first
    assert f"trace {trace}\n" in first
    # The child was the first process that exited, so this process has another name.
    assert f"trace {trace}\n" not in second
    (other,) = project.root.glob("t-*.jsonl")
    assert f"trace of this process, written when it exits: {trace}, or {other} if that exists" in second
    assert trace.stat().st_size > 0 and other.stat().st_size > 0


def test_without_the_option_nothing_changes(project):
    result = project.pytest("test_failure.py", "--collect-only", "-q")
    assert result.returncode == 0 and "adverb" not in result.stderr
    result = project.pytest("test_failure.py", "--adverb-seed", "7")
    assert result.returncode == 4 and "--adverb-seed has no effect without --adverb" in result.stderr


def test_status_is_that_of_pytest(project):
    (project.root / "test_empty.py").write_text("")
    assert project.pytest("--adverb", "test_empty.py").returncode == 5
    result = project.pytest("--adverb", "--adverb-loss", "101")
    assert result.returncode == 4 and "number from 0 to 100" in result.stderr


def test_a_program_with_its_own_arguments_is_not_started_again(project):
    script = "import sys, pytest; print('started'); sys.exit(pytest.main(['--adverb', 'test_device.py']))"
    result = project.run(sys.executable, "-c", script)
    assert result.returncode == 4 and "start the program with `adverb run --`" in result.stderr
    assert result.stdout.count("started") == 1
