#!/usr/bin/env python3
"""Tests the job scripts of jobs/ on a real Slurm: however a job ends, it restarts by itself, and
the output is that of an uninterrupted run.

usage: slurm_test.py SHOAL WORK_FOLDER
Starts a cluster of eight virtual nodes (cluster.py) and stops it. Cases run at the same time, as
nodes get free; most of the time is the minute of Slurm's shortest time limit. In the first session
of a job that is to be interrupted, the ranks stand still for most of every second once the journal
exists; later sessions run at full speed. A start that crashes inside MPI is not a failure:
shoal-job starts it again, and the count is printed.
"""
import ctypes
import hashlib
import http.client
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import cluster
from cluster import REPO, Cluster, Job, expect, run
from program import SKIPPED, Failure, Shoal, fresh_folder, main_of, write_lines

DEMO = REPO / "models" / "demo" / "demo.h5"
N_LINES = 160
SLOW = """#!/usr/bin/env bash
# Runs shoal with small batches. Once its journal exists, the ranks stand still for most of every
# second, unless an earlier session has left rows or the test has written OUTPUT.fast. Of an array
# only the second task is slowed down so.
for ((i = 1; i < $#; i++)); do
    next=$((i + 1))
    [ "${!i}" != --output ] || output=${!next}
done
if [ "$1" = generate ] && [ "${SLURM_ARRAY_TASK_ID:-2}" = 2 ] && ! [ -e "$output.fast" ] &&
    ! "$SHOAL_REAL" status --json "$output" 2>/dev/null | grep -q '"rows":[1-9]'; then
    (
        trap '' TERM USR1
        exec {nothing}<> <(:) # a pipe from which nothing comes: read waits without a process
        while kill -0 $$ && ! [ -e "$output.journal" ]; do
            read -r -t 0.02 -u "$nothing"
        done 2>/dev/null
        while kill -0 $$ 2>/dev/null && ! [ -e "$output.fast" ]; do
            kill -STOP $$
            now=$((10#${EPOCHREALTIME#*.}))
            printf -v rest 0.%06d $((999999 - now))
            read -r -t "$rest" -u "$nothing"
            kill -CONT $$
            read -r -t 0.015 -u "$nothing"
        done 2>/dev/null
    ) >/dev/null 2>&1 &
    set -- "$@" --max-batch 4
fi
exec "$SHOAL_REAL" "$@"
"""


def late_fence():
    """A rank of an MPI job: prints when it came to a fence of all ranks, and when it left it. Rank 0 is late."""
    pmix = ctypes.CDLL("libpmix.so.2")
    me = ctypes.create_string_buffer(260)  # struct pmix_proc: 256 bytes of name space, then the rank
    expect(pmix.PMIx_Init(me, None, 0) == 0, "PMIx_Init")
    expect(pmix.PMIx_Fence(None, 0, None, 0) == 0, "PMIx_Fence")
    if int.from_bytes(me[256:260], sys.byteorder) == 0:
        time.sleep(0.3)
    came = time.monotonic()
    expect(pmix.PMIx_Fence(None, 0, None, 0) == 0, "PMIx_Fence")
    print(json.dumps([came, time.monotonic()]), flush=True)
    pmix.PMIx_Finalize(None, 0)


def crashes_in(text):
    """The number of starts that crashed inside MPI, before shoal printed anything, from a job's
    log. Fails at other crashes.
    """
    n_crashes = 0
    for session in re.split(r"shoal-job: status \d+: requeued", text):
        if "shoal-job: a rank crashed" in session:
            own = "/shoal(" in session and "MPI_Init" not in session  # in Open MPI's backtrace
            expect(not own and "sampling: " not in session, f"shoal crashed\n{session}")
            n_crashes += 1
    return n_crashes


