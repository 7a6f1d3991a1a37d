// Package firestore is the capabilities that read a Firestore database: query, get,
// count and listCollections.
//
// A Database is one environment's: which database, by what credentials, how much of it
// a call may read, and which fields nobody may see. Connectors makes the capabilities
// of a project's databases. Arguments are decoded whole before anything is connected
// to, and everything that is wrong with them is said at once.
//
// Values travel as JSON; what JSON has no form for is an object with one key that
// begins with a dollar sign, the same in arguments and results (value.go has the
// table). Pages are continued by a token that is worth nothing with another query.
//
// A connection is made by the first call, kept for the next ones, and closed by Close.
// It goes from the host's own network: no sandbox and no egress policy is involved.
package firestore
