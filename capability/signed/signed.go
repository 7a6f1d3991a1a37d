// Package signed puts an ed25519 signature on bytes, and takes nothing for signed that
// was not, to the bit.
//
// An Envelope carries the very bytes that were signed: whoever verifies it reads those
// and no others. Each use has a domain, so that a signature made for one is worthless
// for another. Keys are read from PEM, as openssl writes them, or from base64.
package signed

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/direct-oci/engine/capability/jsjson"
)

// Domain is what a signature is for.
type Domain string

// The domains.
const (
	Approval Domain = "engine approval v1"
	Receipt  Domain = "engine receipt v1"
)

// Envelope is a signed message.
type Envelope struct {
	Payload   []byte `json:"payload"`   // base64 in JSON
	KeyID     string `json:"keyId"`     // of the key that signed it
	Signature []byte `json:"signature"` // base64 in JSON
}

// FieldError is the part of an envelope, or of what it says, that is not as it has to
// be.
type FieldError struct {
	Field string
	Why   string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Why }

// KeyID is a short name of a key: the beginning of its SHA-256.
func KeyID(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:8])
}

// Sign puts payload into an envelope.
func Sign(d Domain, key ed25519.PrivateKey, payload []byte) Envelope {
	return Envelope{payload, KeyID(key.Public().(ed25519.PublicKey)), ed25519.Sign(key, message(d, payload))}
}

func message(d Domain, payload []byte) []byte {
	return append([]byte(string(d)+"\x00"), payload...)
}

// Open returns the payload if key signed the envelope for this use. The error is a
// *FieldError.
func (e Envelope) Open(d Domain, key ed25519.PublicKey) ([]byte, error) {
	if e.KeyID != KeyID(key) {
		return nil, &FieldError{"keyId", "names another key"}
	}
	if !ed25519.Verify(key, message(d, e.Payload), e.Signature) {
		return nil, &FieldError{"signature", "does not belong to this payload: one of the two was changed"}
	}
	return e.Payload, nil
}

// Encode writes the envelope as one line of JSON.
func (e Envelope) Encode() []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic("internal error: an envelope has no JSON form: " + err.Error())
	}
	return append(b, '\n')
}

// Parse reads what Encode wrote, and no other spelling of it. The error is a
// *FieldError.
func Parse(data []byte) (Envelope, error) {
	v, err := jsjson.ParseAtMost(data, 4)
	if err != nil {
		return Envelope{}, &FieldError{"envelope", "is not JSON of payload, keyId and signature: " + err.Error()}
	}
	m, ok := v.(map[string]any)
	if !ok || len(m) != 3 {
		return Envelope{}, &FieldError{"envelope", "is not an object of payload, keyId and signature"}
	}
	var e Envelope
	if e.Payload, err = field(m, "payload"); err != nil {
		return Envelope{}, err
	}
	if e.Signature, err = field(m, "signature"); err != nil {
		return Envelope{}, err
	}
	if e.KeyID, ok = m["keyId"].(string); !ok {
		return Envelope{}, &FieldError{"keyId", "is missing"}
	}
	return e, nil
}

func field(m map[string]any, name string) ([]byte, error) {
	text, ok := m[name].(string)
	if !ok {
		return nil, &FieldError{name, "is missing"}
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return nil, &FieldError{name, "is not base64"}
	}
	return b, nil
}

// ParsePublicKey reads a public key: PEM, or base64 of its 32 bytes.
func ParsePublicKey(text string) (ed25519.PublicKey, error) {
	text = strings.TrimSpace(text)
	if block, _ := pem.Decode([]byte(text)); block != nil {
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read public key: %w", err)
		}
		if key, ok := key.(ed25519.PublicKey); ok {
			return key, nil
		}
		return nil, errors.New("cannot read public key: it is not of ed25519")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, errors.New("cannot read public key: want PEM, or base64 of 32 bytes")
	}
	return b, nil
}

// EncodePublicKey writes what ParsePublicKey reads, in one line.
func EncodePublicKey(key ed25519.PublicKey) string { return base64.StdEncoding.EncodeToString(key) }

// ParsePrivateKey reads a private key in PEM (PKCS 8). No error quotes it.
func ParsePrivateKey(data []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("cannot read private key: it is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("cannot read private key: it is not PKCS 8")
	}
	if key, ok := key.(ed25519.PrivateKey); ok {
		return key, nil
	}
	return nil, errors.New("cannot read private key: it is not of ed25519")
}

// EncodePrivateKey writes what ParsePrivateKey reads.
func EncodePrivateKey(key ed25519.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic("internal error: an ed25519 key has no PKCS 8 form: " + err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
