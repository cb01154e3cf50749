#!/usr/bin/env bash
# gpu.sh [BUILD_FOLDER]: on a machine with a GPU, builds shoal with CUDA and runs everything that needs one;
# one table at the end. Needs nvcc, MPI, HDF5, hwloc as jobs/install_deps.sh lists them. 0: all passed;
# 77: no GPU here.
set -u
cd "$(dirname "$0")/.."
build=${1:-build/gpu}
work=$build/gpu-work
table=$work/table
failed=0

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L | grep -q GPU; then
    echo "gpu.sh: no GPU here (nvidia-smi lists none): nothing was run" >&2
    exit 77
fi
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHOAL_CUDA=ON \
    -DSHOAL_CUDA_ARCHITECTURES="${SHOAL_CUDA_ARCHITECTURES:-80;86;89;90}" >/dev/null || exit 1
cmake --build "$build" --target shoal kernels_gpu >/dev/null || exit 1
shoal=$build/shoal
mkdir -p "$work"
: >"$table"

# row NAME COMMAND...: runs it, notes passed or failed and its last line
row()
{
    local name=$1 log=$work/log start=$SECONDS result=passed
    shift
    "$@" >"$log" 2>&1 || { result=FAILED; failed=1; cp "$log" "$work/$(echo "$name" | tr ' /' '__').log"; }
    printf '%-44s %-7s %4d s  %s\n' "$name" $result $((SECONDS - start)) \
        "$(tail -n 1 "$log" | cut -c1-90)" | tee -a "$table"
}

# same FILE RANKS FLAGS...: rows of the GPU are those of the CPU; FILE is a model or MODEL@FORMAT
same()
{
    local model=$1 ranks=$2 lines=tests/golden/models/${1%@*}/prompts.jsonl launch=()
    shift 2
    [ "$ranks" -gt 1 ] && launch=(tests/mpirun.sh "$ranks")
    for device in cpu cuda; do
        "${launch[@]}" "$shoal" generate --model "$work/$model.h5" --input "$lines" --no-journal \
            --output "$work/$device.jsonl" --max-tokens 24 --quiet --device $device "$@" || return 1
    done
    cmp "$work/cpu.jsonl" "$work/cuda.jsonl" && sha256sum "$work/cuda.jsonl"
}

sanitize()
{
    compute-sanitizer --tool "$1" --error-exitcode 1 "$shoal" generate --model "$work/qwen3-moe-mixed.h5" \
        --input tests/golden/models/qwen3-moe-mixed/prompts.jsonl --no-journal --quiet --device cuda \
        --output "$work/sanitized.jsonl" --max-tokens 3
}

# speed DEVICE: tokens a second of the demo model, from the program's own report
speed()
{
    "$shoal" generate --model models/demo/demo.h5 --input models/demo/prompts.jsonl --no-journal \
        --output "$work/speed.jsonl" --max-tokens 64 --temperature 0 --device "$1" --metrics "$work/metrics.json" \
        2>&1 | grep -E "tok/s|tokens" | tail -n 1
}

{ nvidia-smi -L; "$shoal" --version; } | tee -a "$table"
for suite in rows choose linears attention; do
    row "kernels against the reference: $suite" "$build/tests/cuda/kernels_gpu" $suite
done
for model in smollm-tied qwen3-moe-mixed mixtral; do
    row "convert $model" "$shoal" convert "tests/golden/models/$model/hf" "$work/$model.h5"
    for format in int8 int4 fp8 mxfp4; do
        row "quantize $model $format" "$shoal" quantize "$work/$model.h5" "$work/$model@$format.h5" \
            --format $format
        row "CPU = GPU $model $format" same "$model@$format" 1
    done
    row "CPU = GPU $model" same $model 1
    row "CPU = GPU $model, one token a step" same $model 1 --chunk 1
    row "CPU = GPU $model, 2 ranks on it, pp 2" same $model 2 --pp 2
    row "CPU = GPU $model, 4 ranks on it" same $model 4 --dp 2 --pp 2
done
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck synccheck; do row "compute-sanitizer $tool" sanitize $tool; done
else
    printf '%-44s %s\n' "compute-sanitizer" "not installed" | tee -a "$table"
fi
row "speed, CPU" speed cpu
row "speed, GPU" speed cuda
printf '\nthe table stands in %s\n' "$table"
exit $failed
