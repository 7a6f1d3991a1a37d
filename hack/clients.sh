#!/bin/bash
# Makes build/clients/root, a Debian 13 with the clients that the network's tests run
# in sandboxes: node, npm, python, pip, git and curl. As root, with network; once, unless
# this file changes.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/debian.sh
packages=nodejs,npm,python3,python3-pip,git,curl,ca-certificates

[ "$(id -u)" -eq 0 ] || fail "root is needed"
recipe=$(cat hack/clients.sh hack/debian.sh | sha256sum | cut -c 1-16)
[ "$(cat build/clients/recipe 2>/dev/null)" != "$recipe" ] || exit 0
echo "clients: making a Debian 13 with node, npm, python, pip, git and curl: this takes minutes, once" >&2
rm -rf build/clients
mkdir -p build/clients
debian build/clients/root "$packages"
rm -rf build/clients/root/var/cache/* build/clients/root/var/lib/apt/* build/clients/root/dev/*
echo "$recipe" >build/clients/recipe
