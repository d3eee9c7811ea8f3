#!/bin/sh
# Runs a shell script in a copy of a Debian root: root.sh ROOT SCRATCH PACKAGES SCRIPT ARGUMENT…
#
# The caller gives this process its own namespaces of mounts, processes and networks, so the copy ends with the process.
# The network consists of the loopback interface.
set -eu
root=$1 scratch=$2 packages=$3
shift 3

mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/copy"
copy=$scratch/copy
mount -t overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" overlay "$copy"
mount -t proc proc "$copy/proc"
mount -t sysfs -o ro sysfs "$copy/sys"
mount -t tmpfs -o mode=755 tmpfs "$copy/dev"
for device in null zero full random urandom tty; do
    cp -a "/dev/$device" "$copy/dev/"
done
ln -s /proc/self/fd "$copy/dev/fd"
mkdir "$copy/dev/shm" "$copy/dev/pts"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$copy/dev/pts"
ln -s pts/ptmx "$copy/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$copy/dev/shm"
mkdir "$copy/packages"
mount --bind "$packages" "$copy/packages"
ip link set lo up
cd /
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    chroot "$copy" /bin/sh -euc "$@"
