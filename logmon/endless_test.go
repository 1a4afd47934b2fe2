// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package logmon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nodekeep/nodekeep/logmon/internal/logdir"
)

// A task plants a file with the number that no file can follow, before its log
// begins or amid it, and the collector starts anew or not: the log goes on, is
// found, and never has more files than allowed.
func TestPlantedNumber(t *testing.T) {
	for _, n := range []uint64{1<<63 - 1, 1 << 63, 1<<62 - 1, 1 << 62, 1<<62 - 2, logdir.Limit, logdir.Limit - 1, logdir.Limit - collisions, logdir.Limit - collisions - 1, 1 << 31} {
		for _, restarted := range []bool{false, true} {
			for before := range 3 {
				t.Run(fmt.Sprint(n, restarted, before), func(t *testing.T) {
					dir := t.TempDir()
					cfg := RotateConfig{Dir: dir, Base: base, MaxSize: 32, MaxFiles: 3}
					r := NewRotator(cfg)
					line := 0
					write := func(lines int) {
						for range lines {
							put(t, r, fmt.Sprintf("line %03d\n", line))
							line++
						}
					}
					write(before * 10)
					require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s.%d", base, n)), nil, 0o644))
					if restarted {
						require.NoError(t, r.Close())
						r = NewRotator(cfg)
					}
					write(200)
					require.NoError(t, r.Close())
					indices, contents := files(t, dir)
					require.LessOrEqual(t, len(indices), 3)
					require.Equal(t, "line "+fmt.Sprintf("%03d", line-1)+"\n", contents[len(contents)-1][len(contents[len(contents)-1])-9:])
					all, err := os.ReadDir(dir)
					require.NoError(t, err)
					require.LessOrEqual(t, len(all), 4, "the planted one besides")
				})
			}
		}
	}
}
