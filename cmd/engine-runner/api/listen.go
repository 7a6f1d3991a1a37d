package api

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/direct-oci/engine/cmd/engine-runner/config"
	"github.com/direct-oci/engine/engine"
)

// TLS is the server's side of it, whose files may be read again. A nil one is none.
type TLS struct {
	now atomic.Pointer[tls.Config]
}

// NewTLS reads the files that the config names. Without an address it returns nil.
func NewTLS(t *config.TCP) (*TLS, error) {
	if t == nil {
		return nil, nil
	}
	l := &TLS{}
	apply, err := l.Change(t)
	if err != nil {
		return nil, err
	}
	apply()
	return l, nil
}

// Change reads the files again, and returns what puts them into force, for connections
// that are made from then on.
func (l *TLS) Change(t *config.TCP) (apply func(), err error) {
	if l == nil || t == nil {
		return func() {}, nil
	}
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, engine.Refused("bad_config", "cannot use service.tcp.certificate=%s: %w", t.Certificate, err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if t.ClientCA != "" {
		text, err := os.ReadFile(t.ClientCA)
		if err != nil {
			return nil, engine.Refused("bad_config", "cannot read service.tcp.clientCA: %w", err)
		}
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(text) {
			return nil, engine.Refused("bad_config", "cannot use service.tcp.clientCA=%s: it holds no certificate", t.ClientCA)
		}
		c.ClientAuth = tls.VerifyClientCertIfGiven // a token may stand in its place
	}
	return func() { l.now.Store(c) }, nil
}

func (l *TLS) wrap(inner net.Listener) net.Listener {
	return tls.NewListener(inner, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return l.now.Load(), nil },
	})
}

// Listen opens the sockets: those that systemd hands over, or those of the config. A
// Unix socket is first, if there is one.
func Listen(s config.Service, t *TLS) ([]net.Listener, error) {
	all, err := inherited(t)
	if err != nil || len(all) > 0 {
		return all, err
	}
	l, err := listenUnix(s.Socket)
	if err != nil {
		return nil, err
	}
	all = append(all, l)
	if s.TCP == nil {
		return all, nil
	}
	tcp, err := net.Listen("tcp", s.TCP.Listen)
	if err != nil {
		return nil, errors.Join(engine.Failed("no_socket", "cannot listen on address=%s: %w", s.TCP.Listen, err), l.Close())
	}
	return append(all, t.wrap(tcp)), nil
}

// firstInherited is the first descriptor of sd_listen_fds(3).
const firstInherited = 3

// inherited takes over the sockets that systemd has opened for this process.
func inherited(t *TLS) ([]net.Listener, error) {
	count, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	meant := err == nil && os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid())
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		os.Unsetenv(name) // nothing that is started later is meant
	}
	if !meant {
		return nil, nil
	}
	var unix, other []net.Listener
	for fd := firstInherited; fd < firstInherited+count; fd++ {
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socket")
		l, err := net.FileListener(f) // of a copy
		f.Close()
		if err != nil {
			return nil, engine.Failed("no_socket", "cannot use inherited descriptor=%d: %w", fd, err)
		}
		switch {
		case l.Addr().Network() == "unix":
			unix = append(unix, l)
		case t == nil:
			return nil, engine.Refused("bad_config", "cannot serve address=%s without TLS", l.Addr()).WithFix("configure service.tcp")
		default:
			other = append(other, t.wrap(l))
		}
	}
	return append(unix, other...), nil
}

// listenUnix makes the socket, in the place of one that nobody listens on any more.
// Everybody may connect: who they are is asked for each connection, and who is nobody
// is told so.
func listenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, engine.Failed("no_socket", "cannot make the directory of socket=%s: %w", path, err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, engine.Failed("already_serving", "cannot listen on socket=%s: somebody does so already", path).
			WithFix("stop the other one, or choose another service.socket")
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, engine.Failed("no_socket", "cannot listen on socket=%s: what is there is no socket", path).
			WithFix("remove it, or choose another service.socket")
	} else if err == nil {
		if err := os.Remove(path); err != nil {
			return nil, engine.Failed("no_socket", "cannot replace socket=%s: %w", path, err)
		}
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o666)
	}
	if err != nil {
		return nil, engine.Failed("no_socket", "cannot listen on socket=%s: %w", path, err)
	}
	return l, nil
}
