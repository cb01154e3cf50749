#!/usr/bin/env bash
# mpirun.sh RANKS COMMAND...: the launcher line that all tests share. Works as root and with more
# ranks than cores, where waiting threads and ranks must not spin. Each launcher gets its own
# session folder, because two that start and end at the same time race for Open MPI's common one
# ("mkdir: File exists"). Open MPI would choose ob1 here anyway; naming it saves 0.2 s a start, in
# which Open MPI would try the layers of networks that no test machine has.
set -eu
ranks=$1
shift
session=${TMPDIR:-/tmp}/shoal-mpi/$$
mkdir -p "$session"
exec mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
    --mca pml ob1 --mca btl_vader_single_copy_mechanism none --mca orte_tmpdir_base "$session" -n "$ranks" "$@"
