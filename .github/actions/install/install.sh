#!/usr/bin/env bash
# Installs a release of Adverb on a runner of GitHub Actions: the step of action.yml, whose inputs are in INPUT_*.
set -euo pipefail

fail() {
    # A line break would end the message, and the rest could be another command to the runner.
    local message=${1//%/%25}
    message=${message//$'\r'/%0D}
    echo "::error::${message//$'\n'/%0A}"
    exit 1
}

[ "${RUNNER_OS:-Linux}" = Linux ] || fail "Adverb runs on Linux, not on $RUNNER_OS"
case "${RUNNER_ARCH:-$(uname -m)}" in
X64 | x86_64) architecture=x86_64 ;;
ARM64 | aarch64) architecture=aarch64 ;;
*) fail "no release of Adverb is for the architecture $RUNNER_ARCH" ;;
esac

version=${INPUT_VERSION#v}
# The version is part of paths, of a URL, and of a line of GITHUB_OUTPUT.
[[ $version =~ ^[0-9][0-9A-Za-z.+-]*$ ]] || fail "the version $version is not a version"
name=adverb-$version-$architecture-linux
source=${INPUT_SOURCE:-$GITHUB_SERVER_URL/$ACTION_REPOSITORY/releases/download/v$version}
downloads=$(mktemp -d "$RUNNER_TEMP/adverb-XXXXXX")
for file in "$name.tar.gz" SHA256SUMS; do
    # A checkout can contain a directory whose relative path is a URL, such as `https:/github.com`.
    if [[ $source != *://* ]]; then
        cp -- "$source/$file" "$downloads/" || fail "$source has no $file"
    else
        curl --fail --silent --show-error --location --proto-redir =https --retry 3 \
            --output "$downloads/$file" --url "$source/$file" ||
            fail "downloading $source/$file failed"
    fi
done

# `sha256sum --ignore-missing` succeeds for any file that is listed, so the line of the tarball is checked alone.
pattern=${name//[.+]/[&]}
line=$(grep -E "^[0-9a-f]{64} [ *]$pattern\.tar\.gz\$" "$downloads/SHA256SUMS") ||
    fail "SHA256SUMS does not list $name.tar.gz"
(cd "$downloads" && sha256sum --check --status <<<"$line") || fail "the checksum of $name.tar.gz is wrong"

directory=$RUNNER_TEMP/adverb-$version
rm -rf "$directory"
mkdir "$directory"
tar -xzf "$downloads/$name.tar.gz" -C "$directory" --strip-components=1
rm -rf "$downloads"
"$directory/bin/adverb" --version
echo "$directory/bin" >>"$GITHUB_PATH"
echo "directory=$directory" >>"$GITHUB_OUTPUT"

if [ "${INPUT_RUN_ALL:-false}" = true ]; then
    # The options are words, which spaces separate. They are no patterns of files.
    set -f
    # shellcheck disable=SC2086
    variables=$("$directory/bin/adverb" env ${INPUT_OPTIONS:-}) || fail "adverb env ${INPUT_OPTIONS:-} failed"
    # A file of variables has names and values without quotes, so a line break in a value would begin another variable.
    lines=$(
        names=$(sed -n "s/^export \([A-Z_]*\)='.*/\1/p" <<<"$variables")
        eval "$variables"
        for variable in $names; do
            [[ ${!variable-} != *$'\n'* ]] || exit 1
            printf '%s=%s\n' "$variable" "${!variable-}"
        done
    ) || fail "a variable of adverb env contains a line break"
    printf '%s\n' "$lines" >>"$GITHUB_ENV"
elif [ -n "${INPUT_OPTIONS:-}" ]; then
    fail "the input options has no effect without run-all"
fi
