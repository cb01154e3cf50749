#!/usr/bin/env bash
# libfuzzer.sh PROGRAM SECONDS FOLDER [TARGET...]: runs libFuzzer on each target for that many
# seconds; without targets, on those listed below. FOLDER/TARGET keeps the inputs that reach new paths;
# FOLDER/TARGET-crash-* (-leak-, -timeout-, -oom-) are inputs that failed and should become files of
# fuzz/regress/TARGET.
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
