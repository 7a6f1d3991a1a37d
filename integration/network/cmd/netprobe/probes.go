package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// patience bounds everything that may hang, so that what hangs is seen as such.
const patience = 5 * time.Second

const proxy = "100.64.0.1:3128"

func dial(network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	c, err := d.Dial(network, address)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return c, nil
}

// firstLine is what a server says; one that waits is spoken to.
func firstLine(c net.Conn, r *bufio.Reader) (string, error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	line, err := r.ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = syscall.ECONNRESET // no server here ends without a word
	}
	return strings.TrimSpace(line), err
}

func tcp(args []string) (string, error) {
	c, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	return firstLine(c, bufio.NewReader(c))
}

// silence ends the answer to what send sent.
const silence = 700 * time.Millisecond

// send says what no well-behaved program would, and tells all that is answered.
func send(args []string) (string, error) {
	c, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	for _, part := range args[1:] {
		data, err := base64.StdEncoding.DecodeString(part)
		if err != nil {
			return "", err
		}
		if _, err := c.Write(data); err != nil {
			break // the answer may be there all the same
		}
		time.Sleep(20 * time.Millisecond) // so that it goes out by itself
	}
	var answer []byte
	buf := make([]byte, 16<<10)
	for len(answer) < 64<<10 {
		c.SetReadDeadline(time.Now().Add(silence))
		n, err := c.Read(buf)
		answer = append(answer, buf[:n]...)
		if err != nil {
			break
		}
	}
	return string(answer), nil
}

func udp(args []string) (string, error) {
	c, err := dial("udp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	buf := make([]byte, 1500)
	for range 2 { // datagrams get lost
		c.SetDeadline(time.Now().Add(patience / 2))
		if _, err = c.Write([]byte("hello")); err != nil {
			return "", err
		}
		var n int
		if n, err = c.Read(buf); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			return string(buf[:n]), err
		}
	}
	return "", err
}

func name(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r := net.Resolver{PreferGo: true}
	addrs, err := r.LookupHost(ctx, args[0])
	return strings.Join(addrs, " "), err
}

func connect(args []string) (string, error) {
	c, err := dial("tcp", proxy)
	if err != nil {
		return "", err
	}
	defer c.Close()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", args[0], args[0])
	r := bufio.NewReader(c)
	text, status, err := response(r)
	if err != nil || status != 200 {
		return text, errors.Join(err, fmt.Errorf("http %d", status))
	}
	return firstLine(c, r)
}

func absolute(args []string) (string, error) {
	c, err := dial("tcp", proxy)
	if err != nil {
		return "", err
	}
	defer c.Close()
	host, _, _ := strings.Cut(strings.TrimPrefix(args[0], "http://"), "/")
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", args[0], host)
	text, status, err := response(bufio.NewReader(c))
	if err == nil && status != 200 {
		err = fmt.Errorf("http %d", status)
	}
	return text, err
}

// response reads an answer's status, and its text unless it is the one to CONNECT.
func response(r *bufio.Reader) (text string, status int, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", 0, err
	}
	if f := strings.Fields(line); len(f) > 1 {
		status, _ = strconv.Atoi(f[1]) // 0 is not 200 either
	}
	for {
		field, err := r.ReadString('\n')
		if err != nil {
			return "", status, err
		}
		if strings.TrimSpace(field) == "" {
			break
		}
	}
	if strings.Contains(line, "established") {
		return "", status, nil
	}
	body, err := io.ReadAll(io.LimitReader(r, 64<<10))
	return string(body), status, err
}

func socks(args []string) (string, error) {
	host, portText, err := net.SplitHostPort(args[0])
	if err != nil {
		return "", err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return "", err
	}
	c, err := dial("tcp", proxy)
	if err != nil {
		return "", err
	}
	defer c.Close()
	where := append([]byte{3, byte(len(host))}, host...)
	if addr, err := netip.ParseAddr(host); err == nil {
		where = append([]byte{map[bool]byte{true: 1, false: 4}[addr.Is4()]}, addr.AsSlice()...)
	}
	request := slices.Concat([]byte{5, 1, 0, 5, 1, 0}, where, binary.BigEndian.AppendUint16(nil, uint16(port)))
	if _, err := c.Write(request); err != nil {
		return "", err
	}
	r := bufio.NewReader(c)
	var reply [12]byte
	if _, err := io.ReadFull(r, reply[:]); err != nil {
		return "", err
	}
	if reply[3] != 0 {
		return "", fmt.Errorf("socks %d", reply[3])
	}
	return firstLine(c, r)
}

// hold says when the connection stands, and what ended it.
func hold(args []string) (string, error) {
	c, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	r := bufio.NewReader(c)
	first, err := firstLine(c, r)
	if err != nil {
		return "", err
	}
	tell(finding{Probe: "holding " + args[0], Got: "ok", Text: first})
	for turns := 0; ; turns++ {
		c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, "again\n"); err != nil {
			return fmt.Sprint(turns, " turns"), err
		}
		if _, err := r.ReadString('\n'); err != nil {
			if errors.Is(err, io.EOF) {
				err = syscall.ECONNRESET
			}
			return fmt.Sprint(turns, " turns"), err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func upload(args []string) (string, error)   { return transfer(args, true) }
func download(args []string) (string, error) { return transfer(args, false) }

// transfer moves bytes one way, and returns the megabits in a second.
func transfer(args []string, up bool) (string, error) {
	if len(args) != 2 {
		return "", errors.New("want an address and a number")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return "", err
	}
	c, err := dial("tcp", args[0])
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Time{})
	start := time.Now()
	fmt.Fprintf(c, "%d\n", size)
	var n int64
	if up {
		buf := make([]byte, 256<<10)
		for n < size {
			m, err := c.Write(buf[:min(int64(len(buf)), size-n)])
			n += int64(m)
			if err != nil {
				return fmt.Sprint(n), err
			}
		}
		_, err = io.ReadFull(c, make([]byte, 1)) // the server has them all
	} else {
		n, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, size), make([]byte, 256<<10))
	}
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes of %d", n, size)
	}
	return fmt.Sprintf("%.0f", float64(n)*8/1e6/time.Since(start).Seconds()), err
}

func listen(args []string) (string, error) {
	l, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return "", err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "inside %s\n", os.Args[len(os.Args)-1])
			c.Close()
		}
	}()
	return "", nil
}

func raw(args []string) (string, error) {
	families := map[string][3]int{
		"packet": {syscall.AF_PACKET, syscall.SOCK_RAW, 0x0300},
		"icmp":   {syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP},
		"raw":    {syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW},
	}
	f, ok := families[args[0]]
	if !ok {
		return "", errors.New("unknown kind")
	}
	fd, err := syscall.Socket(f[0], f[1], f[2])
	if err == nil {
		syscall.Close(fd)
	}
	return "", err
}
