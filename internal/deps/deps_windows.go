// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package deps

import _ "github.com/Microsoft/go-winio"
