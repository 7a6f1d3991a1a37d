// Package network proves what a run may reach, from the program inside to the wires
// outside, by the built programs alone.
//
//	sandbox ── gateway    the namespace that plays      veth    the one that plays
//	           (engine)   the host: engine runs here  ───────── the internet
//	                      203.0.113.1, 10.9.9.9                 every address answers
//
// The far side answers on every address, the forbidden ones too, and a sniffer there
// sees each packet, so that whatever leaks is seen twice. Nothing of the machine's own
// network is touched: both namespaces are the test's own and end with it, and so do
// the engine's directories and its cgroup. The tests need root and a cgroup2 mount. In
// the test machine they take a sample; make test-network takes everything, natively.
package network
