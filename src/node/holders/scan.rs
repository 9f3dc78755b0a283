//! The look at all processes, once for all mounts that are in use.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Holder, Holders, How, NAMED, Namespace, container_of, within};
use crate::node::mounts::{Mount, MountTable, unescape};

/// What was found so far.
pub(super) struct Scan {
    proc: PathBuf,
    table: Arc<MountTable>,
    busy: Vec<Mount>,
    own: Option<PathBuf>,
    /// The same mounts in other namespaces in which somebody is, by their link.
    others: HashMap<PathBuf, Vec<Twin>>,
    found: HashMap<u64, Holders>,
}

/// A mount that is the same as one that is in use, in another namespace.
#[derive(Clone)]
struct Twin {
    of: u64,
    id: u64,
    path: PathBuf,
}

/// Looks at all processes; `false` if the time is up before. The lock is free whenever something may hang.
pub(super) fn all(scan: &Mutex<Scan>, longest: Duration) -> bool {
    let until = Instant::now() + longest;
    let (proc, table) = {
        let scan = lock(scan);
        (scan.proc.clone(), Arc::clone(&scan.table))
    };
    let Ok(entries) = fs::read_dir(&proc) else {
        return false;
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for pid in pids {
        if Instant::now() > until {
            return false;
        }
        let dir = proc.join(i32::to_string(&pid));
        // In a statement of its own: the lock is free again after it.
        let places = lock(scan).places(&dir);
        let Some((places, namespace)) = places else { continue };
        for (of, how) in uses(&dir, &places, namespace, &table) {
            lock(scan).note(of, pid, &dir, how, namespace);
        }
    }
    true
}

fn lock(scan: &Mutex<Scan>) -> MutexGuard<'_, Scan> {
    scan.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mount as one process sees it.
struct Place {
    of: u64,
    id: u64,
    path: PathBuf,
    device: (u32, u32),
}

// === impl Scan ===

impl Scan {
    pub fn new(proc: PathBuf, table: Arc<MountTable>, busy: Vec<Mount>) -> Self {
        let link = |who: &str| fs::read_link(proc.join(who).join("ns/mnt")).ok();
        Self {
            own: link("thread-self").or_else(|| link("self")),
            found: busy
                .iter()
                .map(|mount| (mount.id, mounts_inside(&table, mount)))
                .collect(),
            others: HashMap::new(),
            proc,
            table,
            busy,
        }
    }

    pub fn found(&self) -> HashMap<u64, Holders> {
        self.found.clone()
    }

    /// The mounts as a process sees them, if it may see any; each namespace is looked at once.
    fn places(&mut self, dir: &Path) -> Option<(Vec<Place>, Namespace)> {
        let namespace = fs::read_link(dir.join("ns/mnt")).ok()?;
        let place = |mount: &Mount, id: u64, path: &Path| Place {
            of: mount.id,
            id,
            path: path.to_owned(),
            device: mount.device,
        };
        let own = self.busy.iter().map(|it| place(it, it.id, &it.path));
        if Some(&namespace) == self.own.as_ref() {
            return Some((own.collect(), Namespace::Own));
        }
        let busy = &self.busy;
        let copies = self.others.entry(namespace).or_insert_with(|| copies(dir, busy));
        let copies = copies.iter().filter_map(|copy| {
            let mount = busy.iter().find(|it| it.id == copy.of)?;
            Some(place(mount, copy.id, &copy.path))
        });
        // A file of this namespace may be open there.
        let only_by_id = own.map(|it| Place {
            path: PathBuf::new(),
            ..it
        });
        Some((copies.chain(only_by_id).collect(), Namespace::Other))
    }

    fn note(&mut self, of: u64, pid: i32, dir: &Path, how: How, namespace: Namespace) {
        let Some(holders) = self.found.get_mut(&of) else { return };
        if holders.processes.len() == NAMED {
            holders.more += 1;
            return;
        }
        let text = |name: &str| fs::read(dir.join(name)).unwrap_or_default();
        holders.processes.push(Holder {
            pid,
            command: String::from_utf8_lossy(&text("comm")).trim_end().to_owned(),
            container: container_of(&String::from_utf8_lossy(&text("cgroup"))),
            how,
            namespace,
        });
    }
}

/// The mounts whose parent this one is.
fn mounts_inside(table: &MountTable, mount: &Mount) -> Holders {
    let inside = table
        .all()
        .iter()
        .filter(|it| it.parent == mount.id && it.id != mount.id);
    Holders {
        inside: inside.take(NAMED).map(|it| it.path.clone()).collect(),
        ..Holders::default()
    }
}

/// The same mounts in the namespace of another process: of the same file system, and the same directory of it.
fn copies(dir: &Path, busy: &[Mount]) -> Vec<Twin> {
    let Ok(text) = fs::read(dir.join("mountinfo")) else {
        return Vec::new();
    };
    let devices: Vec<String> = busy
        .iter()
        .map(|it| format!("{}:{}", it.device.0, it.device.1))
        .collect();
    // Most mounts there are something else, and not worth to be understood.
    let same_device = |line: &&[u8]| {
        let device = line.split(|&it| it == b' ').nth(2);
        device.is_some_and(|it| devices.iter().any(|device| device.as_bytes() == it))
    };
    let lines: Vec<&[u8]> = text.split(|&it| it == b'\n').filter(same_device).collect();
    let Ok(table) = MountTable::parse(&lines.join(&b'\n'), Path::new("/")) else {
        return Vec::new();
    };
    let same = |mount: &Mount| {
        busy.iter()
            .find(|it| it.device == mount.device && it.root == mount.root)
            .map(|it| it.id)
    };
    let copy = |mount: &Mount| {
        Some(Twin {
            of: same(mount)?,
            id: mount.id,
            path: mount.path.clone(),
        })
    };
    table.all().iter().filter_map(copy).collect()
}

/// What of a process lies on the mounts; of each mount once.
fn uses(dir: &Path, places: &[Place], namespace: Namespace, table: &MountTable) -> Vec<(u64, How)> {
    let mut uses: Vec<(u64, How)> = Vec::new();
    let lies_there = |file: &Path, place: &Place| match namespace {
        Namespace::Own => lies_on(table, file, &place.path),
        Namespace::Other => !place.path.as_os_str().is_empty() && within(file, &place.path),
    };
    for (link, how) in [("cwd", How::WorkingDirectory), ("root", How::Root)] {
        if let Ok(file) = fs::read_link(dir.join(link)) {
            let there = places.iter().filter(|place| lies_there(&file, place));
            uses.extend(there.map(|place| (place.of, how)));
        }
    }
    for entry in fs::read_dir(dir.join("fdinfo")).into_iter().flatten().flatten() {
        if let Some(id) = mount_of(&fs::read(entry.path()).unwrap_or_default()) {
            let there = places.iter().filter(|place| place.id == id);
            uses.extend(there.map(|place| (place.of, How::OpenFile)));
        }
    }
    if uses.is_empty() {
        let maps = fs::read(dir.join("maps")).unwrap_or_default();
        for (device, file) in maps.split(|&it| it == b'\n').filter_map(mapped) {
            let there = places
                .iter()
                .filter(|place| place.device == device && lies_there(Path::new(&file), place));
            uses.extend(there.map(|place| (place.of, How::MappedFile)));
        }
    }
    let mut told = Vec::new();
    uses.retain(|(of, _)| {
        let new = !told.contains(of);
        told.push(*of);
        new
    });
    uses
}

/// Whether a file of this namespace lies on what is mounted on `place`, and on nothing that is mounted in there.
fn lies_on(table: &MountTable, file: &Path, place: &Path) -> bool {
    within(file, place) && table.mount_containing(file).is_none_or(|mount| mount.path == place)
}

/// The mount that an open file lies on, of the text of its fdinfo.
fn mount_of(fdinfo: &[u8]) -> Option<u64> {
    let line = fdinfo
        .split(|&it| it == b'\n')
        .find_map(|line| line.strip_prefix(b"mnt_id:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Device and path of a file that is mapped, of a line of maps.
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
    fn lines_of_maps_and_fdinfo_are_read() {
        let line = b"7f00-7f01 r-xp 00000000 fd:1a 131 /v/with space (deleted)";
        assert_eq!(mapped(line), Some(((0xfd, 0x1a), "/v/with space (deleted)".into())));
        assert_eq!(mapped(b"7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
        assert_eq!(mount_of(b"pos:\t0\nflags:\t02\nmnt_id:\t29\nino:\t5\n"), Some(29));
        assert_eq!(mount_of(b""), None);
    }
}
