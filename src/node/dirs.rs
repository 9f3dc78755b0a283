//! Directories by descriptor. Nothing here follows a link, or crosses a mount point below the start directory.

use std::{
    ffi::{OsStr, OsString},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2, readlinkat},
    unistd::{UnlinkatFlags, Whence, lseek, unlinkat},
};
use rustix::fs::{AtFlags, RawDir, StatxFlags, statx};

use super::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno_of},
};

mod read;
mod tree;

pub use read::EntryInfo;

/// Resolve flags for everything below a directory.
const RESOLVE: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

/// Flags for a directory that is read and removed from. Without `NOFOLLOW`, so that a link as last component also fails
/// with `ELOOP`.
const OPEN_FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK);

/// An open directory, from which entries can be removed.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    location: Location,
}

/// Which directory it is, and on which mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Location {
    id: DirId,
    /// Only known since Linux 5.8.
    mount: Option<u64>,
}

/// Identity of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirId {
    device: (u32, u32),
    inode: u64,
}

// === impl Dir ===

impl Dir {
    /// Opens a directory by its absolute path, which must not contain symlinks; `None` if it does not exist.
    pub fn open(path: &Path) -> Result<Option<Self>, Fault> {
        Self::opened(
            open(AT_FDCWD, path.as_os_str(), OPEN_FLAGS, ResolveFlag::RESOLVE_NO_SYMLINKS),
            path.to_owned(),
        )
    }

    /// Opens a directory below this one, on the same mount; `None` if it does not exist.
    pub fn open_below(&self, relative: impl AsRef<Path>) -> Result<Option<Self>, Fault> {
        let relative = relative.as_ref();
        let path = self.path.join(relative);
        if relative.as_os_str().is_empty() || !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Fault::new("open", &self.path, Cause::BadName(relative.into())));
        }
        let Some(dir) = Self::opened(open(&self.fd, relative.as_os_str(), OPEN_FLAGS, RESOLVE), path)? else {
            return Ok(None);
        };
        if !dir.location.is_on_mount_of(self.location) {
            return Err(Fault::new("open", &dir.path, Cause::OtherFileSystem));
        }
        Ok(Some(dir))
    }

    fn opened(result: nix::Result<OwnedFd>, path: PathBuf) -> Result<Option<Self>, Fault> {
        let fd = match result {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Fault::new("open", path, errno)),
        };
        match location(&fd) {
            Ok(location) => Ok(Some(Self { fd, path, location })),
            Err(errno) => Err(Fault::new("stat", path, errno)),
        }
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its own name, for messages and UIDs.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Names of all entries.
    pub fn names(&self) -> Result<Vec<OsString>, Fault> {
        let fault = |errno| Fault::new("list", &self.path, Cause::Errno(errno));
        lseek(&self.fd, 0, Whence::SeekSet).map_err(fault)?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&self.fd, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) if is_dots(entry.file_name().to_bytes()) => {}
                Ok(entry) => names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned()),
                // The directory has been removed since it was opened.
                Err(rustix::io::Errno::NOENT) => break,
                Err(errno) => return Err(fault(errno_of(errno))),
            }
        }
        Ok(names)
    }

    /// Target of the symlink `name`; `None` if it is no symlink or does not exist.
    pub fn link_target(&self, name: &OsStr) -> Result<Option<PathBuf>, Fault> {
        self.check(name, "read the link")?;
        match readlinkat(&self.fd, name) {
            Ok(target) => Ok(Some(target.into())),
            Err(Errno::ENOENT | Errno::EINVAL) => Ok(None),
            Err(errno) => Err(Fault::new("read the link", self.path.join(name), errno)),
        }
    }

    /// Removes the entry `name`, which must not be a directory.
    pub fn remove_file(&self, name: &OsStr, effects: &Effects) -> Result<Outcome, Fault> {
        self.remove_one(name, UnlinkatFlags::NoRemoveDir, effects)
    }

    /// Removes the entry `name`, which must be an empty directory.
    pub fn remove_empty(&self, name: &OsStr, effects: &Effects) -> Result<Outcome, Fault> {
        self.remove_one(name, UnlinkatFlags::RemoveDir, effects)
    }

    fn remove_one(&self, name: &OsStr, kind: UnlinkatFlags, effects: &Effects) -> Result<Outcome, Fault> {
        self.check(name, "remove")?;
        let path = self.path.join(name);
        match effects.perform("remove", &path, || unlinkat(&self.fd, name, kind))? {
            Ok(()) => Ok(Outcome::Done),
            // A name that is too long for the file system cannot exist.
            Err(Errno::ENOENT | Errno::ENAMETOOLONG) => Ok(Outcome::Nothing),
            Err(errno) => Err(Fault::new("remove", &path, errno)),
        }
    }

    fn check(&self, name: &OsStr, verb: &'static str) -> Result<(), Fault> {
        if is_name(name) {
            Ok(())
        } else {
            Err(Fault::new(verb, &self.path, Cause::BadName(name.into())))
        }
    }
}

