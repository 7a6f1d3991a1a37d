package wire

import (
	"encoding/json"
	"time"
)

// Capability is one thing that may be asked for.
type Capability struct {
	Project     string          `json:"project"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Hazard      string          `json:"hazard" doc:"read, write or unknown"`
	Kind        string          `json:"kind" doc:"connector, action or workload"`
	Params      json.RawMessage `json:"params" doc:"JSON Schema of the arguments"`
}

// CapabilityList is what may be asked for, and what cannot be offered.
type CapabilityList struct {
	Capabilities []Capability `json:"capabilities"`
	Problems     []Problem    `json:"problems"`
}

// Problem is a capability that cannot be offered.
type Problem struct {
	Project string `json:"project"`
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Call asks for a capability.
type Call struct {
	Environment    string          `json:"environment,omitempty" doc:"of the project, where it has several"`
	Args           json.RawMessage `json:"args,omitempty" doc:"as the capability's schema says; default {}"`
	Approval       *Envelope       `json:"approval,omitempty" doc:"for what is no read; see engine approve"`
	ApproveLocally bool            `json:"approveLocally,omitempty" doc:"do without an approval, where the config is in development mode"`
}

// Envelope is a signed statement.
type Envelope struct {
	Payload   []byte `json:"payload" doc:"base64"`
	KeyID     string `json:"keyId"`
	Signature []byte `json:"signature" doc:"base64"`
}

// Reply is what came of a call.
type Reply struct {
	ID      string          `json:"id" doc:"of the call, in the audit log"`
	Output  json.RawMessage `json:"output" doc:"the capability's own"`
	Receipt *Envelope       `json:"receipt" doc:"signed, about what ran; null: nothing ran"`
}

// Progress is one line that a call has to say while it goes on.
type Progress struct {
	Line string `json:"line"`
}

// ImageList is the images of the store, in the order of their names.
type ImageList struct {
	Images []Image `json:"images"`
}

// Image is one image under one name.
type Image struct {
	Name     string      `json:"name"`
	Digest   string      `json:"digest"`
	Kind     string      `json:"kind" doc:"what it was made of"`
	Source   string      `json:"source"`
	Platform string      `json:"platform"`
	Size     int64       `json:"size" doc:"bytes of its layers on disk"`
	Shared   int64       `json:"shared" doc:"of which other images have too; 0 except in a list"`
	Created  time.Time   `json:"created"`
	Layers   []Layer     `json:"layers"`
	Config   ImageConfig `json:"config"`
}

// Layer is one layer of an image, from the bottom.
type Layer struct {
	Digest string `json:"digest"`
	DiffID string `json:"diffId"`
	Size   int64  `json:"size"`
}

// ImageConfig is what an image says about its program.
type ImageConfig struct {
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
	Env        []string `json:"env"`
	Workdir    string   `json:"workdir"`
	User       string   `json:"user"`
}
