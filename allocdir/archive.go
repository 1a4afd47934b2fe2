// Copyright (c) nodekeep authors
// SPDX-License-Identifier: MPL-2.0

package allocdir

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/nodekeep/nodekeep/spec"
)

// The form of an archive is POSIX tar: directories before what is in them, regular
// files and symbolic links, each name once, owners as numbers; sockets, FIFOs and
// devices are left out, hard links become files of their own, setuid and setgid do
// not travel. Its last entry is the end mark: without it the archive was cut off.
const endMark = "nodekeep.end"

// What an archive may cost beside DiskLimits, bytes.
const (
	maxArchiveName = 4096     // a name or a link's target
	maxDirNames    = 64 << 20 // the names of all directories, which are remembered
	maxDiskDepth   = 256      // directories in each other
)

// ArchiveError says which entry of an archive is refused, and why. Nothing of the
// archive was kept.
type ArchiveError struct {
	Name   string // of the entry; "" when it is about the archive
	Reason string
}

func (e *ArchiveError) Error() string {
	if e.Name == "" {
		return "allocdir: archive refused: it " + e.Reason
	}
	return fmt.Sprintf("allocdir: archive refused: entry %.256q %s", e.Name, e.Reason)
}

// Send writes the disk of the alloc (alloc/data, and local of the tasks named) for
// Receive. Nothing may run in it any more. Parts that are not there are left out.
// It blocks as long as w does; ctx is looked at between entries and writes.
func (d *Dir) Send(ctx context.Context, w io.Writer, tasks []string) error {
	parts, err := diskParts(sortedTasks(tasks))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return fmt.Errorf("allocdir: send: %w", err)
	}
	defer root.Close()
	buf := bufio.NewWriterSize(writeFunc(bounded(ctx, w.Write)), 64<<10)
	p := packer{root: root, tw: tar.NewWriter(buf)}
	for _, part := range parts {
		fi, err := root.Lstat(filepath.FromSlash(part))
		if errors.Is(err, fs.ErrNotExist) || err == nil && !fi.IsDir() {
			continue
		}
		if err == nil {
			err = p.add(ctx, part, fi)
		}
		if err != nil {
			return fmt.Errorf("allocdir: send %s: %w", part, err)
		}
	}
	err = p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: endMark, Format: tar.FormatPAX})
	if err = errors.Join(err, p.tw.Close(), buf.Flush()); err != nil {
		return fmt.Errorf("allocdir: send: %w", err)
	}
	return nil
}

// readFunc and writeFunc are streams that end when a context does.
type (
	readFunc  func([]byte) (int, error)
	writeFunc func([]byte) (int, error)
)

func (f readFunc) Read(p []byte) (int, error)   { return f(p) }
func (f writeFunc) Write(p []byte) (int, error) { return f(p) }

func bounded(ctx context.Context, f func([]byte) (int, error)) func([]byte) (int, error) {
	return func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return f(p)
	}
}

type packer struct {
	root *os.Root
	tw   *tar.Writer
}

// add writes one entry, and those below it.
func (p *packer) add(ctx context.Context, name string, fi fs.FileInfo) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h := &tar.Header{Name: name, ModTime: fi.ModTime(), Mode: int64(fi.Mode().Perm()), Format: tar.FormatPAX}
	h.Uid, h.Gid = ownerOf(fi)
	local := filepath.FromSlash(name)
	switch {
	case fi.IsDir():
		h.Typeflag = tar.TypeDir
		if fi.Mode()&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := p.tw.WriteHeader(h); err != nil {
			return err
		}
		return p.below(ctx, name)
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(local)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return p.tw.WriteHeader(h)
	case fi.Mode().IsRegular():
		f, err := p.root.OpenFile(local, os.O_RDONLY|openNonblock, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		h.Typeflag, h.Size = tar.TypeReg, fi.Size()
		if err := p.tw.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.CopyN(p.tw, f, h.Size)
		return err
	}
	return nil
}

