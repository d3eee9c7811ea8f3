# Functions of `cargo xtask probe-vm` in the guest (bash); they use those of `cargo xtask interop`.

# number NAME: prints a number of the summary that `adverb ping --json` printed.
number() { tail -n 1 /tmp/ping | grep -o "\"$1\":[0-9]*" | head -n 1 | cut -d : -f 2; }

# median: prints the median round trip in µs, by stamps of the kernel or, if there are none, of the processes.
median() {
  local nanos
  nanos=$(tail -n 1 /tmp/ping | grep -oE '"(network|round_trip_by_process)":\{[^}]*' | grep -om 1 '"p50_ns":[0-9]*')
  echo $((${nanos#*:} / 1000))
}

row='%-13s %-4s %7s %9s %5s %8s %12s %10s %9s %11s %8s\n'

# start_responder COMMAND…: starts a responder in the background, and waits until it answers lookups.
start_responder() {
  "$@" >/tmp/server 2>&1 &
  server=$!
  until_printed "^answering probes at " cat /tmp/server
}

# run_prober NAME VERSION COUNT COMMAND…: runs the prober, and prints a row of the table. Returns 1 unless all probes were
# answered and all answers belong to a probe.
run_prober() {
  local name=$1 version=$2 count=$3 status=0 start=$SECONDS answered wrong=0 column
  shift 3
  "$@" >/tmp/ping 2>/tmp/ping.err || status=$?
  kill "$server"
  wait "$server" 2>/dev/null
  if ! [[ $(number probes) ]]; then
    echo "$name, $version: the prober failed with status $status:"
    cat /tmp/ping.err /tmp/server
    return 1
  fi
  answered=$(($(number answered) + $(number late) + $(number impossible) + $(number unstamped)))
  printf "$row" "$name" "$version" "$count" "$answered" "$(number lost)" "$(number return_lost)" \
    "$(number unreachable)" "$(number unmatched_acks)" "$(number duplicate_acks)" "$(median)" $((SECONDS - start))
  for column in lost return_lost unreachable ended not_sent unmatched_acks duplicate_acks bad_tags; do
    wrong=$((wrong + $(number $column)))
  done
  ((status == 0 && wrong == 0 && answered == count)) || { tail -n 1 /tmp/ping; return 1; }
}

# probe_vm PROGRAM COUNT: probes from the software NIC to soft-RoCE and from soft-RoCE to the software NIC.
probe_vm() {
  local program count=$2 failed=0 rxe soft version ping
  program=$(copy "$1") || return
  # Emulation is slow on a loaded machine, so an answer may take long. A lost probe is reported after this time.
  ping="--flood --count $count --timeout 30 --json"
  printf "$row" from/to IP probes answered lost ack-lost unreachable unmatched duplicate median-µs seconds
  for version in IPv4 IPv6; do
    case $version in
    IPv4) rxe=10.77.0.1 soft=10.77.0.2 ;;
    IPv6) rxe=fd77::1 soft=fd77::2 ;;
    esac
    start_responder timeout 900 "$program" respond --device rxe0 --address $rxe &&
      run_prober "soft to rxe" $version "$count" \
        as_nobody_in_peer timeout 900 "$program" ping $rxe --device soft:$soft $ping || failed=1
    start_responder as_nobody_in_peer timeout 900 "$program" respond --device soft:$soft --address $soft &&
      run_prober "rxe to soft" $version "$count" \
        timeout 900 "$program" ping $soft --device rxe0 $ping || failed=1
  done
  return $failed
}
