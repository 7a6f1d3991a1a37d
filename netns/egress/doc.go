// Package egress decides what a sandbox may reach, and carries it there.
//
// It is the user-space half of a run's gateway. In the gateway's namespace every
// address is local, so whatever the sandbox dials ends at a listener of this
// package; the listener decides, resolves and dials anew from the host's own
// namespace. Nothing is forwarded.
//
//	sandbox                 gateway namespace                    host namespace
//	 look-up ─────────────> DNS: allowed name → 198.18.x.y
//	 connect 198.18.x.y ──> that address is a name ────────────> resolve, filter, dial
//	 connect 203.0.113.9 ─> that address is itself ────────────> dial
//	 CONNECT, SOCKS5 ─────> proxy: a name or an address ───────> the same two ways
//
// A Policy is plain data: names, address ranges, or everything public. One
// function, decide, answers for every route in. Names have one canonical form
// (Canonical), which is both what is matched and what is dialled. The addresses
// that stay closed in every mode are in never.go, and are checked on each answer
// of the resolver and once more on the socket that is about to connect.
//
// Serve starts with the policy in force and leaves nothing behind after Close.
// Policies are checked, explained and matched without any privilege; Serve needs
// a Gateway, which owns the namespace.
package egress
