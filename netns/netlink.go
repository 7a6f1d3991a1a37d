package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writer builds netlink messages, one after another, to be sent in one call.
type writer struct {
	b     []byte
	tasks []task // one for each message, in order
	start int    // of the message being written
}

// task says what a message is for, to the one who reads that it failed.
type task struct {
	does     string
	tolerate unix.Errno // an answer that means there is nothing to do
}

// message writes one message. body writes what follows the netlink header.
func (w *writer) message(does string, kind, flags int, body func()) {
	start := len(w.b)
	w.b = binary.NativeEndian.AppendUint32(w.b, 0) // the length, once it is known
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(kind))
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(unix.NLM_F_REQUEST|flags))
	w.b = binary.NativeEndian.AppendUint32(w.b, uint32(len(w.tasks))) // sequence number: the task
	w.b = binary.NativeEndian.AppendUint32(w.b, 0)
	body()
	binary.NativeEndian.PutUint32(w.b[start:], uint32(len(w.b)-start))
	w.start = start
	w.tasks = append(w.tasks, task{does: does})
}

// acknowledged asks for an answer to the message last written.
func (w *writer) acknowledged() {
	flags := binary.NativeEndian.Uint16(w.b[w.start+6:])
	binary.NativeEndian.PutUint16(w.b[w.start+6:], flags|unix.NLM_F_ACK)
}

// tolerates takes errno as an answer to the message last written.
func (w *writer) tolerates(errno unix.Errno) { w.tasks[len(w.tasks)-1].tolerate = errno }

func (w *writer) raw(b ...byte) { w.b = append(w.b, b...) }

// attr writes an attribute, padded.
func (w *writer) attr(kind int, value []byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(unix.NLA_HDRLEN+len(value)))
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(kind))
	w.b = append(w.b, value...)
	w.pad()
}

// nest writes an attribute that holds what body writes.
func (w *writer) nest(kind int, body func()) {
	start := len(w.b)
	w.b = binary.NativeEndian.AppendUint16(w.b, 0)
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(kind)|unix.NLA_F_NESTED)
	body()
	binary.NativeEndian.PutUint16(w.b[start:], uint16(len(w.b)-start))
}

func (w *writer) pad() {
	for len(w.b)%unix.NLA_ALIGNTO != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *writer) text(kind int, s string) { w.attr(kind, append([]byte(s), 0)) }

// u32 and u8 are in the machine's order, as rtnetlink wants them; be32 and be64
// are in the network's, as netfilter does.
func (w *writer) u32(kind int, v uint32) { w.attr(kind, binary.NativeEndian.AppendUint32(nil, v)) }
func (w *writer) u8(kind int, v uint8)   { w.attr(kind, []byte{v}) }

func (w *writer) be32(kind int, v uint32) { w.attr(kind, binary.BigEndian.AppendUint32(nil, v)) }
func (w *writer) be64(kind int, v uint64) { w.attr(kind, binary.BigEndian.AppendUint64(nil, v)) }

// conn is a netlink socket. It belongs to the namespace it was made in, whatever
// thread uses it later, and holds that namespace.
type conn struct{ fd int }

func dial(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return &conn{fd}, nil
}

func (c *conn) close() {
	if c != nil {
		unix.Close(c.fd)
	}
}

// sendBuffer is what a netlink socket may send at once by default.
const sendBuffer = 128 << 10

// do sends the messages and reports the first that failed. The kernel has worked
// them all off, and queued its answers, when the call returns.
func (c *conn) do(w *writer) error {
	if len(w.b) > sendBuffer {
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*len(w.b)); err != nil {
			return os.NewSyscallError("setsockopt SO_SNDBUFFORCE", err)
		}
	}
	if err := unix.Sendto(c.fd, w.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	var failed error
	answered := false
	buf := make([]byte, 16<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		err = each(buf[:n], func(h unix.NlMsghdr, body []byte) error {
			if h.Type != unix.NLMSG_ERROR || len(body) < 4 || int(h.Seq) >= len(w.tasks) {
				return nil
			}
			answered = true
			errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
			if t := w.tasks[h.Seq]; errno != 0 && errno != t.tolerate && failed == nil {
				failed = fmt.Errorf("cannot %s: %w", t.does, errno)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if failed == nil && !answered {
		return errors.New("internal error: the kernel did not answer a netlink request")
	}
	return failed
}

// dump sends the one request in w and gives visit each message of the answer.
func (c *conn) dump(w *writer, visit func(body []byte) error) error {
	if err := unix.Sendto(c.fd, w.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 32<<10)
	for done := false; !done; {
		n, _, err := unix.Recvfrom(c.fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		err = each(buf[:n], func(h unix.NlMsghdr, body []byte) error {
			switch h.Type {
			case unix.NLMSG_DONE:
				done = true
				return nil
			case unix.NLMSG_ERROR:
				done = true
				if len(body) < 4 {
					return unix.EBADMSG
				}
				return fmt.Errorf("cannot %s: %w", w.tasks[0].does, unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
			}
			return visit(body)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls visit for each message in b.
func each(b []byte, visit func(h unix.NlMsghdr, body []byte) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		h := unix.NlMsghdr{
			Len:  binary.NativeEndian.Uint32(b),
			Type: binary.NativeEndian.Uint16(b[4:]),
			Seq:  binary.NativeEndian.Uint32(b[8:]),
		}
		if int(h.Len) < unix.NLMSG_HDRLEN || int(h.Len) > len(b) {
			return fmt.Errorf("cannot read a netlink message of %d bytes: %w", h.Len, unix.EBADMSG)
		}
		if err := visit(h, b[unix.NLMSG_HDRLEN:h.Len]); err != nil {
			return err
		}
		b = b[min(len(b), int(h.Len+3)&^3):]
	}
	return nil
}

// nlaTypeMask leaves out the flags that an attribute's type carries.
const nlaTypeMask = 0x3fff

// attrs calls visit for each attribute in b.
func attrs(b []byte, visit func(kind int, value []byte) error) error {
	for len(b) >= unix.NLA_HDRLEN {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.NLA_HDRLEN || size > len(b) {
			return fmt.Errorf("cannot read a netlink attribute of %d bytes: %w", size, unix.EBADMSG)
		}
		kind := int(binary.NativeEndian.Uint16(b[2:]) & nlaTypeMask)
		if err := visit(kind, b[unix.NLA_HDRLEN:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}
