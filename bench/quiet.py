"""Measures how quiet this machine is: how much CPU time other processes take, how much the
hypervisor withholds, and whether a fixed loop runs as fast on every CPU as in its best run.
Used by turns.py; Linux only.
"""
import hashlib
import os
import threading
import time

SPIN = bytes(1 << 20)
TICK = os.sysconf("SC_CLK_TCK")


def cpu_times():
    """(busy, stolen, all) seconds of all CPUs since boot."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, idle, wait, irq, soft, steal = (int(x) / TICK for x in f.readline().split()[1:9])
    busy = user + nice + system + irq + soft
    return busy, steal, busy + idle + wait + steal


def own_times(pids):
    """The CPU time in seconds of these processes, with all their threads."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


def spin(cpu, n, out):
    os.sched_setaffinity(0, {cpu})  # binds this thread
    best = float("inf")
    for _ in range(n):
        since = time.perf_counter()
        hashlib.sha256(SPIN).digest()
        best = min(best, time.perf_counter() - since)
    out[cpu] = best


def spin_all(n=1):
    """Runs the fixed loop on all CPUs at the same time; returns the best of n times for each CPU."""
    out = {}
    threads = [threading.Thread(target=spin, args=(cpu, n, out)) for cpu in sorted(os.sched_getaffinity(0))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


class Quiet:
    """others: the share of one CPU that other processes may take. slower: by which factor the fixed
    loop may be slower than its best run.
    """

    def __init__(self, own_pids=(), others=0.05, slower=1.05):
        self.own_pids, self.others, self.slower = list(own_pids), others, slower
        self.best = spin_all(50)

    def since(self, mark):
        """The shares of one CPU that other processes took and that were stolen since mark()."""
        busy, steal, _ = cpu_times()
        own = own_times([os.getpid(), *self.own_pids])
        seconds = max(time.perf_counter() - mark[0], 1e-9)
        others = max(0.0, (busy - mark[1]) - (own - mark[3]) - 2 / TICK)  # both clocks count in ticks
        return {"others": others / seconds, "stolen": (steal - mark[2]) / seconds}

    def mark(self):
        busy, steal, _ = cpu_times()
        return time.perf_counter(), busy, steal, own_times([os.getpid(), *self.own_pids])

    def is_disturbed(self, seen):
        return seen["others"] > self.others or seen["stolen"] > self.others

    def look(self):
        """Whether the machine is quiet now. Takes a little more than a fifth of a second."""
        mark = self.mark()
        time.sleep(0.2)
        if self.is_disturbed(self.since(mark)):
            return False
        now = spin_all(3)
        for cpu, seconds in now.items():
            self.best[cpu] = min(self.best[cpu], seconds)
        return all(seconds <= self.best[cpu] * self.slower for cpu, seconds in now.items())

    def wait(self, most_s):
        """Waits until the machine is quiet, for at most most_s seconds. Returns whether it became
        quiet.
        """
        end = time.perf_counter() + most_s
        while True:
            if self.look():
                return True
            if time.perf_counter() >= end:
                return False
