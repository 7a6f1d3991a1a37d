// Package guest is the engine's side of /.engine/guest, the program by which it gives a
// program of a sandbox a terminal and reaches the sandbox's files. Both protocols are
// described in the program's sources: the framed keys of a terminal at the head of
// cmd/engine-guest/pty.c, the requests about files at the head of cmd/engine-guest/files.c.
//
// The program runs as any other of the sandbox, with the sandbox's rights and no more, so
// nothing here confines it; but neither is it believed.
//
// SECURITY: nothing that comes from a sandbox is taken for what it should be.
// The programs of the sandbox have the guest's user id. They can answer in its place, with
// names that lead out of a directory, sizes that exhaust memory, or never.
// Holds because: every size is bounded before anything is allocated, an answer must belong
// to a request that is waiting, names must be names, the first thing that is not of the
// protocol ends the conversation, what is read of a tree is bounded, and every wait ends with
// its context or with the guest's silence.
// Not covered: what files say; their times, sizes and modes are the sandbox's own words.
// Checked by: TestHostileGuest, TestEndlessTrees, TestStoppedGuest.
package guest
