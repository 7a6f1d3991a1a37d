package oci

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// MaxSize is the largest size that ParseSize accepts: 1 PiB.
const MaxSize = 1 << 50

// maxSizeText bounds what is parsed: no size needs more digits.
const maxSizeText = 40

// units by their lower-case name. kB, MB, GB and TB are powers of 1000; one
// letter is docker's and, like Kubernetes' Ki, a power of 1024.
var units = map[string]int64{
	"": 1, "b": 1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

// ParseSize reads a number of bytes: "512MiB", "1.5GiB", "1MB", docker's "256m"
// and "2g" (powers of 1024), Kubernetes' "1Gi", or plain "1048576". Upper and
// lower case are the same, and one space may stand before the unit. A fraction
// must come to whole bytes. Zero is a size; a caller to whom it means nothing
// refuses it. Negative sizes and those above MaxSize are errors, which say what is
// wrong and leave it to the caller to quote the text.
func ParseSize(s string) (int64, error) {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit, known := units[strings.ToLower(s[len(number):])]
	number = strings.TrimSuffix(number, " ")
	whole, fraction, dotted := strings.Cut(number, ".")
	switch {
	case len(s) > maxSizeText:
		return 0, fmt.Errorf("longer than %d characters", maxSizeText)
	case strings.HasPrefix(number, "-"):
		return 0, errors.New("negative")
	case !isDigits(whole) || dotted && !isDigits(fraction):
		return 0, errors.New("not a number with a unit, like 512MiB")
	case !known:
		return 0, errors.New("unknown unit; B, kB, MB, GB, TB, KiB, MiB, GiB and TiB are known, and 256m, 1Gi")
	}
	bytes, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, errors.New("not a number")
	}
	bytes.Mul(bytes, new(big.Rat).SetInt64(unit))
	if bytes.Cmp(new(big.Rat).SetInt64(MaxSize)) > 0 {
		return 0, errors.New("above 1PiB")
	}
	if !bytes.IsInt() {
		return 0, errors.New("not a whole number of bytes")
	}
	return bytes.Num().Int64(), nil
}

// FormatSize writes bytes in the largest binary unit that leaves no fraction, so
// that ParseSize gives the same number back.
func FormatSize(bytes int64) string {
	names := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for bytes != 0 && bytes%1024 == 0 && i < len(names)-1 {
		bytes, i = bytes/1024, i+1
	}
	return strconv.FormatInt(bytes, 10) + names[i]
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
