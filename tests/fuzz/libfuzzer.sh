#!/usr/bin/env bash
# libfuzzer.sh PROGRAM SECONDS FOLDER [TARGET...]: libFuzzer over each target for so long; without
# targets, over all. FOLDER keeps what was found: FOLDER/TARGET the inputs that reach new paths,
# FOLDER/TARGET-crash-* (-leak-, -timeout-, -oom-) what must become a file of fuzz/regress/TARGET.
set -u
program=$1 seconds=$2 folder=$3
shift 3
[ $# -gt 0 ] || set -- safetensors safetensors_header safetensors_index gguf checkpoint \
    checkpoint_sealed tokenizer tiktoken chat request journal journal_summed config
status=0
for target in "$@"; do
    mkdir -p "$folder/$target"
    "$program" --target="$target" --corpus="$folder/$target" -max_total_time="$seconds" \
        -max_len=65536 -rss_limit_mb=3000 -timeout=20 -artifact_prefix="$folder/$target-" \
        "$folder/$target" >"$folder/$target.log" 2>&1 || status=1
    echo "$target: $(tail -n 1 "$folder/$target.log")"
done
exit $status
