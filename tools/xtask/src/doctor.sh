# `adverb doctor` in the guest, whose soft-RoCE device works: no problem is reported. Then one thing after the other is
# broken, and the problem is named.

# Runs the command after `--`, and compares its exit status and the problems that it reports with a pattern.
expect_problems() {
  local name=$1 expected=$2 output problems status=0
  shift 3
  output=$("$@" 2>&1) || status=$?
  problems=$(sed -n '/^problem: /,/^  fix: /p' <<<"$output" | sed '/^  fix: /d' | sed 's/^problem: //' | tr -s '\n ' ' ')
  if [[ ${problems% } == $expected && $status == $([[ $expected ]] && echo 1 || echo 0) ]]; then
    echo "doctor: $name: ${problems:-no problem}"
  else
    printf 'doctor: %s: expected “%s”, got “%s”, status %s:\n%s\n' "$name" "$expected" "$problems" "$status" "$output"
    return 1
  fi
}

# Waits until the port is in a state.
await_port() {
  local i
  for ((i = 0; i < 100; i++)); do
    grep -q "$1" /sys/class/infiniband/rxe0/ports/1/state && return
    sleep 0.05
  done
  return 1
}

doctor_vm() {
  local doctor=("$1" doctor) failed=0
  expect_problems healthy '' -- "${doctor[@]}" || failed=1
  ip link set v0 down
  await_port DOWN
  expect_problems 'interface down' 'rxe0/1 is down: its network interface v0 is down' -- "${doctor[@]}" || failed=1
  ip link set v0 up
  await_port ACTIVE
  expect_problems 'another namespace' 'rxe0/1 has 10.77.0.1 for RoCE v2, but its network interface v0 is in another*' -- \
    ip netns exec peer "${doctor[@]}" || failed=1
  chmod 600 /dev/infiniband/uverbs0
  (
    ulimit -l 64
    expect_problems 'user without rights' 'rxe0 cannot be opened: no permission for * may lock only 64 KiB,*' -- \
      setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all "${doctor[@]}"
  ) || failed=1
  chmod 666 /dev/infiniband/uverbs0
  return $failed
}
