"""The kernels of our own on GPU 0; prints what it checked as JSON, ends with 1 where something is wrong."""

import importlib
import json
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])
SIZE, COUNT, SLICE, ROUNDS = 4, 1 << 16, 1024, 20


def main() -> int:
    cupy = importlib.import_module("cupy")
    import numpy as np

    from paceline.collectives.cuda.memory import Shape
    from paceline.collectives.cuda.ring import GpuRing
    from paceline.probe.reader import PageReader
    from paceline.probe.writer import Page

    pages = [Page.create("gpu", "a1", rank, SIZE, rank, "kernels") for rank in range(SIZE)]
    readers = [PageReader(page.page_fd) for page in pages]
    begin = time.monotonic()
    ring = GpuRing(pages, 0xCDA, Shape(SIZE, SLICE))
    compiled_s = time.monotonic() - begin
    right, times = True, []
    for _ in range(ROUNDS):
        arrays = [cupy.full(COUNT, rank + 1, np.float32) for rank in range(SIZE)]
        begin = time.monotonic()
        ring.run(arrays)
        ring.finish()
        times.append(time.monotonic() - begin)
        right &= all(bool((array == SIZE * (SIZE + 1) / 2).all()) for array in arrays)
    frames = [reader.read().frames[0] for reader in readers]
    expected = ROUNDS * 2 * (SIZE - 1) * COUNT // SIZE // SLICE
    counts = [[int(frame[name]) for name in ("send_count", "recv_count")] for frame in frames]
    exact = counts == [[expected, expected]] * SIZE
    left = all(int(frame["gpu_leave"]) & 0xFFFF == ROUNDS for frame in frames)
    ring.close()
    print(json.dumps({
        "sum_right": right, "counts_exact": exact, "marks_right": left, "counts": counts,
        "expected": expected, "load_s": compiled_s, "median_s": sorted(times)[len(times) // 2],
    }))  # fmt: skip
    return 0 if right and exact and left else 1


if __name__ == "__main__":
    sys.exit(main())
