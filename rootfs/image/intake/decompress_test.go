package intake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/direct-oci/engine/rootfs/image/tree"
)

// noise is data that no compressor makes small, so that every window is used.
func noise(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

func zstdOf(t *testing.T, window int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithSingleSegment(false))
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func xzOf(t *testing.T, dictionary int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := xz.WriterConfig{DictCap: dictionary}.NewWriter(&b)
	if err == nil {
		_, err = w.Write(data)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWindows unpacks what asks for the most memory, several at a time.
func TestWindows(t *testing.T) {
	data := noise(80 << 20)
	large := zstdOf(t, maxWindow, data)
	largeXZ := append(xzOf(t, maxWindow, data[:1<<20]), xzOf(t, maxWindow, data[:1<<20])...)
	// As engine-image does, above what this test holds itself.
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(m.HeapAlloc) + MemoryLimit))
	peak := WatchHeap(t, func() {
		done := make(chan error)
		archives := [][]byte{large, large, largeXZ, large}
		for _, archive := range archives {
			go func() {
				r, _, err := decompress(t.Context(), bytes.NewReader(archive))
				if err == nil {
					_, err = io.Copy(io.Discard, r)
					r.Close()
				}
				done <- err
			}()
		}
		for range archives {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	// The window, what it is copied to when it moves, and rests of the one before.
	if peak > 100<<20 {
		t.Errorf("four decompressors took %d MiB together, want at most 100", peak>>20)
	}
	t.Logf("peak %d MiB", peak>>20)

	for name, archive := range map[string][]byte{
		"a window too large":       zstdOf(t, 2*maxWindow, data),
		"a later frame wants more": append(zstdOf(t, 1<<20, data[:2<<20]), zstdOf(t, 2*usualWindow, data)...),
		"a later block wants more": append(xzOf(t, 1<<20, data[:1<<20]), xzOf(t, 2*maxWindow, data[:1<<20])...),
		"a dictionary too large":   xzOf(t, 2*maxWindow, data[:1<<20]),
	} {
		r, _, err := decompress(t.Context(), bytes.NewReader(archive))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
			r.Close()
		}
		if err == nil {
			t.Errorf("%s was unpacked", name)
		}
		var limit *tree.LimitError
		if errors.As(err, &limit) && limit.Fix == "" {
			t.Errorf("%s: %v comes without a cure", name, err)
		}
	}
	// Whatever happened, all of the budget is back.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := windows.Acquire(ctx, maxWindow); err != nil {
		t.Fatalf("the budget was not given back: %v", err)
	}
	// One that waits can be interrupted.
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, _, err := decompress(ctx, bytes.NewReader(large)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for memory: %v, want the context's end", err)
	}
	windows.Release(maxWindow)
}

// WatchHeap returns how much the heap grew at most while f ran.
func WatchHeap(t *testing.T, f func()) int64 {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	start := int64(m.HeapSys - m.HeapReleased)
	done := make(chan struct{})
	peaks := make(chan int64)
	go func() {
		var peak int64
		for {
			runtime.ReadMemStats(&m)
			peak = max(peak, int64(m.HeapSys-m.HeapReleased)-start)
			select {
			case <-done:
				peaks <- peak
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	f()
	close(done)
	return <-peaks
}
