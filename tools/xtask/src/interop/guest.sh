# Functions of `cargo xtask interop` in the guest (bash).

control_port=7472
pingpong_port=18515 # the TCP port on which rdma-core's pingpong servers listen for their client
rounds=200
rping_rounds=50
rping_size=4000

# The two ends exchange their parameters over a second link, which loses nothing.
if ! ip link show c0 >/dev/null 2>&1; then
  ip link add c0 type veth peer name c1 netns peer
  ip addr add 10.78.0.1/24 dev c0
  ip -n peer addr add 10.78.0.2/24 dev c1
  ip link set c0 up
  ip -n peer link set c1 up
fi

# network NETEM…: sets netem's parameters of the link between rxe0 and the namespace, in each direction.
network() {
  tc qdisc del dev v0 root 2>/dev/null
  tc -n peer qdisc del dev v1 root 2>/dev/null
  if (($#)); then
    tc qdisc add dev v0 root netem "$@" && tc -n peer qdisc add dev v1 root netem "$@"
  fi
}

# Runs a command in the namespace `peer` as the user nobody, without capabilities and without a way to gain any.
as_nobody_in_peer() {
  ip netns exec peer setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \
    --no-new-privs -- "$@"
}

# copy PROGRAM: prints the path of a copy that every user can execute.
copy() {
  local copy=/run/programs/${1##*/}
  [[ -x $copy ]] || install -D -m 755 "$1" "$copy" || return
  echo "$copy"
}

# until_listening PORT [NAMESPACE COMMAND…]: waits until the server in the background listens.
until_listening() {
  local port=$1
  shift
  until [[ $("$@" ss -Hltn "sport = :$port") ]]; do
    kill -0 "$server" 2>/dev/null || { echo "the server exited before it listened:"; cat /tmp/server; return 1; }
    sleep 0.05
  done
}

# Waits for the server, which must exit with status 0.
end_server() {
  local status=0
  wait "$server" || status=$?
  ((status == 0)) || { echo "the server exited with status $status:"; cat /tmp/server; }
  return "$status"
}

# peertest PROGRAM RXE SOFT ARGUMENT…: rxe0 listens, the software NIC connects and chooses the cases.
peertest() {
  local program rxe=$2 soft=$3 status=0
  program=$(copy "$1") || return
  shift 3
  timeout 600 "$program" peertest --device rxe0 --address "$rxe" --listen 10.78.0.1:$control_port >/tmp/server 2>&1 &
  server=$!
  until_listening $control_port || return
  as_nobody_in_peer timeout 600 "$program" peertest --device "soft:$soft" --peer 10.78.0.1:$control_port --json "$@" ||
    status=$?
  tc -s qdisc show dev v0
  tc -n peer -s qdisc show dev v1
  ((status == 0)) || { cat /tmp/server; kill "$server" 2>/dev/null; return "$status"; }
  end_server
}

# pingpong_server PROGRAM KIND GID SOFT: the C program on rxe0 is the server.
pingpong_server() {
  local program
  program=$(copy "$1") || return
  timeout 100 "ibv_$2_pingpong" -d rxe0 -g "$3" -n "$rounds" >/tmp/server 2>&1 &
  server=$!
  until_listening $pingpong_port || return
  as_nobody_in_peer timeout 100 "$program" "$2" -d "soft:$4" -n "$rounds" 10.78.0.1 ||
    { cat /tmp/server; kill "$server" 2>/dev/null; return 1; }
  end_server
}

# pingpong_client PROGRAM KIND GID SOFT: the C program on rxe0 is the client.
pingpong_client() {
  local program
  program=$(copy "$1") || return
  as_nobody_in_peer timeout 100 "$program" "$2" -d "soft:$4" -n "$rounds" >/tmp/server 2>&1 &
  server=$!
  until_listening $pingpong_port ip netns exec peer || return
  timeout 100 "ibv_$2_pingpong" -d rxe0 -g "$3" -n "$rounds" 10.78.0.2 ||
    { cat /tmp/server; kill "$server" 2>/dev/null; return 1; }
  end_server && cat /tmp/server
}

# until_printed PATTERN COMMAND…: waits until the command's output matches, while the background server runs.
until_printed() {
  local pattern=$1
  shift
  until "$@" 2>/dev/null | grep -q "$pattern"; do
    kill -0 "$server" 2>/dev/null || { echo "the server exited before it listened:"; cat /tmp/server; return 1; }
    sleep 0.05
  done
}

# rping_server PROGRAM RXE SOFT: the C program on rxe0 is the server.
rping_server() {
  local program
  program=$(copy "$1") || return
  timeout 100 rping -s -a "$2" -V -C $rping_rounds -S $rping_size >/tmp/server 2>&1 &
  server=$!
  until_printed LISTEN rdma resource show cm_id || return
  as_nobody_in_peer timeout 100 "$program" -c -a "$2" -d "soft:$3" -C $rping_rounds -S $rping_size ||
    { cat /tmp/server; kill "$server" 2>/dev/null; return 1; }
  end_server
}

# rping_client PROGRAM RXE SOFT: the C program on rxe0 is the client. The server counts the rounds, because the client
# doesn't repeat a disconnect request that is lost.
rping_client() {
  local program
  program=$(copy "$1") || return
  as_nobody_in_peer timeout 100 "$program" -s -a "$3" -d "soft:$3" -C $rping_rounds -S $rping_size >/tmp/server 2>&1 &
  server=$!
  until_printed "^listening at " cat /tmp/server || return
  timeout 100 rping -c -a "$3" -V -C $rping_rounds -S $rping_size ||
    { cat /tmp/server; kill "$server" 2>/dev/null; return 1; }
  end_server && cat /tmp/server
}
