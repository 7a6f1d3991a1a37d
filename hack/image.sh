#!/bin/bash
# Makes the demo's image, that of images/both.recipe with the programs of examples/ in
# /opt/examples, and imports it: build/demo/state is then a state directory with the
# image "demo". As root, with network.
set -euo pipefail
cd "$(dirname "$0")/.."

images/build.sh both
state=build/demo/state
layout=build/demo/oci
mkdir -p build/demo

# The programs change more often than the system below them.
contents=$(cd examples && find . -type f -name '*.[tps][syh]' -print0 | sort -z | xargs -0 sha256sum)
key=$(cat build/images/both/key hack/image.sh - <<<"$contents" | sha256sum | cut -c 1-16)
if [ "$(cat build/demo/key 2>/dev/null)" != "$key" ]; then
	rm -rf "$layout" "$state" build/demo/key
	cp -r build/images/both/oci "$layout"
	umoci insert --image "$layout:both" --tag demo examples /opt/examples
	bin/engine --state-dir "$state" image import --ref demo "$layout" demo
	echo "$key" >build/demo/key
fi
