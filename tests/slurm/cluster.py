"""A Slurm cluster of eight virtual nodes on this machine, in its own namespaces (processes,
mounts, network). However the test ends, nothing of the cluster is left when its first process
ends.

Imported by slurm_test.py. Needs root, Debian's slurm-wlm, munge and iproute2; standard library
only.
"""
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from program import REPO, expect, run  # noqa: E402

NODES = [f"n{i}" for i in range(1, 9)]
TOOLS = ["slurmctld", "slurmd", "munged", "mungekey", "sbatch", "srun", "mpirun", "ip", "unshare"]
OWN_NAMESPACES = ["unshare", "--mount", "--uts", "--pid", "--net", "--fork", "--kill-child",
                  "--mount-proc"]
DONE_STATES = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY",
               "BOOT_FAIL", "DEADLINE"}

# OverTimeLimit: shoal aims at the limit itself; the extra minute is for machines that stand still.
CONFIG = """ClusterName=shoal
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={b}/run/munge.socket
SlurmctldPidFile={b}/run/slurmctld.pid
SlurmdPidFile={b}/run/slurmd.%n.pid
SlurmdSpoolDir={b}/spool/%n
StateSaveLocation={b}/state
SlurmctldLogFile={b}/log/slurmctld.log
SlurmdLogFile={b}/log/slurmd.%n.log
TmpFS={b}/tmp/%n
MpiDefault=pmix
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
OverTimeLimit=1
SlurmdTimeout=30
MessageTimeout=30
GresTypes=gpu
NodeName=n[1-8] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-17008] CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10
PartitionName=preempt Nodes=ALL MaxTime=INFINITE PriorityTier=1
"""


def missing():
    """Why there can be no such cluster here, or None."""
    if os.geteuid() != 0:
        return "a Slurm in namespaces of its own needs root"
    lacking = [tool for tool in TOOLS if not shutil.which(tool)]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    done = run([*OWN_NAMESPACES, "sh", "-c",
                "ip link add sA type veth peer name sB && mount -t tmpfs none /dev/shm && "
                "mknod /dev/shm/null c 1 3"])
    return f"no namespaces here: {done.err.strip()}" if done.status != 0 else None


def in_namespaces(argv):
    """Runs argv in new namespaces, with a shell as first process that reaps orphaned daemons."""
    return subprocess.run([*OWN_NAMESPACES, "bash", "-c", '"$@" & wait $!; exit $?', "bash", *argv],
                          check=False).returncode


