"""Two emulated hosts on this machine: network namespaces with their own host names, joined by one
link.

Imported by lost_rank.py and two_hosts.py. Needs root, iproute2 and unshare; standard library
only.
"""
import os
import shutil
import signal
import subprocess

from program import run


class TwoHosts:
    """Two network namespaces with their own host names, joined by one link."""

    def __init__(self, work):
        self.work, self.tag = work, f"{os.getpid() % 100000}"
        self.spaces = [f"shoalA{self.tag}", f"shoalB{self.tag}"]
        self.links = [f"sA{self.tag}", f"sB{self.tag}"]

    def ip(self, *args):
        return subprocess.run(["ip", *args], capture_output=True, text=True, check=False)

    def up(self):
        """Starts both hosts. Returns None, or why there cannot be two hosts here."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            return "two hosts need root, iproute2 and unshare"
        steps = [["netns", "add", s] for s in self.spaces]
        steps.append(["link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1]])
        for i, (space, link) in enumerate(zip(self.spaces, self.links)):
            steps += [["link", "set", link, "netns", space],
                      ["-n", space, "addr", "add", f"10.77.0.{i + 1}/24", "dev", link],
                      ["-n", space, "link", "set", link, "up"],
                      ["-n", space, "link", "set", "lo", "up"]]
        for step in steps:
            done = self.ip(*step)
            if done.returncode != 0:
                return f"ip {' '.join(step)}: {done.stderr.strip()}"
        agent = self.work / "rsh.sh"
        agent.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done; h=$1; shift\n'
                         f'[ $h = 10.77.0.1 ] && ns={self.spaces[0]} n=hA || '
                         f'{{ ns={self.spaces[1]}; n=hB; }}\n'
                         'exec ip netns exec $ns unshare --uts sh -c "hostname $n; $*"\n')
        agent.chmod(0o755)
        return None

    def launcher(self, ranks):
        """The command line of mpirun with ranks // 2 ranks on each host, started on hA."""
        net = "10.77.0.0/24"
        mca = [("plm", "rsh"), ("plm_rsh_agent", self.work / "rsh.sh"),
               ("plm_rsh_no_tree_spawn", 1), ("pml", "ob1"), ("btl", "tcp,self,vader"),
               ("btl_vader_single_copy_mechanism", "none"), ("mpi_yield_when_idle", 1),
               ("btl_tcp_if_include", net), ("oob_tcp_if_include", net),
               ("orte_abort_on_non_zero_status", 0)]
        flags = [str(word) for name, value in mca for word in ("--mca", name, value)]
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c",
                'hostname hA; exec "$@"', "sh", "mpirun", "--allow-run-as-root", "--oversubscribe",
                "--bind-to", "none", *flags, "-x", "OMP_WAIT_POLICY", "--host",
                f"10.77.0.1:{ranks // 2},10.77.0.2:{ranks // 2}", "-n", ranks]

    def limit(self, rate):
        """Limits both directions of the link to `rate`, e.g. "100mbit". Returns None, or why it
        cannot.
        """
        for space, link in zip(self.spaces, self.links):
            done = run(["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", link, "root", "tbf",
                        "rate", rate, "burst", "64kb", "latency", "400ms"])
            if done.status != 0:
                return f"tc: {done.err.strip()}"
        return None

    def cut(self):
        self.ip("-n", self.spaces[1], "link", "set", self.links[1], "down")

    def down(self):
        if shutil.which("ip") is None:
            return
        for space in self.spaces:
            for pid in self.ip("netns", "pids", space).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.ip("netns", "del", space)
