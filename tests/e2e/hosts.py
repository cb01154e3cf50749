"""Emulated hosts on this machine: network namespaces with their own host names. Two are joined by one
link, more by a switch.

Imported by lost_rank.py and two_hosts.py. Needs root, iproute2 and unshare; standard library
only.
"""
import os
import shutil
import signal
import subprocess
import tempfile

from program import run


class Hosts:
    """Network namespaces with their own host names hA, hB, ..."""

    def __init__(self, work, n=2):
        self.work, self.tag = work, f"{os.getpid() % 100000}"
        self.letters = [chr(ord("A") + i) for i in range(n)]
        self.spaces = [f"shoal{letter}{self.tag}" for letter in self.letters]
        self.links = [f"s{letter}{self.tag}" for letter in self.letters]
        self.switch = f"shoal-{self.tag}"
        # Open MPI names its session folders after the hosts, whose names other tests use too, so
        # they get a folder of their own.
        self.sessions = None

    def ip(self, *args):
        return subprocess.run(["ip", *args], capture_output=True, text=True, check=False)

    def wires(self):
        """The steps that join the hosts' links."""
        if len(self.links) == 2:
            return [["link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1]]]
        steps = [["netns", "add", self.switch], ["-n", self.switch, "link", "add", "br0", "type", "bridge"],
                 ["-n", self.switch, "link", "set", "br0", "up"]]
        for link in self.links:
            port = f"p{link}"
            steps += [["link", "add", link, "type", "veth", "peer", "name", port],
                      ["link", "set", port, "netns", self.switch],
                      ["-n", self.switch, "link", "set", port, "master", "br0"],
                      ["-n", self.switch, "link", "set", port, "up"]]
        return steps

    def up(self):
        """Starts the hosts. Returns None, or why there cannot be several hosts here."""
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
            return "several hosts need root, iproute2 and unshare"
        self.sessions = tempfile.mkdtemp(prefix="shoal-hosts-")
        steps = [["netns", "add", s] for s in self.spaces] + self.wires()
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
        cases = "".join(f"10.77.0.{i + 1}) ns={space} n=h{letter};; " for i, (space, letter) in
                        enumerate(zip(self.spaces, self.letters)))
        agent.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done; h=$1; shift\n'
                         f'case $h in {cases}esac\n'
                         'exec ip netns exec $ns unshare --uts sh -c "hostname $n; $*"\n')
        agent.chmod(0o755)
        return None

    def launcher(self, ranks):
        """The command line that starts mpirun on hA, with `ranks` divided evenly over the hosts."""
        n = len(self.spaces)
        places = ",".join(f"10.77.0.{i + 1}:{ranks // n}" for i in range(n))
        net = "10.77.0.0/24"
        mca = [("plm", "rsh"), ("plm_rsh_agent", self.work / "rsh.sh"),
               ("plm_rsh_no_tree_spawn", 1), ("pml", "ob1"), ("btl", "tcp,self,vader"),
               ("btl_vader_single_copy_mechanism", "none"), ("mpi_yield_when_idle", 1),
               ("btl_tcp_if_include", net), ("oob_tcp_if_include", net),
               ("orte_tmpdir_base", self.sessions), ("orte_abort_on_non_zero_status", 0)]
        flags = [str(word) for name, value in mca for word in ("--mca", name, value)]
        return ["ip", "netns", "exec", self.spaces[0], "unshare", "--uts", "sh", "-c",
                'hostname hA; exec "$@"', "sh", "mpirun", "--allow-run-as-root", "--oversubscribe",
                "--bind-to", "none", *flags, "-x", "OMP_WAIT_POLICY", "--host", places, "-n", ranks]

    def limit(self, rate):
        """Limits what each host sends to `rate`, e.g. "100mbit". Returns None, or why it
        cannot.
        """
        for space, link in zip(self.spaces, self.links):
            done = run(["ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", link, "root", "tbf",
                        "rate", rate, "burst", "64kb", "latency", "400ms"])
            if done.status != 0:
                return f"tc: {done.err.strip()}"
        return None

    def cut(self, host=1):
        self.ip("-n", self.spaces[host], "link", "set", self.links[host], "down")

    def down(self):
        if shutil.which("ip") is None:
            return
        for space in [*self.spaces, self.switch]:
            for pid in self.ip("netns", "pids", space).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.ip("netns", "del", space)
        if self.sessions:
            shutil.rmtree(self.sessions, ignore_errors=True)
