#!/usr/bin/env bash
# demo.sh: installs what is missing, builds shoal, lets the embedded model answer prompts on 4 ranks,
# then on 1 rank, and shows that both wrote the same bytes. Besides these packages, nothing outside build/ changes.
set -eu
cd "$(dirname "$0")/.."
build=build/release
model=models/demo/demo.h5
prompts=models/demo/prompts.jsonl
out=$build/demo
shoal=$build/shoal

bold="" plain=""
if [ -t 1 ]; then
    bold=$'\033[1m' plain=$'\033[0m'
fi

step()
{
    printf '\n%s== %s%s\n' "$bold" "$*" "$plain"
}

# field NAME FILE: prints the JSON string NAME of each line, escapes resolved, with a NUL at its end
field()
{
    local line
    sed -nE 's/.*"'"$1"'": ?"(([^"\\]|\\.)*)".*/\1/p' "$2" | while IFS= read -r line; do
        printf '%b\0' "$line"
    done
}

step "What the build needs"
jobs/install_deps.sh
echo "all there"

step "Build ($build)"
mkdir -p build
cmake --preset release >"$build.configure.log" 2>&1 || { cat "$build.configure.log"; exit 1; }
cmake --build --preset release --target shoal

step "The layout on 4 ranks"
mkdir -p $out
$shoal plan --model $model --ranks 4

# under mpirun stderr is a pipe, so a progress bar must be asked for
bar=()
[ -t 2 ] && bar=(--progress-bar)

step "4 ranks answer $(wc -l <$prompts) prompts"
jobs/mpirun.sh 4 $shoal generate --model $model --input $prompts --output $out/ranks4.jsonl \
    --restart "${bar[@]}"

step "Answers, each behind its prompt"
mapfile -d '' -t asked < <(field prompt $prompts)
mapfile -d '' -t answered < <(field text $out/ranks4.jsonl)
for i in 0 1 2 3 4 5; do
    [ "$i" -lt "${#answered[@]}" ] || break
    printf '\n%s%s%s%s\n' "$bold" "${asked[$i]}" "$plain" "${answered[$i]}"
done

step "1 rank answers the same prompts"
$shoal generate --model $model --input $prompts --output $out/ranks1.jsonl --restart

step "Are the files equal?"
sha256sum $out/ranks4.jsonl $out/ranks1.jsonl
cmp $out/ranks4.jsonl $out/ranks1.jsonl
echo "equal: 4 ranks and 1 rank wrote the same $(wc -c <$out/ranks1.jsonl) bytes"
