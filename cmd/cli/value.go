package cli

import (
	"math"
	"strconv"
	"time"
)

// ParseDuration reads a time: 120s, 2m, 1h30m, or a number of seconds.
func ParseDuration(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		ns := seconds * float64(time.Second)
		if math.IsNaN(ns) || ns < 0 || ns >= math.MaxInt64 {
			return 0, strconv.ErrRange
		}
		return time.Duration(ns), nil
	}
	return time.ParseDuration(text)
}
