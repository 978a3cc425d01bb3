"""One torch thread per test process, and signals as in a terminal."""

import signal

import torch

torch.set_num_threads(1)
# A background job of a shell ignores Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
