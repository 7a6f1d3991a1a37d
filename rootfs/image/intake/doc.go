// Package intake takes images in from everywhere but the network, and gives them out
// again: root file systems (directories and tar archives), OCI layouts (directories
// and archives) and docker save's archives. What comes from a registry passes through
// the same steps, see Source.
//
// Nothing that comes in is trusted. Documents are small, unambiguous and of known
// kinds, or refused. Every blob is checked against its digest and its size while it
// streams by, and never held in memory. This process decompresses and hashes; a child
// without rights, network and a view of the host takes the plain archive apart, see
// Unpacker. An import that fails leaves nothing, one that is killed a temporary
// directory which the next one removes.
package intake
