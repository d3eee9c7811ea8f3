"""Programs as processes: ``ib_send_bw`` of Debian's package perftest. Run with ``pytest --adverb``."""

import shutil
import subprocess
import time

import pytest


@pytest.mark.skipif(shutil.which("ib_send_bw") is None, reason="install perftest")
def test_ib_send_bw():
    command = ["ib_send_bw", "-d", "adverb0", "-x", "0", "-n", "200", "-p", "18600"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        client = _connect([*command, "127.0.0.1"])
        assert client.returncode == 0, client.stdout + client.stderr
        assert "65536" in client.stdout
        assert "65536" in server.communicate(timeout=60)[0]
        assert server.returncode == 0
    finally:
        server.kill()


def _connect(command):
    """Runs a client until it has found its server."""
    for _ in range(50):
        client = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if "Couldn't connect" not in client.stdout + client.stderr:
            break
        time.sleep(0.1)
    return client
