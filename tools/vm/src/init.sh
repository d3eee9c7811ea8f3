#!/bin/busybox sh
# The guest's first process: loads modules, mounts the host's files, and runs guest.sh in them.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
$b mkdir -p /dev/pts /dev/shm
$b mount -t devpts devpts /dev/pts
$b mount -t tmpfs -o mode=1777 shm /dev/shm
$b ln -s /proc/self/fd /dev/fd
for n in 0:stdin 1:stdout 2:stderr; do $b ln -s /proc/self/fd/${n%:*} /dev/${n#*:}; done
for module in /mods/*; do
  $b insmod "$module" || echo "init: $module did not load"
done

$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
$b mount --rbind /dev /host/dev
for d in proc sys; do $b mount --bind /$d /host/$d; done
$b mount -t tmpfs -o mode=755 run /host/run

# Programs may be built in the host's /tmp, so the guest sees it, with a writable layer on top.
$b mount -t tmpfs upper /upper
$b mkdir -m 1777 /upper/tmp
$b mkdir /upper/work
$b mount -t overlay -o lowerdir=/host/tmp,upperdir=/upper/tmp,workdir=/upper/work overlay /host/tmp

# No cache: a write has reached the host when write() returns.
$b mkdir /host/run/adverb
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 adverb /host/run/adverb

$b chroot /host /bin/bash /run/adverb/guest.sh || echo "init: guest.sh failed"
$b poweroff -f
