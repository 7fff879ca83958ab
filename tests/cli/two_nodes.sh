#!/bin/sh
# Two machines for `torchrun`, as network namespaces with addresses of their own, joined by a virtual cable; the second
# one does not see the run directory. Each starts two ranks of `torso train`.
#
#   PYTHON=… two_nodes.sh RUN_DIR SETTING …       exit code 77, with the reason, where namespaces cannot be made
set -u
run=$1
shift
a="torso-a-$$" b="torso-b-$$" cable="tv$$"
refuse() { echo "skipped: $1"; exit 77; }

command -v ip >/dev/null || refuse "there is no ip command (package iproute2)"
[ "$(id -u)" = 0 ] || refuse "network namespaces need root"
ip netns add "$a" 2>/dev/null || refuse "this system lets nobody make network namespaces"
ip netns add "$b"
trap 'ip netns del "$a"; ip netns del "$b"' EXIT
ip link add "${cable}a" netns "$a" type veth peer name "${cable}b" netns "$b" || refuse "no virtual cable can be made"
for side in a b; do
    [ $side = a ] && name=$a number=1 || { name=$b; number=2; }
    ip -n "$name" addr add "10.77.0.$number/24" dev "$cable$side"
    ip -n "$name" link set lo up
    ip -n "$name" link set "$cable$side" up
done
settings=$*
parent=$(dirname "$run")
mkdir -p "$parent"

node() { # namespace, side, number, what comes first on that machine
    # the interface that gloo listens at is named: the host name may stand for another one
    ip netns exec "$1" unshare --mount sh -c "$4
        export GLOO_SOCKET_IFNAME=$cable$2 OMP_NUM_THREADS=1
        exec "$PYTHON" -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank $3 \
            --master-addr 10.77.0.1 --master-port 29400 -m torso train --run-dir '$run' $settings"
}

node "$b" b 1 "mount -t tmpfs none '$parent' || exit 1" &
second=$!
node "$a" a 0 ""
first=$?
wait $second && [ $first = 0 ]
