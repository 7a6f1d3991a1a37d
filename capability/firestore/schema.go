package firestore

// The schemas of the arguments. What they cannot say, decoder says.

const definitions = `"$defs": {
    "field": {"type": "string", "minLength": 1, "description": "names with dots between; a name with a dot in it stands in backquotes; __name__ is the document's id"},
    "filter": {
      "type": "object", "additionalProperties": false, "minProperties": 1,
      "description": "{field, op, value}, {and: [filters]} or {or: [filters]}. Values: JSON, and {\"$timestamp\": \"...\"}, {\"$reference\": \"users/u1\"}, {\"$int\": \"...\"}, {\"$double\": \"NaN\"}, {\"$bytes\": \"...\"}, {\"$geoPoint\": {\"latitude\": 0, \"longitude\": 0}}",
      "properties": {
        "field": {"$ref": "#/$defs/field"},
        "op": {"enum": ["==", "!=", "<", "<=", ">", ">=", "in", "not-in", "array-contains", "array-contains-any"]},
        "value": {},
        "and": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/filter"}},
        "or": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/filter"}}
      }
    },
    "cursor": {"type": "array", "minItems": 1, "description": "a value for each of orderBy, or for the first of them"}
  }`

const selection = `
    "collection": {"type": "string", "minLength": 1, "description": "path, like users or users/u1/orders; with group, the id of collections at any depth"},
    "group": {"type": "boolean", "default": false},
    "where": {"type": "array", "items": {"$ref": "#/$defs/filter"}, "description": "all of these hold"}`

const querySchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object", "additionalProperties": false, "required": ["collection"],
  "properties": {` + selection + `,
    "orderBy": {
      "type": "array",
      "items": {
        "type": "object", "additionalProperties": false, "required": ["field"],
        "properties": {"field": {"$ref": "#/$defs/field"}, "direction": {"enum": ["asc", "desc"], "default": "asc"}}
      }
    },
    "startAt": {"$ref": "#/$defs/cursor"}, "startAfter": {"$ref": "#/$defs/cursor"},
    "endAt": {"$ref": "#/$defs/cursor"}, "endBefore": {"$ref": "#/$defs/cursor"},
    "select": {"type": "array", "items": {"$ref": "#/$defs/field"}, "description": "only these fields; [] is names alone"},
    "limit": {"type": "integer", "minimum": 1, "default": 100, "description": "documents in this page; the runner may give less"},
    "offset": {"type": "integer", "minimum": 0, "maximum": 100000, "default": 0, "description": "documents to skip before the first page; they are read and paid for"},
    "pageToken": {"type": "string", "minLength": 1, "maxLength": 1048576, "description": "nextPageToken of the page before, with otherwise the same arguments"}
  },
  ` + definitions + `
}`

const countSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object", "additionalProperties": false, "required": ["collection"],
  "properties": {` + selection + `
  },
  ` + definitions + `
}`

const getSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object", "additionalProperties": false, "required": ["collection", "id"],
  "properties": {
    "collection": {"type": "string", "minLength": 1, "description": "path, like users or users/u1/orders"},
    "id": {"type": "string", "minLength": 1},
    "select": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}, "description": "only these fields"}
  }
}`

const listSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object", "additionalProperties": false,
  "properties": {
    "document": {"type": "string", "minLength": 1, "description": "path of a document whose collections are listed; default: the top level"}
  }
}`
