# Checks of the installed Debian package: manual pages, the programs of its units, and that purging it leaves nothing.
man --where adverb adverb-run adverb-respond adverb-exporter >/dev/null

unit_command() {
    sed -n 's/^ExecStart=//p' "/usr/lib/systemd/system/adverb-$1.service"
}
metrics=$(as_user env ADVERB_EXPORTER_ARGS=--once sh -c "$(unit_command exporter)")
echo "$metrics" | grep '^adverb_rdma_devices '
as_user env "ADVERB_RESPOND_ARGS=--device soft:127.0.0.7 --duration 10" sh -c "$(unit_command respond)" >/tmp/respond &
i=0
until grep -q '^answering probes' /tmp/respond; do
    i=$((i + 1))
    [ "$i" -lt 100 ] || fail "the responder does not start"
    sleep 0.1
done
as_user adverb ping 127.0.0.7 --count 3 >/tmp/ping || fail "adverb ping failed: $(cat /tmp/ping)"
grep '^3 probes, 3 answered;' /tmp/ping || fail "not all probes were answered: $(cat /tmp/ping)"
wait "$!"

# The links that `systemctl enable` creates.
mkdir -p /etc/systemd/system/multi-user.target.wants
for unit in adverb-exporter adverb-respond; do
    ln -s "/usr/lib/systemd/system/$unit.service" /etc/systemd/system/multi-user.target.wants/
done
apt-get purge -qq -y adverb
list_files >/tmp/after
diff -u /tmp/before /tmp/after || fail "the files above differ after the package was purged"
echo "purging the package left no files"
