#!/usr/bin/env bash
# Bulk generation without a scheduler: hostfile.sh HOSTFILE MODEL.h5 IN.jsonl OUT.jsonl [flags]
# HOSTFILE has a line "name slots=RANKS" for each host (ranks: its NUMA nodes); ssh must work without
# a password, and the files must have the same paths on all of them.
# Ctrl-C, TERM or USR1 end it in order with status 75; a lost rank is answered by a new start, up to
# SHOAL_MAX_RESTARTS times (20). The same command, with any HOSTFILE, goes on where it was.
#
# Edit this, or set SHOAL_THREADS: compute threads of a rank, such as the cores of a NUMA node.
threads=${SHOAL_THREADS:-16}

set -eu
if [ $# -lt 4 ]; then
    echo "usage: hostfile.sh HOSTFILE MODEL.h5 IN.jsonl OUT.jsonl [flags of shoal generate]" >&2
    exit 2
fi
hostfile=$1 model=$2 input=$3 output=$4
shift 4
PATH=$PATH:$(cd "$(dirname "$0")" && pwd) # shoal-job is in this folder, or beside shoal
exec shoal-job --verify "$model" --output "$output" \
    mpirun --hostfile "$hostfile" --map-by "slot:PE=$threads" --bind-to core -x PATH \
    "${SHOAL:-shoal}" generate --model "$model" --input "$input" --output "$output" \
    --threads "$threads" "$@"
