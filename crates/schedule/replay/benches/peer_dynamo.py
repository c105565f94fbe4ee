"""Dynamo's simulator, replayed offline, in requests per CPU second.

Needs `pip install --no-deps ai-dynamo ai-dynamo-runtime`. The cases are those of `requests.rs`. Its default
step time is a polynomial of its own, so only the speed is compared, never the latencies.
"""

import os
import time

# Its log is written while the clock runs, so it is kept short.
os.environ.setdefault("DYN_LOG", "error")

import dynamo._core as core  # noqa: E402


def measure(name, requests, **arguments):
    began = time.process_time()
    core.run_mocker_synthetic_trace_replay(request_count=requests, replay_mode="offline", **arguments)
    elapsed = time.process_time() - began
    print(f"{name:<46} {requests:>9} {requests / elapsed:>12.0f} requests per CPU second", flush=True)


if __name__ == "__main__":
    for _ in range(2):
        measure("2 replicas, 128 users, 1024/128", 20_000, input_tokens=1024, output_tokens=128,
                num_workers=2, replay_concurrency=128)
    measure("8 replicas, by prefix, half shared, 2048/128", 10_000, input_tokens=2048, output_tokens=128,
            num_workers=8, replay_concurrency=128, router_mode="kv_router", shared_prefix_ratio=0.5,
            num_prefix_groups=8)
