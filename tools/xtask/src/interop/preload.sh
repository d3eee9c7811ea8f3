# C programs on adverb-preload in the namespace `peer`, against the same programs on rxe0 (bash). Both ends exchange their
# parameters over the link of the devices, because perftest uses one address for the exchange and for rdma_cm.

rxe_address=10.77.0.1
preload_address=10.77.0.2
time_limit=300 # of each process, in seconds

# install_preload ADVERB LIBRARIES: copies the command `adverb` and the libraries to places that every user can read.
install_preload() {
  copy "$1" >/dev/null || return
  [[ -d /run/programs/preload ]] || install -D -m 755 -t /run/programs/preload "$2"/*.so*
}

on_rxe() {
  timeout $time_limit "$@"
}

# Uses $run_options, the options of `adverb run`.
on_preload() {
  # shellcheck disable=SC2086
  as_nobody_in_peer timeout $time_limit /run/programs/adverb run --libraries /run/programs/preload \
    --device soft:$preload_address $run_options -- "$@"
}

# Delays the messages of rxe0's connection manager, which go to queue pair 1 (the three bytes at offset 33 of an IPv4
# packet). With -R, perftest's client connects a second time as soon as it has received the server's message, while the
# server listens again only after that message was acknowledged. If the server is later, the request is rejected, and
# the client crashes: 2 of 25 runs without the delay. RDMA adapters take milliseconds to resolve the route.
delay_connection_manager() {
  tc qdisc add dev v0 root handle 1: prio bands 4 &&
    tc qdisc add dev v0 parent 1:4 netem delay 100ms &&
    tc filter add dev v0 parent 1: protocol ip u32 match u32 0x00000001 0x00ffffff at 32 flowid 1:4
}

# The subshell of a function in the background doesn't pass signals on.
kill_server() {
  pkill -P "$server"
  wait "$server"
} 2>/dev/null

# connects_with_cm PROGRAM OPTION…: whether the program connects with rdma_cm. Others connect over TCP first.
connects_with_cm() {
  [[ $1 == rping || " $* " == *" -R "* ]]
}

# first_connection_was_rejected PROGRAM: whether the client's output says so. (If the second connection of perftest is
# rejected, its output has "REJECTED".)
first_connection_was_rejected() {
  case $1 in
  rping) grep -q REJECTED /tmp/client ;;
  *) grep -q "Unexpected CM event" /tmp/client ;;
  esac
}

# until_served SIDE PROGRAM OPTION…: waits until the server in the background on rxe or preload listens.
until_served() {
  local side=$1 namespace=()
  shift
  [[ $side == preload ]] && namespace=(ip netns exec peer)
  if ! connects_with_cm "$@"; then
    until_listening $pingpong_port "${namespace[@]}"
  elif [[ $side == rxe ]]; then
    until_printed LISTEN rdma resource show cm_id
  else
    # The NIC's socket shows that the server has opened its device.
    until_printed :4791 "${namespace[@]}" ss -Hlun
  fi
}

# arguments PROGRAM SIDE: prints the arguments that name the side's device and, for rping, the server's address.
arguments() {
  local device gid
  case $2 in
  rxe) device=rxe0 gid=1 ;;
  preload) device=adverb0 gid=0 ;;
  esac
  case $1 in
  rping) ;;
  ibv_*) echo "-d $device -g $gid" ;;
  *) echo "-d $device -x $gid -F" ;;
  esac
}

# against_rxe ROLE RUN_OPTIONS PROGRAM OPTION…: runs the program with adverb-preload as server or client, and with rxe0 in
# the other role. `adverb run` gets RUN_OPTIONS.
against_rxe() {
  local role=$1 run_options=$2 program=$3 server_side=rxe client_side=preload address=$rxe_address
  local to_serve=() to_connect status=0 tries
  shift 3
  if [[ $role == server ]]; then
    server_side=preload client_side=rxe address=$preload_address
    if [[ " $* " == *" -R "* ]]; then
      delay_connection_manager || return
    fi
  fi
  to_connect=("$address")
  [[ $program == rping ]] && to_serve=(-s -a "$address") to_connect=(-c -a "$address")
  # shellcheck disable=SC2046
  on_$server_side "$program" "${to_serve[@]}" $(arguments "$program" $server_side) "$@" >/tmp/server 2>&1 &
  server=$!
  until_served $server_side "$program" "$@" || return
  # shellcheck disable=SC2046
  for ((tries = 0; tries < 20; tries++)); do
    status=0
    on_$client_side "$program" $(arguments "$program" $client_side) "$@" "${to_connect[@]}" >/tmp/client 2>&1 || status=$?
    # A server that has opened its device may not listen yet, and then the first connection is rejected.
    ((status != 0)) && connects_with_cm "$program" "$@" && first_connection_was_rejected "$program" || break
    sleep 0.1
  done
  ((status == 0)) || { echo "the client exited with status $status:"; cat /tmp/client /tmp/server; kill_server; return 1; }
  end_server || { echo "the client:"; cat /tmp/client; return 1; }
  # The summary of `adverb run`.
  grep -h -q "adverb: 1 process opened the device" /tmp/client /tmp/server ||
    { echo "no summary of adverb run:"; cat /tmp/client /tmp/server; return 1; }
  case $program in
  rping) echo "data checked" ;;
  ibv_*) grep iters /tmp/client ;;
  *) grep -A 1 "#bytes" /tmp/client ;;
  esac
}
