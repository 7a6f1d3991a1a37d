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

// ProxyEnv is the environment, as K=V, that points programs to the gateway's proxy.
// They need none of it; it is for those that look up no names themselves.
func ProxyEnv() []string {
	proxy := fmt.Sprintf("http://%s:%d", netns.GatewayAddr, ProxyPort)
	var env []string
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		env = append(env, name+"="+proxy)
	}
	all := fmt.Sprintf("socks5h://%s:%d", netns.GatewayAddr, ProxyPort)
	env = append(env, "ALL_PROXY="+all, "all_proxy="+all)
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		env = append(env, name+"=localhost,127.0.0.1,::1")
	}
	return append(env, "NODE_USE_ENV_PROXY=1")
}