// below writes what is in a directory. No directory is open while another is looked
// at: a deep tree takes no descriptors, and a bound on depth its time.
func (p *packer) below(ctx context.Context, name string) error {
	if strings.Count(name, "/") > maxDiskDepth {
		return fmt.Errorf("%.64s… is more than %d directories deep: that does not travel", name, maxDiskDepth)
	}
	f, err := p.root.Open(filepath.FromSlash(name))
	if err != nil {
		return err
	}
	entries, err := f.Readdirnames(-1)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		below := name + "/" + e
		fi, err := p.root.Lstat(filepath.FromSlash(below))
		if err == nil {
			err = p.add(ctx, below, fi)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unpacker makes the entries of an archive below a directory that is its own. It
// never follows a link, because each parent must be a directory that it made.
type unpacker struct {
	root    *os.Root // the staging directory
	made    map[string]bool
	dirs    []*tar.Header // their modes are set last, the deepest first
	limits  DiskLimits
	bytes   int64
	names   int // bytes of the directories' names
	entries int
}

// unpack reads an archive into the directory arriving of shared.
func unpack(ctx context.Context, shared *os.Root, r io.Reader, lim DiskLimits) error {
	if err := shared.Mkdir(arriving, 0o700); err != nil {
		return fmt.Errorf("allocdir: receive: %w", err)
	}
	root, err := shared.OpenRoot(arriving)
	if err != nil {
		return fmt.Errorf("allocdir: receive: %w", err)
	}
	defer root.Close()
	u := unpacker{root: root, made: map[string]bool{}, limits: lim}
	tr := tar.NewReader(bufio.NewReaderSize(readFunc(bounded(ctx, r.Read)), 64<<10))
	for {
		h, err := tr.Next()
		switch {
		case err == io.EOF:
			return &ArchiveError{Reason: "ends without the end mark: the stream was cut off, send it again"}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("allocdir: receive: %w", err)
		case h.Name == endMark && h.Typeflag == tar.TypeReg && h.Size == 0:
			return u.finish()
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
}

// entry checks one entry and makes it.
func (u *unpacker) entry(h *tar.Header, data io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	refuse := func(format string, args ...any) error {
		return &ArchiveError{Name: h.Name, Reason: fmt.Sprintf(format, args...)}
	}
	top := strings.SplitN(name, "/", 3)
	switch u.entries++; {
	case u.entries > u.limits.Entries:
		return &ArchiveError{Reason: fmt.Sprintf("has more than %d entries", u.limits.Entries)}
	case len(name) > maxArchiveName || len(h.Linkname) > maxArchiveName:
		return refuse("has a name of more than %d bytes", maxArchiveName)
	case !plain(name):
		return refuse("is no plain relative path")
	case !inDisk(top):
		return refuse("is neither below %s/%s nor below %s of a task", sharedName, dataName, localName)
	case len(top) > 2 && !u.made[path.Dir(name)]:
		return refuse("is below something that is no directory of the archive")
	case len(top) == 2 && h.Typeflag != tar.TypeDir:
		return refuse("is %s, not a directory", kindName(h.Typeflag))
	}
	h.Name = name
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(h, len(top) == 2)
	case tar.TypeReg:
		if h.Size > u.limits.Bytes-u.bytes {
			return &ArchiveError{Reason: fmt.Sprintf("has more than %d bytes", u.limits.Bytes)}
		}
		u.bytes += h.Size
		err = u.file(h, data)
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return refuse("is a link to nothing")
		}
		if err = u.root.Symlink(h.Linkname, filepath.FromSlash(name)); err == nil {
			err = lchown(u.root, name, h)
		}
	default:
		return refuse("is %s: only directories, regular files and symbolic links travel", kindName(h.Typeflag))
	}
	if errors.Is(err, fs.ErrExist) {
		return refuse("comes twice, or differs from another only as this file system does not tell apart")
	}
	if err != nil {
		return fmt.Errorf("allocdir: receive %.256q: %w", name, err)
	}
	return nil
}

// plain says whether a name is a relative path without detours. Anything else that
// a file system takes may be in it, also what is not UTF-8.
func plain(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return !strings.Contains(name, "\x00") && filepath.IsLocal(filepath.FromSlash(name)) &&
		(runtime.GOOS != "windows" || !strings.Contains(name, "\\"))
}

// inDisk says whether a path, its first two elements apart, is of an alloc's disk.
func inDisk(top []string) bool {
	if len(top) < 2 {
		return false
	}
	return top[0] == sharedName && top[1] == dataName || top[1] == localName && spec.CheckName(top[0]) == nil
}

func kindName(k byte) string {
	switch k {
	case tar.TypeDir:
		return "a directory"
	case tar.TypeReg:
		return "a file"
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	}
	return fmt.Sprintf("of kind %q", k)
}

func (u *unpacker) directory(h *tar.Header, top bool) error {
	name := filepath.FromSlash(h.Name)
	if top {
		if err := u.root.Mkdir(filepath.Dir(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if u.names += len(name); u.names > maxDirNames {
		return &ArchiveError{Reason: fmt.Sprintf("has directories whose names take more than %d bytes", maxDirNames)}
	}
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	u.made[h.Name], u.dirs = true, append(u.dirs, h)
	return nil
}

func (u *unpacker) file(h *tar.Header, data io.Reader) error {
	name := filepath.FromSlash(h.Name)
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.set(h, fs.FileMode(h.Mode).Perm())
}

// set gives what was made its owner, then its mode, then its time.
func (u *unpacker) set(h *tar.Header, mode fs.FileMode) error {
	if err := lchown(u.root, h.Name, h); err != nil {
		return err
	}
	name := filepath.FromSlash(h.Name)
	if err := u.root.Chmod(name, mode); err != nil {
		return err
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

// finish sets the directories right, the deepest first, for one without the right
// to write would have taken no entry.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		h := u.dirs[i]
		mode := fs.FileMode(h.Mode).Perm()
		if h.Mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		if err := u.set(h, mode); err != nil {
			return fmt.Errorf("allocdir: receive %.256q: %w", h.Name, err)
		}
	}
	return nil
}
