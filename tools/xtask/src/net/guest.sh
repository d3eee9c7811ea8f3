# Functions of `cargo xtask net` in the guest (bash); they use those of `cargo xtask interop`.

net_port=7473
# Interrupts the link between soft-RoCE and the namespace; needs privileges. (Soft-RoCE's packets to itself don't use
# it.)
cut='tc qdisc add dev v0 root netem loss 100%; sleep 3; tc qdisc del dev v0 root'

# ibv_ibv PROGRAM ARGUMENT…: soft-RoCE with itself.
ibv_ibv() {
  local program=$1
  shift
  timeout 300 "$program" listen rxe0 10.77.0.1 127.0.0.1:$net_port >/tmp/server 2>&1 &
  server=$!
  timeout 300 "$program" connect rxe0 127.0.0.1:$net_port "$@"
  finish $?
}

# soft_ibv PROGRAM ARGUMENT…: the software NIC connects to soft-RoCE.
soft_ibv() {
  local program
  program=$(copy "$1") || return
  shift
  ADVERB_CUT=$cut timeout 300 "$program" listen rxe0 10.77.0.1 10.78.0.1:$net_port >/tmp/server 2>&1 &
  server=$!
  as_nobody_in_peer timeout 300 "$program" connect soft:10.77.0.2 10.78.0.1:$net_port "$@"
  finish $?
}

# ibv_soft PROGRAM ARGUMENT…: soft-RoCE connects to the software NIC.
ibv_soft() {
  local program
  program=$(copy "$1") || return
  shift
  as_nobody_in_peer timeout 300 "$program" listen soft:10.77.0.2 10.77.0.2 10.78.0.2:$net_port >/tmp/server 2>&1 &
  server=$!
  ADVERB_CUT=$cut timeout 300 "$program" connect rxe0 10.78.0.2:$net_port "$@"
  finish $?
}

# finish STATUS: given the connector's status, waits for the listener, or kills it if the connector failed.
finish() {
  (($1 == 0)) || { cat /tmp/server >&2; kill "$server" 2>/dev/null; return "$1"; }
  end_server
}
