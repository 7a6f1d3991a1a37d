package wire

import (
	"errors"
	"net"
	"net/url"
)

// CheckURL says what is wrong with the address of a plane.
//
// SECURITY: what goes over a network goes over TLS.
// Arguments, output and approvals are not for everybody on the way, and a signature hides nothing.
// Holds because: ws:// is refused but to an address of this host's own loopback, and the
// certificate is verified like any other. Not covered: a name that the resolver gives a
// loopback address is refused all the same, but for localhost. Checked by: TestURLs, TestCertificates.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return errors.New("is no URL of a control plane: want wss://HOST[:PORT]/PATH")
	case u.User != nil || u.Fragment != "" || u.RawQuery != "":
		return errors.New("has more than a host and a path: no secret belongs there")
	case u.Scheme == "wss":
		return nil
	case u.Scheme != "ws":
		return errors.New("has another scheme than wss")
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("has the scheme ws, which is for a plane on this very host alone: want wss")
	}
	return nil
}
