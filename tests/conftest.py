"""One torch thread per test process: the suite runs one process per core."""

import torch

torch.set_num_threads(1)
