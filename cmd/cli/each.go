package cli

import "github.com/direct-oci/engine/engine"

// done is what became of one of several things that were named.
type done struct {
	Name  string        `json:"name"`
	Error *engine.Error `json:"error"` // null: it was done
}

// Each does something to everything that is named, and goes on past what it fails for. It
// prints the names of what was done, or what became of each as JSON.
func (o *Output) Each(names []string, json bool, do func(name string) error) (failed bool, err error) {
	all := []done{}
	for _, name := range names {
		d := done{Name: name}
		if err := do(name); err != nil {
			d.Error = AsError(err)
			o.Say(d.Error.Message, d.Error.Fix)
			failed = true
		} else if !json {
			if err := o.Print(name + "\n"); err != nil {
				return failed, err
			}
		}
		all = append(all, d)
	}
	if json {
		return failed, o.PrintJSON(all)
	}
	return failed, nil
}
