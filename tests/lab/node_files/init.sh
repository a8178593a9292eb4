#!/bin/sh
# Process 1 of a lab node until systemd takes over: what a real machine has of its own and a container
# shares with its neighbours is made this node's own here.
set -u

# A boot id of each boot, and a machine id of each node: an agent tells reboots and copies by them.
cat /proc/sys/kernel/random/uuid > /run/hf-lab-boot-id
chmod 0444 /run/hf-lab-boot-id
mount --bind /run/hf-lab-boot-id /proc/sys/kernel/random/boot_id || echo "hf-lab: no own boot id" >&2
[ -s /etc/machine-id ] || tr -d '-' < /proc/sys/kernel/random/uuid > /etc/machine-id
if [ -e /sys/class/dmi/id/product_uuid ]; then
    [ -s /etc/hf-lab-product-uuid ] || cat /proc/sys/kernel/random/uuid > /etc/hf-lab-product-uuid
    mount --bind /etc/hf-lab-product-uuid "$(readlink -f /sys/class/dmi/id/product_uuid)" ||
        echo "hf-lab: no own product uuid" >&2
fi

if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    # cgroup v2: the node has a namespace of its own, mounted read-only by the outer engine.
    mount -o remount,rw /sys/fs/cgroup
else
    # cgroup v1 with the machine's tree: the inner engine's containers go below this node's own group, so
    # that they end with the node and none of their groups stays behind.
    own=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
    python3 - "$own" <<'END'
import json, sys
path = "/etc/docker/daemon.json"
settings = json.load(open(path))
settings["cgroup-parent"] = sys.argv[1].rstrip("/") + "/engine"
with open(path, "w") as file:
    json.dump(settings, file, indent=2)
END
fi

# What a power cut leaves behind and a real machine's boot clears.
rm -f /var/run/docker.pid /run/docker.pid

export container=docker
exec /lib/systemd/systemd
