"""The package ``adverb`` as pip installs it."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import adverb

DEVICES = str(Path(__file__).with_name("devices.py"))


def test_command_and_libraries_are_in_the_environment_of_python():
    assert adverb.command().parent == Path(sys.executable).parent
    assert adverb.libraries() == Path(sys.prefix, "lib", "adverb")
    assert Path(adverb.libraries(), "librdmacm.so.1").is_file()
    version = subprocess.run([adverb.command(), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("adverb ")


def test_programs_in_the_environment_find_the_device():
    environment = adverb.environment()
    output = subprocess.run([sys.executable, DEVICES], env=environment, capture_output=True, text=True)
    assert (output.stdout, output.returncode) == ("adverb0\n", 0), output.stderr
    # The device's file in sysfs, as programs read it.
    state = "/sys/class/infiniband/adverb0/ports/1/state"
    assert subprocess.check_output(["cat", state], env=environment, text=True) == "4: ACTIVE\n"


def test_arguments_become_options(tmp_path):
    base = {"PATH": os.defpath, "TMPDIR": os.environ.get("TMPDIR", "/tmp"), "MINE": "1"}
    environment = adverb.environment(loss=0.5, seed=7, trace=tmp_path / "t.html", device="soft:127.0.0.9", base=base)
    assert environment["ADVERB_LOSS"] == "0.5"
    assert environment["ADVERB_SEED"] == "7"
    assert environment["ADVERB_DEVICE"] == "soft:127.0.0.9"
    assert environment["ADVERB_TRACE"] == str(tmp_path / "t.html")
    assert environment["MINE"] == "1"
    with pytest.raises(adverb.Error, match="use a number from 0 to 100"):
        adverb.environment(loss=101)


def test_shells_and_links_find_the_libraries(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(adverb.command())
    script = f'eval "$({link} env --loss 1)" && {sys.executable} {DEVICES} && echo "$ADVERB_LOSS"'
    environment = {name: value for name, value in os.environ.items() if name != "ADVERB_LIBRARIES"}
    assert subprocess.check_output(["sh", "-c", script], env=environment, text=True) == "adverb0\n1\n"


@pytest.mark.skipif(shutil.which("ib_send_bw") is None, reason="perftest is not installed")
def test_two_processes_exchange_messages_with_loss():
    environment = adverb.environment(loss=1, seed=7)
    command = ["ib_send_bw", "-d", "adverb0", "-x", "0", "-n", "200", "-p", "18611"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(100):
            client = subprocess.run([*command, "127.0.0.1"], env=environment, capture_output=True, text=True, timeout=60)
            if "Couldn't connect" not in client.stdout + client.stderr:
                break
            time.sleep(0.1)
        assert client.returncode == 0, client.stdout + client.stderr
        assert "65536" in server.communicate(timeout=60)[0]
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