def steps_of(job_id):
    """The ids of the daemons that run a job's steps."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(f"slurmstepd: [{job_id}.".encode()):
                found.append(int(path.parts[2]))
        except OSError:
            continue
    return found


class Cluster:
    """folder: for configuration and state. Its path must be short, because it holds sockets."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.held = {}  # requeued jobs: since when they are held
        self.lost = set()  # nodes that were killed
        os.environ["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def start(self):
        b = self.folder
        for name in ("run", "log", "state", "dev"):
            (b / name).mkdir(parents=True)
        for node in NODES:
            (b / "spool" / node).mkdir(parents=True)
            (b / "tmp" / node).mkdir(parents=True)
        (b / "slurm.conf").write_text(CONFIG.format(b=b))
        for i in range(2):  # a virtual GPU is /dev/null
            os.mknod(b / "dev" / f"nvidia{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (b / "gres.conf").write_text(
            f"NodeName=n[1-8] Name=gpu File={b}/dev/nvidia[0-1] Flags=nvidia_gpu_env\n")
        self._must("ip", "link", "set", "lo", "up")
        self._must("ip", "link", "add", "shoal0", "type", "veth", "peer", "name", "shoal1")
        self._must("ip", "addr", "add", "10.78.0.1/24", "dev", "shoal0")
        for link in ("shoal0", "shoal1"):
            self._must("ip", "link", "set", link, "up")
        self._must("mungekey", "-c", "-k", b / "munge.key")
        self._must("munged", f"--key-file={b}/munge.key", f"--socket={b}/run/munge.socket",
                   f"--pid-file={b}/run/munged.pid", f"--log-file={b}/log/munged.log",
                   f"--seed-file={b}/run/munged.seed")
        self._must("slurmctld", "-f", b / "slurm.conf")
        for node in NODES:
            self.start_node(node)
        self.wait_for("idle nodes", lambda: self.idle_nodes() == len(NODES), 60)
        threading.Thread(target=self._keep_letting_go, daemon=True).start()

    def _keep_letting_go(self):
        while True:
            self.let_go()
            time.sleep(0.5)

    def start_node(self, node):
        """Starts slurmd with its own mounts and host name, as on a machine that was just booted."""
        shutil.rmtree(self.folder / "tmp" / node)  # PMIx would trip over a killed step's files
        (self.folder / "tmp" / node).mkdir()
        self._must("unshare", "--mount", "--uts", "sh", "-c",
                   f"hostname {node}; mount --make-rprivate /; mount -t tmpfs none /dev/shm; "
                   f"exec slurmd -f {self.folder}/slurm.conf -N {node}",
                   log=self.folder / "log" / f"slurmd.{node}.log")
        self.lost.discard(node)

    def kill_node(self, node):
        """Sends SIGKILL to slurmd, its steps and their ranks. Returns the number of processes."""
        pid = int((self.folder / "run" / f"slurmd.{node}.pid").read_text())
        host = os.readlink(f"/proc/{pid}/ns/uts")
        self.lost.add(node)
        killed = 0
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns" / "uts") == host:
                    os.kill(int(path.name), signal.SIGKILL)
                    killed += 1
            except OSError:
                continue
        return killed

    def idle_nodes(self):
        out = run(["sinfo", "--noheader", "--partition=debug", "--format=%t %D"]).out
        return sum(int(n) for state, n in (line.split() for line in out.splitlines())
                   if state == "idle")

    def _must(self, *argv, log=None):
        done = run(list(argv), 60)
        if done.status != 0:
            said = log.read_text(errors="replace")[-3000:] if log and log.exists() else ""
            expect(False, f"{done}\n{said}")
        return done.out

    def wait_for(self, what, condition, limit_s=600):
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            expect(waited < limit_s, f"no {what} within {limit_s} s\n{self}")
            # A dozen cases wait at a time, some for a minute; most start a process to ask Slurm.
            time.sleep(min(1.5, 0.3 + waited / 10))

    def let_go(self):
        """Starts requeued jobs early: Slurm would hold them for two minutes. A job stays held while
        a step of its old start runs, which Slurm would take for the new one. All jobs stay held
        while a node is lost, because a start on it hangs (after two minutes Slurm would have
        noticed).
        """
        if self.lost:
            return
        out = run(["squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %A %r"]).out
        waiting = [line.split() for line in out.splitlines() if line.endswith(" BeginTime")]
        self.held = {job: self.held.get(job, time.monotonic()) for job, _, _ in waiting}
        for job, number, _ in waiting:
            if time.monotonic() - self.held[job] > 1.5 and not steps_of(number):
                run(["scontrol", "update", f"JobId={job}", "StartTime=now"])

    def submit(self, name, script, *args, flags=(), env=None):
        """Submits one of the scripts of jobs/ with sbatch."""
        log = self.folder / "log" / f"{name}.job"
        done = run(["sbatch", "--parsable", f"--job-name={name}", f"--output={log}", *flags,
                    REPO / "jobs" / script, *args], 60, env)
        expect(done.status == 0, str(done))
        return Job(self, name, done.out.strip(), log)

    def __str__(self):
        text = run(["squeue", "--all"]).out + run(["sinfo"]).out
        for log in sorted((self.folder / "log").glob("*.job")):
            text += f"-- {log.name}\n{log.read_text(errors='replace')[-3000:]}\n"
        log = self.folder / "log" / "slurmctld.log"
        return text + "-- slurmctld\n" + log.read_text(errors="replace")[-3000:]


class Job:
    """A batch job, or a task of an array ("12_3")."""

    def __init__(self, cluster, name, job_id, log):
        self.cluster, self.name, self.id, self.log = cluster, name, job_id, log

    def info(self):
        """The fields that scontrol shows, as a dictionary."""
        out = run(["scontrol", "--oneliner", "show", "job", self.id]).out
        return dict(re.findall(r"(\w+)=(\S+)", out.splitlines()[0])) if out else {}

    def state(self):
        return self.info().get("JobState", "?")

    def restarts(self):
        return int(self.info().get("Restarts", 0))

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def has_ended(self):
        return self.state() in DONE_STATES

    def must_complete(self, limit_s=600):
        self.cluster.wait_for(f"end of {self.name}", self.has_ended, limit_s)
        info = self.info()
        expect((info["JobState"], info["ExitCode"]) == ("COMPLETED", "0:0"),
               f"{self.name}: {info['JobState']} {info['ExitCode']}\n{self.text()[-3000:]}")
        return info
