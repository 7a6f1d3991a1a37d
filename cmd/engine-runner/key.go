package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/direct-oci/engine/capability/signed"
	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

// keyFiles are the two halves of the key that signs receipts, in their directory.
const (
	privateKeyFile = "key.pem"
	publicKeyFile  = "key.pub"
)

// receiptKey is the key that signs receipts. The first runner of a host makes it.
func receiptKey(c config.Config) (ed25519.PrivateKey, error) {
	path := filepath.Join(c.ReceiptDir(), privateKeyFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = newKey(path); errors.Is(err, fs.ErrExist) {
			data, err = os.ReadFile(path) // somebody was quicker
		}
	}
	if err != nil {
		return nil, engine.Failed("no_key", "cannot get the key of receipts: %w", err)
	}
	key, err := signed.ParsePrivateKey(data)
	if err != nil {
		return nil, engine.Failed("no_key", "cannot use key=%s: %w", path, err)
	}
	public := signed.EncodePublicKey(key.Public().(ed25519.PublicKey)) + "\n"
	if err := replaceFile(filepath.Join(c.ReceiptDir(), publicKeyFile), []byte(public), 0o644); err != nil {
		return nil, engine.Failed("no_key", "cannot write the public key of receipts: %w", err)
	}
	return key, nil
}

// newKey makes a key and puts it into the new file path, whole or not at all.
func newKey(path string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	data := signed.EncodePrivateKey(key)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	return data, os.Link(tmp.Name(), path) // does not replace another's
}

// replaceFile puts data into path, whole or not at all. A file that holds it is left alone.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
