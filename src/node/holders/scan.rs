//! Searches all processes once, for all busy mounts.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    container::container_of,
    holder::{Holders, MAX_NAMED, MountHolder},
};
use crate::node::{
    mounts::{
        mount::{Mount, unescape},
        table::MountTable,
    },
    procfs,
};

/// A search for the users of busy mounts.
pub(super) struct Scan {
    proc: PathBuf,
    table: Arc<MountTable>,
    busy: Vec<Mount>,
    own: Option<PathBuf>,
    /// The same mounts in other namespaces, by the namespace's link.
    others: HashMap<PathBuf, Vec<MountView>>,
    /// The result so far, by mount ID. The lock is free during calls that may hang.
    pub found: Arc<Mutex<HashMap<u64, Holders>>>,
}

/// A busy mount as one process sees it.
#[derive(Clone)]
struct MountView {
    /// ID of the busy mount.
    of: u64,
    id: u64,
    path: PathBuf,
    device: (u32, u32),
}

// === impl MountView ===

impl MountView {
    fn new(busy: &Mount, seen: &Mount) -> Self {
        Self {
            of: busy.id,
            id: seen.id,
            path: seen.path.clone(),
            device: busy.device,
        }
    }
}

// === impl Scan ===

impl Scan {
    pub fn new(proc: PathBuf, table: Arc<MountTable>, busy: Vec<Mount>) -> Self {
        let link = |who: &str| procfs::namespace(&proc.join(who), "mnt");
        let nested = busy.iter().map(|mount| (mount.id, nested_mounts(&table, mount)));
        Self {
            own: link("thread-self").or_else(|| link("self")),
            found: Arc::new(Mutex::new(nested.collect())),
            others: HashMap::new(),
            proc,
            table,
            busy,
        }
    }

    /// Searches all processes; `false` if the time expires before the end.
    pub fn search_all(mut self, longest: Duration) -> bool {
        let until = Instant::now() + longest;
        let Ok(pids) = procfs::pids(&self.proc) else {
            return false;
        };
        for pid in pids {
            if Instant::now() > until {
                return false;
            }
            let dir = procfs::dir(&self.proc, pid);
            let Some((views, is_other)) = self.views(&dir) else {
                continue;
            };
            for (of, usage) in uses(&dir, &views, is_other, &self.table) {
                let holder = MountHolder {
                    pid,
                    command: procfs::command(&dir),
                    container: container_of(&procfs::text(&dir.join("cgroup"))),
                    usage,
                    is_in_other_namespace: is_other,
                };
                self.note(of, holder);
            }
        }
        true
    }

    /// The mounts as a process sees them, if it sees any, and whether its namespace is another one. Each namespace is read once.
    fn views(&mut self, dir: &Path) -> Option<(Vec<MountView>, bool)> {
        let namespace = procfs::namespace(dir, "mnt")?;
        let own = self.busy.iter().map(|mount| MountView::new(mount, mount));
        if Some(&namespace) == self.own.as_ref() {
            return Some((own.collect(), false));
        }
        let busy = &self.busy;
        let copies = self.others.entry(namespace).or_insert_with(|| same_mounts(dir, busy));
        // A file of this namespace may be open there.
        let only_by_id = own.map(|it| MountView {
            path: PathBuf::new(),
            ..it
        });
        Some((copies.iter().cloned().chain(only_by_id).collect(), true))
    }

    fn note(&self, of: u64, holder: MountHolder) {
        let mut found = self.found.lock();
        let Some(holders) = found.get_mut(&of) else { return };
        if holders.processes.len() == MAX_NAMED {
            holders.more += 1;
        } else {
            holders.processes.push(holder);
        }
    }
}

/// Mounts whose parent is `mount`.
fn nested_mounts(table: &MountTable, mount: &Mount) -> Holders {
    let nested = table.all().filter(|it| it.parent == mount.id && it.id != mount.id);
    Holders {
        nested: nested.take(MAX_NAMED).map(|it| it.path.clone()).collect(),
        ..Holders::default()
    }
}

/// The same mounts in another process's namespace: with the same file system and the same root directory.
fn same_mounts(dir: &Path, busy: &[Mount]) -> Vec<MountView> {
    let text = fs::read(dir.join("mountinfo")).unwrap_or_default();
    let table = MountTable::parse(&text, Path::new("/")).unwrap_or_default();
    let copy = |mount: &Mount| {
        let is_same = |it: &&Mount| it.device == mount.device && it.root == mount.root;
        Some(MountView::new(busy.iter().find(is_same)?, mount))
    };
    table.all().filter_map(copy).collect()
}

/// How a process uses these mounts, one entry per mount.
fn uses(dir: &Path, views: &[MountView], is_other: bool, table: &MountTable) -> Vec<(u64, &'static str)> {
    let mut uses: Vec<(u64, &str)> = Vec::new();
    let is_there = |file: &Path, view: &MountView| match is_other {
        false => is_on(table, file, &view.path),
        true => !view.path.as_os_str().is_empty() && file.starts_with(&view.path),
    };
    for (link, usage) in [("cwd", "working directory"), ("root", "root directory")] {
        if let Ok(file) = fs::read_link(dir.join(link)) {
            let there = views.iter().filter(|view| is_there(&file, view));
            uses.extend(there.map(|view| (view.of, usage)));
        }
    }
    for entry in fs::read_dir(dir.join("fdinfo")).into_iter().flatten().flatten() {
        if let Some(id) = mount_of(&fs::read(entry.path()).unwrap_or_default()) {
            let there = views.iter().filter(|view| view.id == id);
            uses.extend(there.map(|view| (view.of, "open file")));
        }
    }
    if uses.is_empty() {
        let maps = fs::read(dir.join("maps")).unwrap_or_default();
        for (device, file) in maps.split(|&it| it == b'\n').filter_map(mapped) {
            let is_mapped = |view: &&MountView| view.device == device && is_there(Path::new(&file), view);
            let there = views.iter().filter(is_mapped);
            uses.extend(there.map(|view| (view.of, "mapped file")));
        }
    }
    let mut seen = HashSet::new();
    uses.retain(|(of, _)| seen.insert(*of));
    uses
}

/// Whether a file of this namespace is on the mount at `view`, and not on a nested mount.
fn is_on(table: &MountTable, file: &Path, mount_point: &Path) -> bool {
    file.starts_with(mount_point)
        && table
            .mount_containing(file)
            .is_none_or(|mount| mount.path == mount_point)
}

/// The mount ID of an open file, from its fdinfo.
fn mount_of(fdinfo: &[u8]) -> Option<u64> {
    let mut lines = fdinfo.split(|&it| it == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"mnt_id:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Device and path of a mapped file, from a line of maps.
fn mapped(line: &[u8]) -> Option<((u32, u32), OsString)> {
    let at = line.iter().position(|&it| it == b'/')?;
    let device = std::str::from_utf8(line[..at].split(|&it| it == b' ').nth(3)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some(((number(major)?, number(minor)?), unescape(&line[at..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_and_fdinfo_are_parsed() {
        let line = b"7f00-7f01 r-xp 00000000 fd:1a 131 /v/with space (deleted)";
        assert_eq!(mapped(line), Some(((0xfd, 0x1a), "/v/with space (deleted)".into())));
        assert_eq!(mapped(b"7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(mount_of(b"pos:\t0\nflags:\t02\nmnt_id:\t29\nino:\t5\n"), Some(29));
        assert_eq!(mount_of(b""), None);
    }
}
