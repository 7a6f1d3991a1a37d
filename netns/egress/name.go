package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253 // bytes of a name without its last dot
	maxLabel = 63
)

var errAddress = errors.New("it is an address, not a name")

// Canonical returns the one form of a host name that this package matches, dials
// and records: ASCII, lower case, no last dot. It refuses everything that another
// reader could take for something else: addresses in any spelling, ports, user
// names, percent signs, spaces and control characters. Canonical of its own result
// is that result.
func Canonical(unsafeName string) (string, error) {
	// SECURITY: the name that is matched is, byte for byte, the name that is dialled.
	// Two readers that disagree about one name let a guest reach what was denied.
	// Holds because: callers keep only the result, and checkASCII leaves no byte
	// that a resolver, a URL or a header could read in another way.
	// Not covered: what the name's owner makes it resolve to. Checked by: FuzzCanonical.
	name := unsafeName
	if len(name) > 4*maxName {
		return "", fmt.Errorf("it is longer than %d bytes", maxName)
	}
	if !isASCII(name) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", errors.New("it is not a valid international name")
		}
		name = ascii
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if err := checkASCII(name); err != nil {
		return "", err
	}
	return name, nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// checkASCII checks a lower-case name without its last dot.
func checkASCII(name string) error {
	if name == "" {
		return errors.New("it is empty")
	}
	if len(name) > maxName {
		return fmt.Errorf("it is longer than %d bytes", maxName)
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return errAddress
	}
	labels := strings.Split(name, ".")
	for _, label := range labels {
		if err := checkLabel(label); err != nil {
			return err
		}
	}
	if isNumber(labels[len(labels)-1]) {
		return errAddress
	}
	return nil
}

// checkLabel allows letters, digits, underscores, and hyphens that are not at an
// end. Underscores are in names that people use, and mean nothing to a parser.
func checkLabel(label string) error {
	switch {
	case label == "":
		return errors.New("it has an empty label")
	case len(label) > maxLabel:
		return fmt.Errorf("it has a label longer than %d bytes", maxLabel)
	case label[0] == '-' || label[len(label)-1] == '-':
		return errors.New("it has a label that begins or ends with a hyphen")
	}
	for i := range len(label) {
		c := label[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
			return fmt.Errorf("it holds the character %s", strconv.QuoteToASCII(string(rune(c))))
		}
	}
	if strings.HasPrefix(label, "xn--") {
		u, err := idna.Lookup.ToUnicode(label)
		if err != nil {
			return errors.New("it is not a valid international name")
		}
		if back, err := idna.Lookup.ToASCII(u); err != nil || back != label {
			return errors.New("it is not a valid international name")
		}
	}
	return nil
}

// isNumber tells whether some reader of addresses takes the last label of a name
// for a number, and so the whole name for an address: 127.1, 0x7f.1, 017700000001.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// parseHost reads the host of a proxy request: a name, or an address in its one
// usual spelling. Exactly one of the results is set.
func parseHost(unsafeHost string) (name string, addr netip.Addr, err error) {
	if inner, ok := strings.CutPrefix(unsafeHost, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err = netip.ParseAddr(inner)
		if !ok || err != nil || addr.Zone() != "" || !addr.Is6() {
			return "", netip.Addr{}, errors.New("it is not an IPv6 address in brackets")
		}
		return "", addr, nil
	}
	if addr, err = netip.ParseAddr(unsafeHost); err == nil && addr.Is4() {
		return "", addr, nil
	}
	name, err = Canonical(unsafeHost)
	return name, netip.Addr{}, err
}

// parsePort reads 1 to 65535, in digits and nothing else.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || len(s) > 5 || s[0] == '+' {
		return 0, errors.New("the port is not a number from 1 to 65535")
	}
	return uint16(n), nil
}

// splitHostPort cuts at the last colon that is not within brackets. A missing
// port is an empty string.
func splitHostPort(s string) (host, port string, hasPort bool) {
	end := strings.LastIndexByte(s, ']')
	i := strings.LastIndexByte(s, ':')
	if i < 0 || i < end {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}
