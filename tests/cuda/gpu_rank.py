#!/usr/bin/env python3
"""Tests jobs/gpu-rank with a faked nvidia-smi and PCI folder: which GPU and which CPUs a local
rank gets, and the error messages when it cannot get any.

usage: gpu_rank.py WORK_FOLDER
"""
import os
import shutil
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
from program import REPO, expect, main_of, run  # noqa: E402

# Two GPUs as nvidia-smi lists them: index, bus id.
SMI = """#!/bin/sh
case "$*" in
*query-gpu=index*) [ -z "$NO_GPUS" ] || { echo No devices were found; exit 6; }; printf '0\\n1\\n' ;;
*"-i 0"*) echo 00000000:17:00.0 ;;
*"-i 1"*) echo 00000000:CA:00.0 ;;
*) exit 1 ;;
esac
"""
SHOW = 'echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; grep Cpus_allowed_list /proc/self/status'


class GpuRankTest:
    def __init__(self, work):
        self.work = Path(work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.cpus = sorted(os.sched_getaffinity(0))
        for number, bus in enumerate(["17", "ca"]):
            folder = self.work / "pci" / f"0000:{bus}:00.0"
            folder.mkdir(parents=True)
            (folder / "local_cpulist").write_text(f"{self.cpus[number % len(self.cpus)]}\n")
            (folder / "numa_node").write_text("-1\n")
        smi = self.work / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(SMI)
        smi.chmod(0o755)

    def rank(self, gpus="", **env):
        path = f"{self.work / 'bin'}:{os.environ['PATH']}"
        return run([REPO / "jobs" / "gpu-rank", "sh", "-c", SHOW],
                   env={"PATH": path, "GPU_RANK_SYS": str(self.work / "pci"),
                        "CUDA_VISIBLE_DEVICES": gpus, **env})

    def expect_gpu(self, gpu, cpu, gpus="", **env):
        done = self.rank(gpus, **env)
        expect(done.status == 0, str(done))
        expect(done.out.split() == [gpu, "PCI_BUS_ID", "Cpus_allowed_list:", str(cpu)],
               f"{env}: {done.out} {done}")
        print(f"  {env}: GPU {gpu}, CPU {cpu}")

    def main(self):
        first, second = self.cpus[0], self.cpus[1 % len(self.cpus)]
        self.expect_gpu("0", first, OMPI_COMM_WORLD_LOCAL_RANK="0")
        self.expect_gpu("1", second, OMPI_COMM_WORLD_LOCAL_RANK="1")
        self.expect_gpu("0", first, SLURM_LOCALID="2")
        self.expect_gpu("1", second, gpus="1", MPI_LOCALRANKID="3")
        for env, words in (({}, "local rank"),
                           ({"SLURM_LOCALID": "0", "NO_GPUS": "1"}, "no GPU")):
            done = self.rank(**env)
            expect(done.status == 2 and words in done.err, str(done))
        (self.work / "pci" / "0000:17:00.0" / "local_cpulist").write_text("100000\n")
        done = self.rank(SLURM_LOCALID="0")
        expect(done.status == 0 and "not bound" in done.err, str(done))


if __name__ == "__main__":
    main_of(GpuRankTest(*sys.argv[1:2]).main)
