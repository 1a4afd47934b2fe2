// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
)

var commitUpgradeCommand = command{
	name: "commit-upgrade", short: "ends a pending upgrade of the node's state: there is no way back from it",
	long: `After a new version of the node has started, its state is written so that the
version of before can be put back, with all that happened meanwhile, for 24 hours
that the node runs. This command ends that now. A copy of the state of before is
kept beside state.db.`,
	bind: func(a *app, _ *flag.FlagSet) func(context.Context, []string) error {
		return func(ctx context.Context, args []string) error {
			if len(args) > 0 {
				return usage("commit-upgrade takes no arguments")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			u, err := c.CommitUpgrade(ctx)
			switch {
			case err != nil:
				return err
			case a.json:
				return a.printJSON(u)
			case !u.Committed:
				fmt.Fprintln(a.stdout, "no upgrade is pending")
			default:
				fmt.Fprintf(a.stdout, "the state is of layout %d now; layout %d is a thing of the past\n", u.To, u.From)
			}
			return nil
		}
	},
}
