"""`dask-embed.py` on a cluster that was there before it, whose workers know nothing of the program.

    dask_cluster.py TEXTS VECTORS.npy --processes NUMBER [OPTION…]
"""

import subprocess
import sys

from dask.distributed import LocalCluster

if __name__ == "__main__":
    texts, vectors, _, processes, *options = sys.argv[1:]
    with LocalCluster(
        n_workers=int(processes), threads_per_worker=1, dashboard_address=None
    ) as cluster:
        asked = [texts, vectors, "--scheduler", cluster.scheduler_address, *options]
        subprocess.run([sys.executable, "dask-embed.py", *asked], check=True)
