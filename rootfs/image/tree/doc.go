// Package tree writes a directory tree from entries that nobody vouches for, below
// one directory and nowhere else, and reads such trees back.
//
// A Writer takes entries one after the other, as an archive or a directory has them.
// With Layer set it also understands the marks by which a layer of an image removes
// what the layers below it hold, and keeps them as overlayfs does, so that the tree
// can be one of an overlay's directories. Walk visits a tree, Inspect describes one.
//
// Owners and modes need CAP_CHOWN, CAP_FOWNER and CAP_DAC_OVERRIDE, in a user
// namespace that maps the owners at least. What a failed write leaves behind is the
// caller's to remove, together with the whole tree.
package tree
