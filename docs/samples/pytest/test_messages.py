"""Run with ``pytest --adverb``, or with ``pytest --adverb --adverb-loss 2 --adverb-seed 7``."""

import pytest

pytest.importorskip("pyverbs", reason="install python3-pyverbs, and create the environment with --system-site-packages")

from messages import Endpoint  # noqa: E402


@pytest.fixture
def pair():
    one, other = Endpoint(), Endpoint()
    one.connect(other)
    other.connect(one)
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_unchanged(pair):
    one, other = pair
    for number in range(50):
        message = f"message {number}".encode()
        assert one.send(other, message) == message
        assert other.send(one, message[::-1]) == message[::-1]
