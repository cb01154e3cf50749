#!/usr/bin/env bash
# mpirun.sh RANKS COMMAND...: starts COMMAND on RANKS ranks of this machine with Open MPI's mpirun.
# Ranks are not bound (shoal binds its threads itself); ranks that share a core yield to each other while they wait.
set -eu
ranks=$1
shift
flags=(--bind-to none -n "$ranks")
[ "$(id -u)" = 0 ] && flags+=(--allow-run-as-root)
[ "$ranks" -gt "$(nproc)" ] && flags+=(--oversubscribe --mca mpi_yield_when_idle 1)
exec mpirun "${flags[@]}" "$@"
