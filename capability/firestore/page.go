package firestore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/proto"

	"github.com/direct-oci/engine/capability/jsjson"
)

// ordered is what was asked for, then the fields that are compared otherwise than for
// equality, in the direction of the last that was asked for. Firestore orders so by
// itself; here it is written down, because a page ends at values of it.
func (q query) ordered() []order {
	orders := slices.Clone(q.orders)
	for _, path := range slices.SortedFunc(slices.Values(q.unequal), slices.Compare) {
		if path[0] != documentID { // which comes last, by itself
			orders = with(orders, path)
		}
	}
	return orders
}

// full is ordered and then the name, which makes every place the only one of its kind.
func (q query) full() []order { return with(q.ordered(), []string{documentID}) }

// with adds a field to an order that has it not.
func with(orders []order, path []string) []order {
	if slices.ContainsFunc(orders, func(o order) bool { return slices.Equal(o.path, path) }) {
		return orders
	}
	return append(orders, order{path, len(orders) > 0 && orders[len(orders)-1].desc})
}

// binding is what a page token is bound to: the database and every argument but the
// token itself and how long a page is.
func binding(c Config, args map[string]any) ([]byte, error) {
	rest := map[string]any{}
	for k, v := range args {
		if k != "pageToken" && k != "limit" {
			rest[k] = v
		}
	}
	return jsjson.Canonical(map[string]any{"root": c.root(), "args": rest})
}

// sealed is a page token: where the page before ended, and proof that this runner said
// so for this query.
//
// SECURITY: a page token is worth nothing with another query, database or runner.
// One that is made up, or carried over, would begin a page wherever its maker likes.
// Holds because: it begins with an HMAC of the query and of the place, checked before the
// place is read. Not covered: the place can be read out of it, of fields that its
// query orders by. Checked by: TestPageTokenIsBound.
func sealed(key, binding []byte, values []*pb.Value) (string, error) {
	place, err := proto.Marshal(&pb.ArrayValue{Values: values})
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(append(seal(key, binding, place), place...)), nil
}

var errToken = errors.New("it is not one that this runner gave for this query of this database")

// opened returns the place of a page token.
func opened(key, binding []byte, token string) ([]*pb.Value, error) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < sha256.Size || !hmac.Equal(data[:sha256.Size], seal(key, binding, data[sha256.Size:])) {
		return nil, errToken
	}
	var place pb.ArrayValue
	if err := proto.Unmarshal(data[sha256.Size:], &place); err != nil {
		return nil, errToken
	}
	return place.GetValues(), nil
}

func seal(key, binding, place []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("firestore page token v1\x00"))
	sum := sha256.Sum256(binding)
	mac.Write(sum[:])
	mac.Write(place)
	return mac.Sum(nil)
}

// place is where a document stands in an order.
func place(orders []order, doc *pb.Document) ([]*pb.Value, error) {
	var values []*pb.Value
	for _, o := range orders {
		v := referenceValue(doc.GetName())
		if o.path[0] != documentID {
			v = valueAt(doc.GetFields(), o.path)
		}
		if v == nil {
			return nil, errors.New("a document came without the field " + quoted(o.path) + ", by which the query is ordered")
		}
		values = append(values, v)
	}
	return values, nil
}
