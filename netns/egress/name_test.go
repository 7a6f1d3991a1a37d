package egress

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	long := strings.Repeat("a", 63)
	tests := []struct {
		name, in, want string // want "" is a refusal
	}{
		{"plain", "example.com", "example.com"},
		{"upper case", "EXAMPLE.Com", "example.com"},
		{"one last dot", "example.com.", "example.com"},
		{"two last dots", "example.com..", ""},
		{"only a dot", ".", ""},
		{"nothing", "", ""},
		{"leading dot", ".example.com", ""},
		{"empty label", "a..b", ""},
		{"single label", "registry", "registry"},
		{"underscore", "_dmarc.example.com", "_dmarc.example.com"},
		{"three hyphens in the middle", "r3---sn-x.example.com", "r3---sn-x.example.com"},
		{"hyphen first", "-a.example.com", ""},
		{"hyphen last", "a-.example.com", ""},
		{"international", "bücher.example", "xn--bcher-kva.example"},
		{"international, upper case", "BÜCHER.example", "xn--bcher-kva.example"},
		{"already encoded", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"encoded upper case", "XN--BCHER-KVA.example", "xn--bcher-kva.example"},
		{"encoded wrongly", "xn--a.example", ""},
		{"encoded plain ASCII", "xn--abc-.example", ""},
		{"full-width letters", "ｅｘａｍｐｌｅ.com", "example.com"},
		{"ideographic full stop", "example。com", "example.com"},
		{"full-width digits that make an address", "１２７.0.0.1", ""},
		{"NUL", "example.com\x00.evil.net", ""},
		{"newline", "example.com\n", ""},
		{"space", "example.com ", ""},
		{"percent", "example%2ecom", ""},
		{"percent NUL", "example.com%00", ""},
		{"user name", "user@example.com", ""},
		{"port", "example.com:443", ""},
		{"slash", "example.com/", ""},
		{"backslash", "example.com\\", ""},
		{"asterisk", "*.example.com", ""},
		{"brackets", "[example.com]", ""},
		{"question mark", "example.com?", ""},
		{"hash", "example.com#", ""},
		{"delete", "example.com\x7f", ""},
		{"invalid UTF-8", "example.com\xff", ""},
		{"dotted address", "127.0.0.1", ""},
		{"dotted address, last dot", "127.0.0.1.", ""},
		{"short address", "127.1", ""},
		{"decimal address", "2130706433", ""},
		{"hexadecimal address", "0x7f000001", ""},
		{"hexadecimal parts", "0x7f.0.0.0x1", ""},
		{"bare 0x", "a.0x", ""},
		{"octal address", "0177.0.0.01", ""},
		{"IPv6", "::1", ""},
		{"IPv6 in brackets", "[::1]", ""},
		{"mapped", "::ffff:127.0.0.1", ""},
		{"zone", "fe80::1%eth0", ""},
		{"name that ends in a number", "host.1", ""},
		{"name with a number first", "1.example.com", "1.example.com"},
		{"label of 63", long + ".com", long + ".com"},
		{"label of 64", "a" + long + ".com", ""},
		{"name of 253", strings.Repeat(long+".", 3) + long[:61], strings.Repeat(long+".", 3) + long[:61]},
		{"name of 254", strings.Repeat(long+".", 3) + long[:62], ""},
		{"very long", strings.Repeat("a.", 100000), ""},
		{"right-to-left override", "example\u202e.com", ""},
		{"zero-width joiner", "exam\u200dple.com", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Canonical(tt.in)
			if (err == nil) != (tt.want != "") || got != tt.want {
				t.Errorf("Canonical(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
			}
		})
	}
}

// FuzzCanonical holds the canonical form against the readers that others use: none
// of them may see anything but the same name.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{
		"example.com", "EXAMPLE.com.", "bücher.example", "127.1", "0x7f.1", "::1", "a%00b", "user@host", "a:1",
		"xn--bcher-kva.example", "１２７.0.0.1", "a。b", "[::1]", "a\x00b", "_a.b-c.d", "a.0x", "ß.de", "faß.de",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		name, err := Canonical(in)
		if err != nil {
			if name != "" {
				t.Fatalf("Canonical(%q) refuses and returns %q", in, name)
			}
			return
		}
		if again, err := Canonical(name); err != nil || again != name {
			t.Fatalf("Canonical(%q) = %q, whose own form is %q, %v", in, name, again, err)
		}
		if upper, err := Canonical(strings.ToUpper(name) + "."); err != nil || upper != name {
			t.Fatalf("Canonical(%q) = %q; in upper case with a dot it is %q, %v", in, name, upper, err)
		}
		for i := range len(name) {
			if c := name[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_') {
				t.Fatalf("Canonical(%q) = %q holds %q", in, name, c)
			}
		}
		if _, err := netip.ParseAddr(name); err == nil {
			t.Fatalf("Canonical(%q) = %q is an address", in, name)
		}
		u, err := url.Parse("http://" + name + ":80/x")
		if err != nil || u.Hostname() != name || u.Port() != "80" || u.User != nil || u.Path != "/x" {
			t.Fatalf("Canonical(%q) = %q reads as %+v, %v in a URL", in, name, u, err)
		}
		if isASCII(in) && strings.TrimSuffix(strings.ToLower(in), ".") != name {
			t.Fatalf("Canonical(%q) = %q changes an ASCII name", in, name)
		}
	})
}

func FuzzParseAuthority(f *testing.F) {
	for _, s := range []string{"example.com:443", "[::1]:80", "a@b:1", "1.2.3.4:5", "::1:80", "a:b:1", "[::ffff:1.2.3.4]:1", "a:00080", "a:+80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := parseAuthority(in)
		if err != nil {
			return
		}
		if got.port == 0 || (got.host == "") == !got.addr.IsValid() {
			t.Fatalf("parseAuthority(%q) = %+v is not one destination", in, got)
		}
		again, err := parseAuthority(got.String())
		if err != nil || again != got {
			t.Fatalf("parseAuthority(%q) = %+v, which reads as %+v, %v", in, got, again, err)
		}
		if !isASCII(in) {
			return
		}
		u, err := url.Parse("http://" + in + "/")
		if err != nil {
			return // a reader that refuses cannot be misled
		}
		host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
		if a, err := netip.ParseAddr(host); got.host != host && (err != nil || a != got.addr) {
			t.Fatalf("parseAuthority(%q) = %v, and a URL has the host %q", in, got, host)
		}
	})
}
