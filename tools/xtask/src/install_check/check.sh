# Installs a package in a clean root and runs ib_send_bw on it: check.sh FILE INSTALL CHECK, where FILE is the package,
# and INSTALL and CHECK are commands. CHECK is empty for a short check.
#
# The last line of the output is "result SECONDS MIB", the time from the start of the installation to the figures of
# ib_send_bw, and the bandwidth.
exec 2>&1
file=$1 install=$2 check=$3

fail() {
    echo "error: $*"
    exit 1
}

# Runs a command as an unprivileged user.
as_user() {
    setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
        env HOME=/home/user "$@"
}

# Prints all files and directories, without the records of apt, dpkg and man-db.
list_files() {
    find / -xdev \( -path /home -o -path /tmp -o -path /packages -o -path /var/lib/dpkg -o -path /var/lib/apt \
        -o -path /var/cache/apt -o -path /var/cache/man -o -path /var/log \) -prune -o \
        \( -type d -printf '%p %m %u %g\n' -o -printf '%p %m %u %g %s %l\n' \) | sort
}

# Runs `adverb run -- ib_send_bw` as two processes, and prints the average bandwidth of the client in MiB/s.
transfer() {
    as_user "$adverb" run "$@" -- ib_send_bw -d adverb0 -x 0 -F >/tmp/server 2>&1 &
    # Port 18515 in the state LISTEN.
    i=0
    until cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 [0-9A-F]*:0000 0A '; do
        i=$((i + 1))
        [ "$i" -lt 300 ] || fail "the server of ib_send_bw does not listen: $(cat /tmp/server)"
        sleep 0.1
    done
    as_user "$adverb" run "$@" -- ib_send_bw -d adverb0 -x 0 -F 127.0.0.1 >/tmp/client 2>&1 ||
        fail "the client of ib_send_bw failed: $(cat /tmp/client)"
    wait "$!" || fail "the server of ib_send_bw failed: $(cat /tmp/server)"
    awk '$1 == 65536 && $4 > 0 { print $4; found = 1 } END { exit !found }' /tmp/client ||
        fail "ib_send_bw printed no figures: $(cat /tmp/client)"
}

for program in adverb cc gcc rustc cargo; do
    [ -z "$(command -v "$program")" ] || fail "the root is not clean: it has $program"
done
mkdir -m 755 /home/user
chown 65534:65534 /home/user

start=$(date +%s%N)
eval "$install"
mib=$(transfer)
nanoseconds=$(($(date +%s%N) - start))
as_user "$adverb" --version

if [ -n "$check" ]; then
    echo "with 1 % loss: $(transfer --loss 1) MiB/s"
    cat /tmp/server /tmp/client | grep -E '[1-9][0-9]* retransmitted' || fail "no packet was retransmitted: $(cat /tmp/client)"
    eval "$check"
fi
echo "result $((nanoseconds / 1000000)) $mib"
