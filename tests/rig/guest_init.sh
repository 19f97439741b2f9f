#!/bin/sh
# PID 1 of a machine of the rig; with the argument `network`, what it runs below its new root to make the NICs.
# The root is the host's files, read-only; an overlay in the machine's memory makes it writable. From the kernel's command line:
# RUN, the folder of this run on the host, and VM, the number of the machine. $RUN/settings says the rest.
#
# A NIC ethK is one end of a veth pair; its other end, cableK, is bridged to the rail's wire in the namespace `wire`. So both kinds
# of failure exist: `ip link set ethK down` (the NIC is off) and `ip -n wire link set cableK down` (the cable is out).
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# reboot(2) to power off, by perl, which every Debian has: PID 1 must not end, and no `poweroff` without an init system can be relied on.
power_off() { exec perl -e 'syscall(169, 0xfee1dead, 672274793, 0x4321fedc, 0)'; }

fail() {
    echo "rig: machine $VM cannot start: $*; its last kernel messages:" >&2
    dmesg | tail -n 20 >&2
    power_off
}

# Rail 0 is eth0, the control network, without RDMA. Machine n has 10.77.K.(n+1) on rail K.
network() {
    host=$((VM + 1))
    echo "vm$VM" > /proc/sys/kernel/hostname
    # A packet that waits for an address to be resolved holds its queue pair: ask ten times a second, not once.
    echo 100 > /proc/sys/net/ipv4/neigh/default/retrans_time_ms
    ip link set lo up
    ip link set vec0 name eth0 mtu "$MTU" up
    ip addr add "10.77.0.$host/24" dev eth0
    ip netns add wire
    rail=1
    while [ "$rail" -le "$NICS" ]; do
        address=$(printf '02:00:00:01:%02x:%02x' "$rail" "$host")
        ip link add "eth$rail" mtu "$MTU" address "$address" type veth peer name "cable$rail" mtu "$MTU" netns wire
        ip link set "vec$rail" netns wire
        ip -n wire link add "br$rail" mtu "$MTU" type bridge
        ip -n wire link set "vec$rail" mtu "$MTU" master "br$rail" up
        ip -n wire link set "cable$rail" master "br$rail" up
        ip -n wire link set "br$rail" up
        ip link set "eth$rail" up
        ip addr add "10.77.$rail.$host/24" dev "eth$rail"
        rdma link add "rxe$rail" type rxe netdev "eth$rail"
        rail=$((rail + 1))
    done
}

boot() {
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    exec </dev/null >/dev/tty0 2>/dev/tty1
    stty -F /dev/tty0 raw -echo
    stty -F /dev/tty1 raw -echo
    mount -t tmpfs -o size=90% tmpfs /mnt && mkdir /mnt/upper /mnt/work /mnt/root || fail "no memory file system"
    root=/mnt/root
    mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay $root || fail "no overlay"
    for place in proc sys dev; do mount -n --move /$place $root/$place || fail "/$place was not moved"; done
    mkdir -p $root/dev/pts $root/dev/shm
    mount -t devpts -o ptmxmode=0666 devpts $root/dev/pts
    mount -t tmpfs -o size=90%,mode=1777 shm $root/dev/shm
    mount -t tmpfs run $root/run
    IFS=:
    for place in $RUN${SHARED:+:$SHARED}; do
        mkdir -p "$root$place" && mount -t hostfs none "$root$place" -o "$place" || fail "the shared folder $place was not mounted"
    done
    unset IFS
    chroot $root sh -e "$RUN/init" network || fail "the network was not made"
    ulimit -l unlimited
    ulimit -c 0
    chroot $root sh "$RUN/command.$VM"
    echo $? > "$root$RUN/status.$VM"
    dmesg > "$root$RUN/kernel.$VM"
    power_off
}

. "$RUN/settings"
if [ "$1" = network ]; then network; else boot; fi
