package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Identity and id are names that hold nothing which separates parts of what is signed.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)

// ValidName reports whether s may be an identity of a runner or an id of a request.
func ValidName(s string) bool { return nameForm.MatchString(s) }

// MinSecret is how many bytes a signing secret has at least: who talks to either end
// once can try short ones out at leisure.
const MinSecret = 16

// Key signs and verifies with the secret that a runner and its plane share.
//
// SECURITY: whoever does not know the secret can neither pose as one of the ends nor have anything done.
// TLS alone shows that an address has a certificate, and not that the plane is the runner's own.
// Holds because: what is signed begins with what it is for and for which runner, each part but the
// last ends in a line feed, which no part before it can hold, and MACs are compared in constant time.
// Not covered: a secret that can be guessed; who has it can be both ends.
// Checked by: TestEveryBitIsSigned.
type Key struct {
	secret   []byte
	identity string
}

// NewKey makes the key of one runner.
func NewKey(secret []byte, identity string) Key { return Key{secret, identity} }

// mac is HMAC-SHA256, in hexadecimal, over
//
//	"engine link v1 " use LF identity LF part LF … part LF last
func (k Key) mac(use string, last []byte, parts ...string) string {
	h := hmac.New(sha256.New, k.secret)
	h.Write([]byte("engine link v1 " + use + "\n" + k.identity + "\n"))
	for _, p := range parts {
		h.Write([]byte(p + "\n"))
	}
	h.Write(last)
	return hex.EncodeToString(h.Sum(nil))
}

func same(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// Greet is the MAC by which an end proves itself over the nonces of both.
func (k Key) Greet(end End, runnerNonce, planeNonce string) string {
	use := map[End]string{Runner: "runner", Plane: "plane"}[end]
	return k.mac(use, []byte(planeNonce), runnerNonce)
}

// Greeted reports whether the end with this MAC knows the secret.
func (k Key) Greeted(end End, runnerNonce, planeNonce, mac string) bool {
	return same(k.Greet(end, runnerNonce, planeNonce), mac)
}

// NewRequest signs a request of the plane.
func (k Key) NewRequest(typ, id string, now time.Time, body []byte) Request {
	r := Request{Type: typ, ID: id, Time: now.UnixMilli(), Nonce: NewNonce(16), Body: body}
	if r.Body == nil {
		r.Body = []byte{} // null is no base64
	}
	r.MAC = k.request(r)
	return r
}

func (k Key) request(r Request) string {
	return k.mac(r.Type, r.Body, r.ID, strconv.FormatInt(r.Time, 10), r.Nonce)
}

// Signed reports whether the plane has signed exactly this request.
func (k Key) Signed(r Request) bool { return same(k.request(r), r.MAC) }

// Seal signs a result or a review.
func (k Key) Seal(typ, id string, body []byte) Sealed {
	return Sealed{Type: typ, ID: id, Body: body, MAC: k.mac(typ, body, id)}
}

// Unbroken reports whether the runner has signed exactly this.
func (k Key) Unbroken(s Sealed) bool { return same(k.mac(s.Type, s.Body, s.ID), s.MAC) }

// Ack acknowledges the result with this body.
func (k Key) Ack(id string, body []byte) Ack {
	sum := sha256.Sum256(body)
	return k.ack(id, hex.EncodeToString(sum[:]))
}

func (k Key) ack(id, sum string) Ack {
	return Ack{Type: TypeAck, ID: id, MAC: k.mac(TypeAck, []byte(sum), id)}
}

// Acknowledged reports whether the plane has acknowledged the result whose body has this
// SHA-256, in hexadecimal.
func (k Key) Acknowledged(a Ack, sum string) bool { return same(k.ack(a.ID, sum).MAC, a.MAC) }

// NewNonce returns n random bytes in hexadecimal.
func NewNonce(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return strings.ToLower(hex.EncodeToString(b))
}
