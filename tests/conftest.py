"""One torch thread per test process, no time limits, long files first."""

import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
# How long an example takes depends on the load of the machine, not on the code.
settings.register_profile("neada", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("neada")
# A background job of a shell ignores Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# These take half a minute or more: started last, they would run while the other workers are idle.
LONG_FILES = ("test_estimators.py", "test_ranks.py", "test_training_resume.py", "test_runner.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
