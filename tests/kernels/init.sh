#!/bin/busybox sh
# First process of a guest: the host's root, read-only, under a writable layer in memory, then the command given.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module" || echo "no module $module"; done </modules/order
value() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
nine() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2"; }
mkdir -p /host /layer
nine root /host ro,cache=loose || exec poweroff -f
mount -t tmpfs -o size=60% layer /layer
mkdir -p /layer/up /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/up,workdir=/layer/work overlay /new || exec poweroff -f
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm /new/mnt/out
mount -t devpts devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
mount -t bpf bpf /new/sys/fs/bpf
mount -t tracefs tracefs /new/sys/kernel/tracing
mount -t debugfs debugfs /new/sys/kernel/debug
nine out /new/mnt/out cache=none || exec poweroff -f
if [ "$(value cgroups)" = v1 ]; then
    mount -t tmpfs cgroup /new/sys/fs/cgroup
    for each in memory cpu,cpuacct freezer pids; do
        mkdir -p "/new/sys/fs/cgroup/$each"
        mount -t cgroup -o "$each" cgroup "/new/sys/fs/cgroup/$each"
    done
else
    mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
fi
[ -d /new/dev/fd ] || ln -s /proc/self/fd /new/dev/fd
ip link set lo up
hostname guest
exec switch_root /new /bin/bash /mnt/out/start.sh