/// Whether this is a plain file name: no `/`, `.` or `..`.
pub fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && !is_dots(bytes) && !bytes.contains(&b'/') && !bytes.contains(&0)
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

// === impl Location ===

impl Location {
    /// Compares mounts by ID if known: a btrfs subvolume has its own device number on its parent's mount.
    fn is_on_mount_of(self, other: Self) -> bool {
        match (self.mount, other.mount) {
            (Some(mount), Some(other)) => mount == other,
            _ => self.id.device == other.id.device,
        }
    }
}

/// Opens a path relative to a directory.
fn open(dir: impl AsFd, path: &OsStr, flags: OFlag, resolve: ResolveFlag) -> nix::Result<OwnedFd> {
    openat2(dir, path, OpenHow::new().flags(flags).resolve(resolve))
}

fn location(fd: impl AsFd) -> nix::Result<Location> {
    let found = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID).map_err(errno_of)?;
    let has_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Ok(Location {
        id: DirId {
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
        },
        mount: has_mount.then_some(found.stx_mnt_id),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, os::unix::fs::symlink};

    use proptest::prelude::*;

    use super::*;

    fn temp() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(&temp.path().canonicalize().unwrap()).unwrap().unwrap();
        (temp, dir)
    }

    fn remove(dir: &Dir, name: &str) -> Result<Outcome, Vec<Fault>> {
        dir.remove_tree(OsStr::new(name), &Effects::ungated())
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        let (temp, dir) = temp();
        fs::create_dir(temp.path().join("keep")).unwrap();
        for name in ["", ".", "..", "a/b", "/", "/etc", "../x", "a\0b"] {
            let faults = remove(&dir, name).unwrap_err();
            assert!(matches!(faults[0].cause, Cause::BadName(_)), "{name:?}: {faults:?}");
            assert!(
                matches!(dir.open_below(name), Err(Fault { .. })) || name == "a/b",
                "{name:?}"
            );
        }
        assert!(temp.path().join("keep").exists());
    }

    #[test]
    fn missing_entry_counts_as_removed() {
        let (_temp, dir) = temp();
        assert_eq!(remove(&dir, "missing"), Ok(Outcome::Nothing));
        assert!(dir.open_below("missing/deeper").unwrap().is_none());
    }

    #[test]
    fn links_are_removed_but_their_targets_are_kept() {
        let (temp, dir) = temp();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("data"), "precious").unwrap();
        fs::create_dir_all(temp.path().join("v/sub")).unwrap();
        symlink(outside.path(), temp.path().join("v/sub/link")).unwrap();
        symlink(outside.path().join("data"), temp.path().join("v/file-link")).unwrap();
        symlink(outside.path(), temp.path().join("top-link")).unwrap();
        assert_eq!(remove(&dir, "v"), Ok(Outcome::Done));
        assert_eq!(remove(&dir, "top-link"), Ok(Outcome::Done));
        assert_eq!(remove(&dir, "v"), Ok(Outcome::Nothing));
        assert_eq!(fs::read_to_string(outside.path().join("data")).unwrap(), "precious");
    }

    #[test]
    fn paths_through_links_are_refused() {
        let (temp, dir) = temp();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("sub")).unwrap();
        symlink(outside.path(), temp.path().join("link")).unwrap();
        assert_eq!(
            dir.open_below("link/sub").unwrap_err().cause,
            Cause::Errno(Errno::ELOOP)
        );
        assert_eq!(dir.open_below("link").unwrap_err().cause, Cause::Errno(Errno::ELOOP));
    }

    #[test]
    fn special_files_are_removed_without_being_opened() {
        let (temp, dir) = temp();
        fs::create_dir(temp.path().join("v")).unwrap();
        let fifo = temp.path().join("v/fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(temp.path().join("v/socket")).unwrap();
        assert_eq!(remove(&dir, "v"), Ok(Outcome::Done));
    }

    #[test]
    fn mounts_are_compared_by_id_or_by_device_on_kernels_without_ids() {
        let location = |mount, minor| Location {
            id: DirId {
                device: (0, minor),
                inode: 1,
            },
            mount,
        };
        for (one, other, same) in [
            (location(Some(7), 1), location(Some(7), 2), true),
            (location(Some(7), 1), location(Some(8), 1), false),
            (location(None, 1), location(None, 1), true),
            (location(None, 1), location(None, 2), false),
            (location(Some(7), 1), location(None, 2), false),
        ] {
            assert_eq!(one.is_on_mount_of(other), same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn all_subdirectories_are_removed_beyond_one_listing() {
        let (temp, dir) = temp();
        for i in 0..(tree::MAX_LISTED + 1000) {
            fs::create_dir_all(temp.path().join(format!("v/{i}/x"))).unwrap();
        }
        assert_eq!(remove(&dir, "v"), Ok(Outcome::Done));
        assert_eq!(dir.names().unwrap(), Vec::<OsString>::new());
    }

    #[test]
    fn gate_stops_a_removal_in_progress() {
        let (temp, dir) = temp();
        for i in 0..50 {
            fs::create_dir_all(temp.path().join(format!("v/{i}/x"))).unwrap();
        }
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let gate = move || match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0..10 => Ok(()),
            _ => Err(crate::model::blocked::Blocked::Other("a kubelet is here".into())),
        };
        let faults = dir
            .remove_tree(OsStr::new("v"), &Effects::new(std::sync::Arc::new(gate)))
            .unwrap_err();
        assert!(faults.iter().any(Fault::is_blocked), "{faults:?}");
        assert!(fs::read_dir(temp.path().join("v")).unwrap().count() > 30);
    }

    #[test]
    fn every_deep_branch_is_removed() {
        let (temp, dir) = temp();
        let deep = "d/".repeat(tree::MAX_OPEN + 3);
        for name in ["", "a/", "b/", "b/c/"] {
            for branch in ["x", "y", "z"] {
                let path = format!("v/{name}{deep}{branch}/{deep}");
                fs::create_dir_all(temp.path().join(path)).unwrap();
            }
        }
        assert_eq!(remove(&dir, "v"), Ok(Outcome::Done));
        assert_eq!(dir.names().unwrap(), Vec::<OsString>::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_tree_is_removed_and_its_neighbor_is_kept(
            paths in proptest::collection::vec(proptest::collection::vec(
                proptest::collection::vec(1u8..=255, 1..12), 1..40), 1..20)
        ) {
            let (temp, dir) = temp();
            fs::create_dir_all(temp.path().join("v")).unwrap();
            fs::create_dir_all(temp.path().join("neighbour/x")).unwrap();
            for path in paths {
                let mut at = temp.path().join("v");
                for name in path {
                    let name = OsStr::from_bytes(&name);
                    if is_name(name) {
                        at.push(name);
                        let _ = fs::create_dir(&at);
                    }
                }
                let _ = fs::write(at.join("file"), "");
            }
            prop_assert_eq!(remove(&dir, "v"), Ok(Outcome::Done));
            let left: BTreeSet<_> = dir.names().unwrap().into_iter().collect();
            prop_assert_eq!(left, BTreeSet::from([OsString::from("neighbour")]));
            prop_assert!(temp.path().join("neighbour/x").exists());
        }
    }
}
