package egress

import (
	"fmt"

	"github.com/direct-oci/engine/netns"
)

// ResolvConf is the sandbox's /etc/resolv.conf.
func ResolvConf() string {
	return fmt.Sprintf("nameserver %s\noptions timeout:2 attempts:2\n", netns.GatewayAddr)
}

// Hosts is the sandbox's /etc/hosts. Its own name is its own address, so that a
// program that looks itself up waits for nobody.
func Hosts(hostname string) string {
	return fmt.Sprintf("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n%s\t%s\n", netns.SandboxAddr, hostname)
}
