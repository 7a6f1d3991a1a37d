package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/direct-oci/engine/engine"
)

// Streams prints what a program wrote: stdout on stdout, stderr on stderr, on a terminal
// escaped unless it is to be raw. What is missing is told on stderr at the place where it
// is: stdout has nothing but what the program wrote.
type Streams struct {
	out     *Output
	sinks   [2]sink
	dropped [2]int64
}

// Piece is a part of what a program wrote, as it is on record.
type Piece struct {
	Stderr  bool
	Data    []byte
	Dropped int64 // bytes that are missing here
	Tail    bool  // Data is the last of what was dropped
}

var streamNames = [2]string{"stdout", "stderr"}

// NewStreams prints to two files, and says to o what is missing.
func NewStreams(o *Output, stdout, stderr *os.File, raw bool) *Streams {
	s := &Streams{out: o, sinks: [2]sink{{file: stdout}, {file: stderr}}}
	for i := range s.sinks {
		if !raw && IsTerminal(s.sinks[i].file.Fd()) {
			s.sinks[i].escaper = &Escaper{}
		}
	}
	return s
}

// Add prints the next piece.
func (s *Streams) Add(p Piece) error {
	i := 0
	if p.Stderr {
		i = 1
	}
	s.dropped[i] += p.Dropped
	if p.Tail {
		// The last of what was dropped is here after all.
		s.sayGap(i, s.dropped[i]-int64(len(p.Data)), "here")
		s.dropped[i] = 0
	}
	return printed(s.sinks[i].write(p.Data))
}

// End prints what is left when nothing follows.
func (s *Streams) End() error {
	for i := range s.sinks {
		if err := s.sinks[i].end(); err != nil {
			return printed(err)
		}
	}
	s.sayGap(0, s.dropped[0], "at its end")
	s.sayGap(1, s.dropped[1], "at its end")
	return nil
}

func (s *Streams) sayGap(stream int, bytes int64, where string) {
	if bytes > 0 {
		s.out.Say(fmt.Sprintf("%d bytes of %s were not kept %s", bytes, streamNames[stream], where), "")
	}
}

func printed(err error) error {
	if err != nil {
		return engine.Failed("no_output", "cannot print the output: %w", err)
	}
	return nil
}

// sink is where one stream is printed, as it stands or escaped.
type sink struct {
	file    *os.File
	escaper *Escaper // nil: as it stands
}

func (s *sink) write(data []byte) error {
	if s.escaper != nil {
		data = []byte(s.escaper.Add(data))
	}
	_, err := s.file.Write(data)
	return err
}

func (s *sink) end() error {
	if s.escaper == nil {
		return nil
	}
	_, err := io.WriteString(s.file, s.escaper.End())
	return err
}
