# Runs in the guest as root, with the host's files: creates rxe0 and its link, then runs the commands.
# /run/adverb is shared with the host (see share.rs for the files in it).
set -euo pipefail
share=/run/adverb
. "$share/settings" # mtu cwd path count keep_going out
export PATH="$path:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/tmp

if [[ $out ]]; then
  mkdir /run/out
  mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 out /run/out
fi

# Duplicate address detection would delay the addresses by a second or two, and no other host is on the link.
for scope in all default; do echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad; done
ip link set lo up
ip netns add peer
ip netns exec peer sh -c 'for scope in all default; do echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad; done'
# Fixed addresses, so that GIDs and GUIDs are the same in every boot.
ip link add v0 mtu "$mtu" address 02:00:00:00:77:01 type veth \
  peer name v1 mtu "$mtu" address 02:00:00:00:77:02 netns peer
ip addr add 10.77.0.1/24 dev v0
ip addr add fd77::1/64 dev v0 nodad
ip -n peer addr add 10.77.0.2/24 dev v1
ip -n peer addr add fd77::2/64 dev v1 nodad
ip link set v0 up
ip -n peer link set lo up
ip -n peer link set v1 up
# Permanent neighbor entries: a lost ARP request is repeated only after a second, when queue pairs have already timed
# out.
for address in 10.77.0.2 fd77::2; do ip neigh replace $address lladdr 02:00:00:00:77:02 dev v0 nud permanent; done
for address in 10.77.0.1 fd77::1; do ip -n peer neigh replace $address lladdr 02:00:00:00:77:01 dev v1 nud permanent; done
rdma link add rxe0 type rxe netdev v0

# The kernel fills the GID table in the background.
port=/sys/class/infiniband/rxe0/ports/1
ready() {
  [[ $(<$port/gids/1) == 0000:0000:0000:0000:0000:ffff:0a4d:0001 ]] &&
    [[ $(<$port/gids/2) == fd77:0000:0000:0000:0000:0000:0000:0001 ]] &&
    [[ $(<$port/state) == *ACTIVE* ]]
}
for ((i = 0; ; i++)); do
  ready && break
  if ((i == 200)); then
    echo "guest: rxe0 has no addresses after 10 s; port $(<$port/state), GIDs:" "$(cat $port/gids/{0,1,2,3})"
    exit 1
  fi
  sleep 0.05
done

# Writes a file atomically, so that the host never reads a part of it.
publish() {
  printf '%s\n' "$2" >"$share/$1.part"
  mv "$share/$1.part" "$share/$1"
}
taint() { cat /proc/sys/kernel/tainted; }
publish ready "$(taint)"

# Runs command $1. Its output goes through pipes into files that the host reads, because a program that opens
# /dev/stderr would truncate files.
run() {
  local out err out_cat err_cat status=0
  exec {out}> >(exec cat >"$share/$1.out")
  out_cat=$!
  exec {err}> >(exec cat >"$share/$1.err")
  err_cat=$!
  (
    exec >&"$out" 2>&"$err" {out}>&- {err}>&- </dev/null
    set +euo pipefail
    if ! cd "$cwd"; then
      echo "vm: the guest has no $cwd, because its /run is its own; start from another directory" >&2
      exit 125
    fi
    exec bash "$share/$1.command"
  ) || status=$?
  exec {out}>&- {err}>&-
  # Background processes of the command may keep the pipes open: wait at most 2 s for them.
  (
    exec >/dev/null 2>&1
    sleep 2
    kill "$out_cat" "$err_cat"
  ) &
  wait "$out_cat" "$err_cat" || true
  kill $! 2>/dev/null || true
  publish "$1.status" "$status $(taint)"
  return "$status"
}
for ((n = 0; n < count; n++)); do
  run "$n" || [[ $keep_going ]] || break
done
