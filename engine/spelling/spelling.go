// Package spelling finds the name that somebody meant who mistyped it. It is pure.
package spelling

// Nearest returns the name that is most likely meant by a mistyped one, "" if
// none is close: at most a third of its letters may differ.
func Nearest(typed string, names []string) string {
	best, bestDistance := "", len(typed)/3+1
	for _, name := range names {
		if d := distance(typed, name); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace, or swap with their
// neighbour to turn a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
