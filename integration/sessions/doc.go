// Package sessions proves what long-lived sandboxes promise: it runs programs in them
// by the Go API, as a service would, and takes away clients, monitors and time.
package sessions
