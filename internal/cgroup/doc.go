// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

// Package cgroup tracks processes: every process of a task is in the task's own
// cgroup, from its first instruction on, and nothing else is. That is what lets
// a stop reach daemons that forked twice. Limits are set by drivers that have
// them; this package only makes, finds, kills and removes.
//
//	<root>/                     of the hierarchy, or what is delegated to us in it
//	  nodekeep.slice/
//	    <agent id>/             nothing outside is ever touched
//	      <alloc>.<task>.scope  one task; made anew before every start
//	        …                   what the task made for itself
//
// Of the hierarchies of a host the first usable one is taken: the v2 tree, also
// on hosts whose controllers are all in v1 (tracking needs none), else the v1
// freezer. Without any, paths are "" and all else is a no-op.
//
// The package is loaded before every start of a supervisor: standard library
// only, and little of it.
package cgroup
