"""What a stall is explained by: PyTorch's flight recorder, and the stacks of Python on a signal."""

import faulthandler
import os
import signal
from typing import Optional

#: Collectives that are kept.
ENTRIES = "2000"
PREFIX = "nccl_trace_rank_"


def install(folder: Optional[str] = None) -> None:
    """Sets the variables that are read by `init_process_group`, where nobody has set them."""
    folder = folder or os.environ.get("BEDPLATE_FLIGHT") or os.path.dirname(os.environ["BEDPLATE_REPORT"])
    prefix = os.path.join(os.path.abspath(folder), PREFIX)
    # Each under its older and its newer name.
    for name, value in (
        ("TORCH_FR_BUFFER_SIZE", ENTRIES),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", ENTRIES),
        ("TORCH_FR_DUMP_TEMP_FILE", prefix),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        ("TORCH_NCCL_ENABLE_MONITORING", "1"),
    ):
        os.environ.setdefault(name, value)
    # A handler of the program's own stays.
    if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, None):
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