def request_lines():
    """Prompts of the demo model: every third without an id, two ids twice, one error."""
    draw = random.Random(11)
    text = " ".join(json.loads(line)["prompt"] for line in
                    (REPO / "models" / "demo" / "prompts.jsonl").read_text().splitlines())
    lines = []
    for i in range(N_LINES):
        at = draw.randrange(len(text) - 300)
        line = dict(prompt=text[at:at + draw.randrange(5, 120)], max_tokens=draw.randrange(20, 240),
                    temperature=draw.choice([0, 0.8, 1]))
        if i % 8 == 5:
            line["max_tokens"] = 2  # rows that even a slow session finishes
        if i % 3:
            line["custom_id"] = f"s{i}"
        lines.append(line)
    lines[50]["top_p"] = 3
    lines[90]["custom_id"] = "s1"  # an id from another part of the array
    lines[120]["custom_id"] = "13"  # the id that line 13 gets from its number
    return lines


class SlurmTest:
    def __init__(self, shoal, work):
        self.shoal = Shoal(shoal)
        self.work = Path(work)
        fresh_folder(self.work)
        self.input = self.work / "in.jsonl"
        write_lines(self.input, request_lines())
        self.slow = self.work / "slow-shoal"
        self.slow.write_text(SLOW)
        self.slow.chmod(0o755)
        os.environ.update({
            "PATH": f"{REPO / 'jobs'}:{Path(self.shoal.path).parent}:{os.environ['PATH']}",
            "SHOAL_REAL": self.shoal.path, "OMP_WAIT_POLICY": "passive",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "PMIX_MCA_psec": "native"})
        os.environ.pop("SLURM_JOB_ID", None)
        self.began = time.monotonic()

    def run_whole(self):
        whole = self.work / "whole.jsonl"
        self.shoal.must("generate", "--model", DEMO, "--input", self.input, "--output", whole)
        self.sha = hashlib.sha256(whole.read_bytes()).hexdigest()
        self.say(f"uninterrupted: {N_LINES} rows, sha256 {self.sha}")

    def say(self, text):
        print(f"[{time.monotonic() - self.began:5.1f} s] {text}")

    def output(self, name):
        return self.work / f"{name}.jsonl"

    def submit(self, name, script="many_nodes.sbatch", nodes=2, launcher="srun", slow=True, flags=(),
               more=()):
        sizes = [f"--nodes={nodes}", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=10"]
        env = {"SHOAL_LAUNCHER": launcher, "SHOAL": str(self.slow) if slow else self.shoal.path}
        return self.cluster.submit(name, script, DEMO, self.input, self.output(name), *more,
                                   flags=[*sizes, *flags], env=env)

    def n_rows(self, name):
        journal = self.work / f"{name}.jsonl.journal"
        if not journal.exists():
            return 0
        done = self.shoal("status", journal, "--json")
        return json.loads(done.out)["rows"] if done.status == 0 else 0

    def wait_at_work(self, job):
        self.cluster.wait_for(f"row of {job.name}", lambda: self.n_rows(job.name) > 0)

    def check_file(self, name):
        found = hashlib.sha256(self.output(name).read_bytes()).hexdigest()
        expect(found == self.sha, f"{name}: sha256 {found}, {self.sha} expected")

    def finished(self, job, why, n_restarts=1):
        """The job ended by itself, after restarts, with the bytes of the uninterrupted run."""
        info = job.must_complete()
        n_restarts += crashes_in(job.text())
        expect(int(info["Restarts"]) >= n_restarts,
               f"{job.name}: {info['Restarts']} restarts, {n_restarts} expected\n{job.text()}")
        for word in why:
            expect(re.search(word, job.text()), f"{job.name}: no '{word}' in\n{job.text()}")
        self.check_file(job.name)
        self.say(f"{job.name}: {why[0]}; requeued {info['Restarts']} times, completed, same sha256")

    def requeue_after(self, job, event):
        """Calls event(), which ends a session that has rows, and waits until Slurm has requeued
        the job because of it.
        """
        before = job.restarts()  # earlier ones: starts that crashed inside MPI
        event()
        self.cluster.wait_for(f"requeue of {job.name}",
                              lambda: job.restarts() > before or job.has_ended())
        expect(job.restarts() > before, f"{job.name} was not requeued: {job.info()}\n{job.text()}")

    def fence(self):
        """No rank leaves a fence before the last rank has come to it, or MPI_Init would crash."""
        done = run([REPO / "jobs" / "shoal-job", "srun", "--mpi=pmix", "--nodes=2",
                    "--ntasks-per-node=2", sys.executable, __file__, "--late-fence"])
        times = [json.loads(line) for line in done.out.splitlines()]
        expect(done.status == 0 and len(times) == 4, str(done))
        ahead = max(came for came, _ in times) - min(left for _, left in times)
        expect(ahead <= 0, f"fence: the first left it {ahead:.3f} s before the last had come")
        self.say("fence: the late rank held all back")

    def fast_after_requeue(self, job, name):
        """Lets the job run at full speed once its first session was requeued."""
        self.cluster.wait_for(f"requeue of {name}", lambda: "status 75: requeued" in job.text() or job.has_ended())
        Path(f"{self.output(name)}.fast").touch()

    def limit(self):
        """The job finds its time limit through squeue."""
        job = self.submit("limit", "one_node.sbatch", 1, more=["--tp", "2"],
                          flags=["--time=1", "--signal=B:CONT@1"])
        self.fast_after_requeue(job, "limit")
        self.finished(job, ["drained after \\d+ rows \\(the time limit\\)", "status 75: requeued"])

    def warned(self):
        """Slurm signals the script 120 s before the time limit or earlier. The test lowers the
        limit only when there are rows: shoal has asked for the limit before that and does not know
        the new one.
        """
        job = self.submit("warned", "one_node.sbatch", 1, "mpirun", more=["--pp", "2"])
        self.wait_at_work(job)
        minutes, _ = job.info()["RunTime"].rsplit(":", 1)
        limit = int(minutes.split(":")[-1]) + 3  # minutes
        done = run(["scontrol", "update", f"JobId={job.id}", f"TimeLimit={limit}"])
        expect(done.status == 0, str(done))
        self.finished(job, ["drained after \\d+ rows \\(SIGUSR1\\)", "status 75: requeued"])

    def too_early(self):
        """The signal comes before any process can handle it: nothing is lost, and the job
        restarts. Then it gets more time, and sessions at full speed: on a busy machine each session
        would be signalled before its first row, and a slow one would last to the new limit.
        """
        job = self.submit("early", "one_node.sbatch", 1, "mpirun", more=["--pp", "2"],
                          flags=["--time=1"])
        self.fast_after_requeue(job, "early")
        done = run(["scontrol", "update", f"JobId={job.id}", "TimeLimit=10"])
        expect(done.status == 0 or job.has_ended(), str(done))
        self.finished(job, ["the signal came before|drained .* \\(SIGUSR1\\)", "status 75: requeued"])

    def usr1(self, launcher):
        """scancel --signal=USR1: the nodes are free at once, and the job restarts later. Slurm
        knows only the daemons of mpirun, so with mpirun the script is signalled (--batch);
        srun's ranks are signalled in either case.
        """
        job = self.submit(f"usr1-{launcher}", launcher=launcher)
        self.wait_at_work(job)
        whom = ["--batch"] if launcher == "mpirun" else []
        done = run(["scancel", *whom, "--signal=USR1", job.id])
        expect(done.status == 0, str(done))
        self.finished(job, ["drained after \\d+ rows \\(SIGUSR1\\)", "status 75: requeued"])

    def cancel(self):
        """scancel ends the job for good; the same command resumes it another day."""
        job = self.submit("cancel", nodes=1)
        self.wait_at_work(job)
        run(["scancel", job.id])
        self.cluster.wait_for("end of the cancelled job", job.has_ended)
        time.sleep(1)
        expect(job.state() == "CANCELLED", f"cancelled job: {job.state()}\n{job.text()}")
        n_rows = self.n_rows("cancel")
        self.submit("cancel", nodes=1, slow=False).must_complete()
        self.check_file("cancel")
        self.say(f"scancel: CANCELLED after {n_rows} rows, not requeued; resumed, same sha256")

    def array(self):
        """Five tasks over one input, one of them drained meanwhile, and their merge."""
        output = self.output("array")
        sizes = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=10"]
        array = self.cluster.submit("array", "array.sbatch", DEMO, self.input, output,
                                    flags=["--array=1-5", *sizes], env={"SHOAL": str(self.slow)})
        merge = self.cluster.submit("merge", "merge.sbatch", self.input, output, "5",
                                    flags=[f"--dependency=afterok:{array.id}"])
        tasks = [Job(self.cluster, f"array_{i}", f"{array.id}_{i}", array.log) for i in range(1, 6)]
        part = "array.part-2-of-5"
        self.cluster.wait_for("row of task 2", lambda: self.n_rows(part) > 0)
        self.requeue_after(tasks[1], lambda: run(["scancel", "--signal=USR1", tasks[1].id]))
        self.cluster.wait_for("end of the merge", lambda: merge.has_ended() or
                              merge.info().get("Reason") == "DependencyNeverSatisfied")
        merge.must_complete(0)
        n_restarts = [task.restarts() for task in tasks]
        expect(n_restarts[1] >= 1, f"task 2 was not requeued: {n_restarts}\n{array.text()}")
        self.check_file("array")
        self.say(f"array of 5: restarts {n_restarts}; {merge.text().strip()}; same sha256")
        (self.work / f"{part}.jsonl").unlink()
        again = run(["bash", REPO / "jobs" / "merge.sbatch", self.input, output, "5"],
                    env={"SHOAL": self.shoal.path})
        expect(again.status == 3 and part in again.err, f"a part is missing: {again}")

    def lost_node(self, launcher):
        """Kills a node's slurmd, steps and ranks."""
        job = self.submit(f"lost-{launcher}", launcher=launcher)
        self.wait_at_work(job)
        nodes = run(["scontrol", "show", "hostnames", job.info()["NodeList"]]).out.split()
        self.requeue_after(job, lambda: self.say(
            f"{nodes[1]} killed, {self.cluster.kill_node(nodes[1])} processes"))
        self.cluster.start_node(nodes[1])
        self.finished(job, ["earlier runs: [1-9]\\d* rows"])

    def preempted(self):
        """A job of a higher partition takes the nodes."""
        job = self.submit("preempted", "preemptible.sbatch")
        self.wait_at_work(job)
        flags = [f"--nodelist={job.info()['NodeList']}"]
        better = []
        self.requeue_after(job, lambda: better.append(
            self.submit("better", slow=False, flags=flags)))
        better[0].must_complete()
        self.finished(job, ["DUE TO PREEMPTION", "earlier runs: [1-9]\\d* rows"])

    def refused(self):
        """A bad checkpoint, and GPUs that would be idle: reported first, with shoal's exit status."""
        bad = self.work / "bad.h5"
        data = bytearray(DEMO.read_bytes())
        data[len(data) // 2] ^= 1
        bad.write_bytes(data)
        sizes = ["--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", "--gpus-per-node=2"]
        for name, script, model, status, word in (
                ("bad", "one_node.sbatch", bad, "3:0", "bad.h5: the check failed with status 3"),
                ("gpus", "gpus.sbatch", DEMO, "2:0", "no CUDA backend")):
            job = self.cluster.submit(name, script, model, self.input, self.output(name),
                                      flags=sizes)
            self.cluster.wait_for(f"end of {name}", job.has_ended)
            expect((job.state(), job.info()["ExitCode"]) == ("FAILED", status) and
                   word in job.text() and not self.output(name).exists(),
                   f"{name}: {job.info()}\n{job.text()}")
            self.say(f"{script}: {word}; exit code {status}")
        job = self.cluster.submit("gpus", "gpus.sbatch", DEMO, self.input, self.output("gpus"),
                                  flags=sizes, env={"SHOAL_CPU_ON_GPU_NODES": "yes"})
        job.must_complete()
        self.check_file("gpus")
        self.say("gpus.sbatch with SHOAL_CPU_ON_GPU_NODES=yes: same sha256")

    def served(self, launcher, port):
        """A server on two nodes: the log has the tunnel's command, and a call is answered. A signal
        drains it; it is not requeued.
        """
        sizes = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=10"]
        job = self.cluster.submit(f"serve-{launcher}", "serve.sbatch", DEMO, "--port", str(port),
                                  flags=sizes, env={"SHOAL_LAUNCHER": launcher})
        self.cluster.wait_for("server", lambda: "serving http" in job.text() or job.has_ended())
        expect(f"ssh -N -L {port}:127.0.0.1:{port} n" in job.text(), f"no tunnel\n{job.text()}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions",
                           json.dumps({"prompt": "O Romeo,", "max_tokens": 8, "temperature": 0}))
        answer = json.loads(connection.getresponse().read())
        text = answer["choices"][0]["text"]
        expect(text == " that is the king's death.\n\n", f"{job.name}: {answer}")
        connection.close()
        whom = ["--batch"] if launcher == "mpirun" else []
        done = run(["scancel", *whom, "--signal=USR1", job.id])
        expect(done.status == 0, str(done))
        self.cluster.wait_for(f"end of {job.name}", job.has_ended)
        info = job.info()
        expect((info["ExitCode"], info["Restarts"]) == ("75:0", "0") and
               "drained after 1 answers (SIGUSR1)" in job.text(), f"{info}\n{job.text()}")
        self.say(f"{job.name}: answered, drained, exit code 75, not requeued")

    def main(self):
        # the daemons write into it until the namespaces end with this process
        with tempfile.TemporaryDirectory(prefix="shoal-slurm-", ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o755)  # munged requires access to its socket's folder
            os.environ["OMPI_MCA_orte_tmpdir_base"] = folder  # the nodes' names are the same in every run of this test
            self.cluster = Cluster(folder)
            self.cluster.start()
            self.say("the nodes are idle")
            self.run_whole()
            self.side_by_side([self.fence])
            self.side_by_side([self.preempted])  # alone: a waiting job would preempt it
            self.side_by_side([
                self.limit, self.warned, self.too_early, lambda: self.lost_node("srun"),
                lambda: self.usr1("mpirun"), self.array, lambda: self.lost_node("mpirun"),
                lambda: self.usr1("srun"), self.cancel, self.refused,
                lambda: self.served("srun", 18123), lambda: self.served("mpirun", 18124)])
            logs = sorted((Path(folder) / "log").glob("*.job"))
            n_crashes = sum(crashes_in(log.read_text(errors="replace")) for log in logs)
            self.say(f"starts that crashed inside MPI and were tried again: {n_crashes}")

    def side_by_side(self, cases):
        """The first failure ends the test, and with it the cluster."""
        with ThreadPoolExecutor(len(cases)) as pool:
            running = []
            for case in cases:
                running.append(pool.submit(case))
                time.sleep(0.5)  # so that Slurm takes them in this order
            for done in as_completed(running):
                try:
                    done.result()
                except Failure as failure:
                    print(f"FAILED: {failure}", flush=True)
                    shutil.rmtree(self.cluster.folder, ignore_errors=True)
                    os._exit(1)  # without waiting for other cases


def main():
    if sys.argv[1] == "--inside":
        return SlurmTest(*sys.argv[2:]).main()
    if sys.argv[1] == "--late-fence":
        return late_fence()
    reason = cluster.missing()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return cluster.in_namespaces([sys.executable, __file__, "--inside", *sys.argv[1:]])


if __name__ == "__main__":
    main_of(main)
