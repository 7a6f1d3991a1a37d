package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/direct-oci/engine/cmd/cli"
	"github.com/direct-oci/engine/engine"
	"github.com/direct-oci/engine/oci"
)

// value is a flag's value that says itself what is wrong with a text.
type value struct {
	typ string // as --help names it
	def string // as --help shows it
	set func(text string) error
}

func (v *value) String() string { return v.def }
func (v *value) Type() string   { return v.typ }

// Set takes the text. A flag whose value was forgotten gets the next argument for one,
// which is told where that is what it looks like.
func (v *value) Set(text string) error {
	err := v.set(text)
	var e *engine.Error
	if errors.As(err, &e) && e.Fix == "" && strings.HasPrefix(text, "--") {
		e.Fix = "give the flag a value before " + text
	}
	return err
}

// dirFlag defines a flag of a directory. An empty one is refused: it is what a script
// gives whose variable is not set, and does not mean the default.
func dirFlag(flags *pflag.FlagSet, p *string, name, usage string) {
	flags.Var(&value{typ: "DIR", def: *p, set: func(text string) error {
		if text == "" {
			return engine.Refused("bad_flag", "cannot accept --%s=%q: it names no directory", name, text).
				WithFix("leave the flag out for the default")
		}
		*p = text
		return nil
	}}, name, usage)
}

// sizeFlag defines a flag of a number of bytes. Its default is the value of p,
// shown as def.
func sizeFlag(flags *pflag.FlagSet, p *int64, name, def, usage string) {
	flags.Var(&value{typ: "SIZE", def: def, set: func(text string) error {
		n, err := parseSize(name, text)
		if err != nil {
			return err
		}
		*p = n
		return nil
	}}, name, usage)
}

// roomFlag defines a flag of the size of a directory, whose zero is the default.
func roomFlag(flags *pflag.FlagSet, p *int64, name, usage string) {
	flags.Var(&value{typ: "SIZE", set: func(text string) error {
		n, err := parseSize(name, text)
		if err != nil {
			return err
		}
		if n == 0 {
			return engine.Refused("bad_limit", "cannot accept --%s=%q: want 4KiB or more", name, text).
				WithFix("leave the flag out for the default")
		}
		*p = n
		return nil
	}}, name, usage)
}

func parseSize(name, text string) (int64, error) {
	n, err := oci.ParseSize(text)
	if err != nil {
		return 0, engine.Refused("bad_limit", "cannot accept --%s=%.40q: %w", name, text, err)
	}
	return n, nil
}

// minimumFlag defines a flag of a minimum of engine.Host, whose zero is the default.
func minimumFlag(flags *pflag.FlagSet, p *int64, name, usage string) {
	flags.Var(&value{typ: "SIZE", def: "64MiB", set: func(text string) error {
		n, err := parseSize(name, text)
		if err != nil {
			return err
		}
		if *p = n; n == 0 {
			*p = -1
		}
		return nil
	}}, name, usage)
}

// durationFlag defines a flag of a time: 120s, 2m, 1h30m, or a number of seconds.
func durationFlag(flags *pflag.FlagSet, p *time.Duration, name, usage string) {
	flags.Var(&value{typ: "DURATION", def: fmt.Sprintf("%gs", p.Seconds()), set: func(text string) error {
		d, err := cli.ParseDuration(text)
		if err != nil {
			return engine.Refused("bad_limit", "cannot accept --%s=%q: want a time like 120s, 2m or 1h30m", name, text)
		}
		*p = d
		return nil
	}}, name, usage)
}

// numberFlag defines a flag of a number, whole or not as parse has it.
func numberFlag[T int64 | float64](flags *pflag.FlagSet, p *T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&value{typ: "NUMBER", def: fmt.Sprint(*p), set: func(text string) error {
		n, err := parse(text)
		if err != nil {
			return engine.Refused("bad_limit", "cannot accept --%s=%q: not a number", name, text)
		}
		*p = n
		return nil
	}}, name, usage)
}

func parseFloat(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
func parseInt(text string) (int64, error)     { return strconv.ParseInt(text, 10, 64) }

// pairFlag defines a repeatable flag of NAME=VALUE.
func pairFlag(flags *pflag.FlagSet, name, typ, usage string, add func(key, val string, hasVal bool) error) {
	flags.Var(&value{typ: typ, set: func(text string) error {
		key, val, ok := strings.Cut(text, "=")
		return add(key, val, ok)
	}}, name, usage)
}
