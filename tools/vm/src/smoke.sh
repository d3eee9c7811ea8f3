# The checks of `cargo xtask vm smoke`, in the guest (bash).

pingpong_port=18515 # the TCP port at which rdma-core's pingpong servers wait for their client

# Starts a server in the background and waits until it listens.
start_server() {
  timeout 100 "$@" &
  server=$!
  until [[ $(ss -Hltn "sport = :$pingpong_port") ]]; do
    kill -0 "$server" 2>/dev/null || { echo "the server exited before it listened"; return 1; }
    sleep 0.05
  done
}

# Waits for the server, which must exit with status 0.
end_server() {
  local status=0
  wait "$server" || status=$?
  ((status == 0)) || echo "the server exited with status $status"
  return "$status"
}

# Runs a command in the namespace `peer` as the user nobody, without capabilities and without a way to gain any.
as_nobody_in_peer() {
  ip netns exec peer setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \
    --no-new-privs -- "$@"
}

rc_pingpong() {
  start_server ibv_rc_pingpong -d rxe0 -g 1 || return
  timeout 100 ibv_rc_pingpong -d rxe0 -g 1 10.77.0.1 || { kill "$server" 2>/dev/null; return 1; }
  end_server
}

# ud_pingpong PROGRAM GID LOCAL REMOTE: rxe0 is the server, the program the client.
ud_pingpong() {
  local program=/run/ud_pingpong output expected
  # A copy, because the user nobody can't read the build directory.
  install -m 755 "$1" "$program" || return
  [[ $(as_nobody_in_peer sh -c 'id -u; grep ^CapEff /proc/self/status') == $'65534\nCapEff:\t0000000000000000' ]] ||
    { echo "the client has privileges"; return 1; }
  start_server ibv_ud_pingpong -d rxe0 -g "$2" -n 1000 -s 1024 || return
  output=$(as_nobody_in_peer timeout 100 "$program" --local "$3" --remote "$4" --server 10.77.0.1 --count 1000 --size 1024) ||
    { echo "$output"; echo "the client failed"; kill "$server" 2>/dev/null; return 1; }
  end_server || { echo "$output"; return 1; }
  echo "$output"
  expected='^1000 sent, 1000 received, 0 lost, ICRC correct in ([0-9]+) of \1$'
  # grep prints the result as the last line: of a check that passed, only the last line is shown.
  grep -E "$expected" <<<"$output" || { echo "the client's output does not match $expected"; return 1; }
}

# stat PROGRAM: checks that `adverb stat` counts packets. On a busy machine, the traffic may start after the first interval.
stat() {
  local log=/tmp/stat
  timeout 100 "$1" stat --device rxe0 --interval 3 --count 30 >"$log" &
  local watcher=$!
  sleep 0.5
  rc_pingpong >/dev/null || return
  until grep -E '^rxe0 port 1, [0-9.]+ s: [1-9][0-9]*\.[0-9] packets/s' "$log"; do
    kill -0 "$watcher" 2>/dev/null || { cat "$log"; echo "adverb stat counted no packets"; return 1; }
    sleep 0.1
  done
  kill "$watcher"
}

# until_listening PORT: waits for an rdma_cm listener.
until_listening() {
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    [[ $(rdma resource show cm_id 2>/dev/null) == *LISTEN*":$1"* ]] && return
    sleep 0.05
  done
  echo "there is no listener on port $1"
  return 1
}

# connection_manager PROGRAM: the example `connect` and Linux's rdma_cm connect to each other, in both directions.
connection_manager() {
  local program=/run/connect
  install -m 755 "$1" "$program" || return
  timeout 60 ucmatose -C 0 -b 10.77.0.1 >/tmp/ucmatose &
  server=$!
  until_listening 7471 || return
  as_nobody_in_peer timeout 30 "$program" 10.77.0.2 connect 10.77.0.1 || return
  end_server || return
  timeout 60 udaddy -C 0 -b 10.77.0.1 >/tmp/udaddy &
  server=$!
  until_listening 7174 || return
  as_nobody_in_peer timeout 30 "$program" 10.77.0.2 resolve 10.77.0.1 || return
  end_server || return
  as_nobody_in_peer timeout 30 "$program" 10.77.0.2 connect 10.77.0.1 2>&1 | grep 'reason: InvalidServiceId' ||
    { echo "a connection without a listener was not rejected with InvalidServiceId"; return 1; }
  as_nobody_in_peer timeout 60 "$program" 10.77.0.2 listen &
  server=$!
  until [[ $(ip netns exec peer ss -Hlun "sport = :4791") ]]; do sleep 0.05; done
  timeout 60 ucmatose -C 0 -s 10.77.0.2 || { kill "$server" 2>/dev/null; return 1; }
  end_server || return
  echo "connected to and from ucmatose; resolved udaddy; rejected without a listener"
}
