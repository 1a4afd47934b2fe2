// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package driver

// Schema describes a configuration as plain data: what the plugin wire carries
// and what driverconfig decodes against. It is a tree of the ten kinds below.
type Schema struct {
	Kind SchemaKind `json:"kind"`

	Attrs   map[string]*Schema `json:"attrs,omitempty"`    // Object
	Items   []*Schema          `json:"items,omitempty"`    // Array (a tuple)
	Nested  *Schema            `json:"nested,omitempty"`   // Block, BlockList, BlockSet, BlockMap; primary of Default
	Name    string             `json:"name,omitempty"`     // Attr, Block…: as written in the file; "" is the key of the parent Object
	Type    string             `json:"type,omitempty"`     // Attr, BlockAttrs: string, number, bool, any, list(string), map(string), list(map(string)) …
	Req     bool               `json:"required,omitempty"` // Attr, Block, BlockAttrs
	Min     int64              `json:"min,omitempty"`      // BlockList, BlockSet
	Max     int64              `json:"max,omitempty"`      // 0 is no bound
	Labels  []string           `json:"labels,omitempty"`   // BlockMap
	Default *Schema            `json:"default,omitempty"`  // Default: what stands in when Nested has no value
	Literal string             `json:"literal,omitempty"`  // Literal: an HCL expression such as "true" or "\"x\""
}

// SchemaKind is one of the ten kinds of specification the plugin wire knows.
type SchemaKind string

// The kinds.
const (
	KindObject     SchemaKind = "object"
	KindArray      SchemaKind = "array"
	KindAttr       SchemaKind = "attr"
	KindBlock      SchemaKind = "block"
	KindBlockAttrs SchemaKind = "block_attrs"
	KindBlockList  SchemaKind = "block_list"
	KindBlockSet   SchemaKind = "block_set"
	KindBlockMap   SchemaKind = "block_map"
	KindDefault    SchemaKind = "default"
	KindLiteral    SchemaKind = "literal"
)

// Object, Attr, … build schemas in code.

// Object is a schema whose attributes are named by attrs.
func Object(attrs map[string]*Schema) *Schema { return &Schema{Kind: KindObject, Attrs: attrs} }

// Attr is one attribute of the given HCL type expression.
func Attr(typ string, required bool) *Schema {
	return &Schema{Kind: KindAttr, Type: typ, Req: required}
}

// Default gives s a default, written as an HCL expression.
func Default(s *Schema, literal string) *Schema {
	return &Schema{Kind: KindDefault, Nested: s, Default: &Schema{Kind: KindLiteral, Literal: literal}}
}
