// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package deps holds the module's dependencies until their users are written.
package deps

import (
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/hcl/v2"
	_ "github.com/hashicorp/hcl/v2/ext/dynblock"
	_ "github.com/hashicorp/hcl/v2/ext/tryfunc"
	_ "github.com/hashicorp/hcl/v2/ext/typeexpr"
	_ "github.com/hashicorp/hcl/v2/gohcl"
	_ "github.com/hashicorp/hcl/v2/hcldec"
	_ "github.com/hashicorp/hcl/v2/hclsyntax"
	_ "github.com/hashicorp/hcl/v2/json"
	_ "github.com/stretchr/testify/require"
	_ "github.com/zclconf/go-cty/cty/function/stdlib"
	_ "go.etcd.io/bbolt"
	_ "golang.org/x/sys/unix"
)
