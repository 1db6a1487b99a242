#!/bin/bash
# First process of a user-mode Linux: the host's files read-only, version 2 of control groups, a disk, and swap.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PYTHONDONTWRITEBYTECODE=1 TMPDIR=/mnt/disk
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs mnt /mnt
mount -t devtmpfs dev /dev
mkdir -p /mnt/out /mnt/disk /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts devpts /dev/pts
ln -s /proc/self/fd /dev/fd
ip link set lo up
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t hostfs -o "$(sed -n 's/.*out=\([^ ]*\).*/\1/p' /proc/cmdline)" out /mnt/out
mkfs.ext4 -q -F /dev/ubda && mount -t ext4 /dev/ubda /mnt/disk
mkswap -q /dev/ubdb 2>/dev/null || mkswap /dev/ubdb >/dev/null
swapon /dev/ubdb
bash /mnt/out/start.sh
sync
halt -f
