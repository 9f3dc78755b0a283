//! Mounts in other mount namespaces: they keep a file system active after an unmount in the agent's.

use std::{
    collections::{BTreeSet, HashSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{
    fault::{Fault, errno},
    mounts::{Mount, MountTable, MountedOn},
    procfs,
};

/// A process in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountingProcess {
    /// Its id.
    pub pid: i32,
    /// Its command name.
    pub command: String,
}

/// A process whose mount namespace has one of these block devices mounted, or any block device on the directory `place`. Paths prove
/// nothing: a pod's owner chooses those in its containers. A file system without a device stays on no detached disk. Exited or unreadable
/// processes are skipped.
pub fn find_mounting_process(
    proc: &Path,
    devices: &[(u32, u32)],
    place: Option<&MountedOn>,
) -> Result<Option<MountingProcess>, Fault> {
    let mut holder = None;
    if devices.is_empty() && place.is_none() {
        return Ok(holder);
    }
    for_each_namespace(proc, &mut |pid, table| {
        let is_there = |mount: &Mount| place.is_some() && table.mounted_on(mount).as_ref() == place;
        let holds = |mount: &Mount| match mount.disk() {
            Some(disk) => devices.contains(&disk) || is_there(mount),
            None => false,
        };
        let found = table.all().any(holds);
        if found {
            holder = Some(MountingProcess::read(proc, pid));
        }
        found
    })?;
    Ok(holder)
}

/// A process whose mount namespace keeps a file system of these devices mounted when `mount_point` is unmounted in the agent's,
/// whose mount table is `own`. A copy is unmounted along with it if it is mounted on the same directory, and its parent receives
/// propagation, directly or through others.
pub fn find_keeping_process(
    proc: &Path,
    own: &MountTable,
    devices: &[(u32, u32)],
    mount_point: &Path,
) -> Result<Option<MountingProcess>, Fault> {
    let on = own.all().rev().find(|mount| mount.path == mount_point);
    let mounted_on = on.and_then(|on| own.mounted_on(on));
    let below = on.and_then(|on| own.parent_of(on));
    let mut following: BTreeSet<u64> = below.and_then(|below| below.shared).into_iter().collect();
    let is_ours = |mount: &Mount| own.all().any(|own| own.id == mount.id);

    let (mut chains, mut copies) = (BTreeSet::new(), Vec::new());
    for_each_namespace(proc, &mut |pid, table| {
        chains.extend(table.all().filter_map(|mount| Some((mount.master?, mount.shared?))));
        let is_copy = |mount: &&Mount| devices.contains(&mount.device) && !is_ours(mount);
        for copy in table.all().filter(is_copy) {
            let below = table.parent_of(copy);
            let groups = below.map(|below| [below.shared, below.master]).unwrap_or_default();
            let on = table.mounted_on(copy);
            let is_there = on.is_some() && on == mounted_on;
            copies.push((pid, is_there, groups));
        }
        false
    })?;
    // Propagation is transitive.
    while let Some(&(_, more)) = chains
        .iter()
        .find(|(master, shared)| following.contains(master) && !following.contains(shared))
    {
        following.insert(more);
    }
    let follows = |groups: [Option<u64>; 2]| groups.iter().flatten().any(|group| following.contains(group));
    let mut copies = copies.into_iter();
    let kept = copies.find(|&(_, is_there, groups)| !(is_there && follows(groups)));
    Ok(kept.map(|(pid, ..)| MountingProcess::read(proc, pid)))
}

/// Calls `visit` with the mounts of each mount namespace, from one of its processes, until it returns `true`.
fn for_each_namespace(proc: &Path, visit: &mut dyn FnMut(i32, &MountTable) -> bool) -> Result<(), Fault> {
    let mut seen: HashSet<(PathBuf, PathBuf)> = HashSet::new();
    let pids = procfs::pids(proc).map_err(|error| Fault::new("list", proc, errno(&error)))?;
    for pid in pids {
        let Some((thread, namespace)) = thread_with_namespace(&procfs::dir(proc, pid)) else {
            continue;
        };
        // A process sees only the mounts below its root.
        let root = fs::read_link(thread.join("root")).unwrap_or_default();
        let view = (namespace, root);
        if seen.contains(&view) {
            continue;
        }
        // If a process is exiting, another one of its namespace is read.
        let Some(table) = read_table(&thread)? else { continue };
        seen.insert(view);
        if visit(pid, &table) {
            break;
        }
    }
    Ok(())
}

/// The mount namespace of a process, and the directory of the thread that shows it: another one if the first thread has exited.
fn thread_with_namespace(process: &Path) -> Option<(PathBuf, PathBuf)> {
    let with_namespace = |thread: PathBuf| {
        let namespace = fs::read_link(thread.join("ns/mnt")).ok()?;
        Some((thread, namespace))
    };
    with_namespace(process.to_owned()).or_else(|| procfs::threads(process).find_map(with_namespace))
}

/// The mounts that this thread sees; `None` if it has exited.
fn read_table(thread: &Path) -> Result<Option<MountTable>, Fault> {
    let path = thread.join("mountinfo");
    let Ok(text) = fs::read(&path) else { return Ok(None) };
    let table = MountTable::parse(&text, Path::new("/"));
    table.map(Some).map_err(|_| Fault::new("read", &path, Errno::EBADMSG))
}

// === impl MountingProcess ===

impl MountingProcess {
    fn read(proc: &Path, pid: i32) -> Self {
        let command = procfs::command(&procfs::dir(proc, pid));
        Self { pid, command }
    }
}

impl fmt::Display for MountingProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({:?})", self.pid, self.command)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A namespace with one process and these lines of mountinfo.
    fn namespace(proc: &Path, pid: &str, table: &str) {
        let dir = proc.join(pid);
        fs::create_dir_all(dir.join("ns")).unwrap();
        symlink(format!("mnt:[{pid}]"), dir.join("ns/mnt")).unwrap();
        fs::write(dir.join("mountinfo"), table).unwrap();
        fs::write(dir.join("comm"), "postgres\n").unwrap();
    }

    #[test]
    fn copy_keeps_the_file_system_unless_it_follows_the_unmount() {
        const OURS: &str = "20 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n30 20 8:16 / /kubelet/stage/global rw shared:9 - ext4 /dev/sdb rw\n";
        let below = |(root, at): (&str, &str), groups: &str, path: &str| {
            format!("50 1 8:1 {root} {at} rw {groups}- ext4 /dev/sda1 rw\n51 50 8:16 / {path} rw - ext4 /dev/sdb rw\n")
        };
        let on = |groups: &str, path: &str| below(("/", "/"), groups, path);
        let mount_point = Path::new("/kubelet/stage/global");
        let ours = MountTable::parse(OURS.as_bytes(), Path::new("/")).unwrap();
        for (what, tables, keeps) in [
            ("a peer", vec![on("shared:1 ", "/kubelet/stage/global")], None),
            (
                "a follower in a container",
                vec![below(("/", "/host"), "master:1 ", "/host/kubelet/stage/global")],
                None,
            ),
            (
                "a follower below another root",
                vec![below(
                    ("/kubelet", "/var/lib/kubelet"),
                    "master:1 ",
                    "/var/lib/kubelet/stage/global",
                )],
                None,
            ),
            (
                "a follower whose owner chose the path",
                vec![below(("/pods/u/empty", "/x"), "master:1 ", "/x/kubelet/stage/global")],
                Some(100),
            ),
            ("a private copy", vec![on("", "/kubelet/stage/global")], Some(100)),
            (
                "a follower of others",
                vec![on("master:2 ", "/kubelet/stage/global")],
                Some(100),
            ),
            ("a bind mount of its own", vec![on("master:1 ", "/mnt")], Some(100)),
            (
                "a follower of a follower",
                vec![
                    on("master:7 ", "/kubelet/stage/global"),
                    on("shared:7 master:1 ", "/kubelet/stage/global"),
                ],
                None,
            ),
            (
                "another file system",
                vec!["51 50 8:17 / /data rw - ext4 /dev/sdc rw\n".to_owned()],
                None,
            ),
        ] {
            let proc = tempfile::tempdir().unwrap();
            namespace(proc.path(), "1", OURS);
            for (number, table) in tables.iter().enumerate() {
                namespace(proc.path(), &(100 + number).to_string(), table);
            }
            let found = find_keeping_process(proc.path(), &ours, &[(8, 16)], mount_point).unwrap();
            assert_eq!(found.map(|holder| holder.pid), keeps, "{what}");
        }
        assert!(find_keeping_process(Path::new("/no/such/proc"), &ours, &[(8, 16)], mount_point).is_err());
    }

    #[test]
    fn one_process_per_namespace_is_read_and_the_holder_is_named() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, namespace, table) in [
            ("7", "mnt:[1]", "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n"),
            ("8", "mnt:[2]", "37 36 8:16 / /data rw - ext4 /dev/sdb rw\n"),
            ("self", "mnt:[3]", "37 36 8:17 / /data rw - ext4 /dev/sdb rw\n"),
        ] {
            let dir = proc.path().join(pid);
            fs::create_dir_all(dir.join("ns")).unwrap();
            symlink(namespace, dir.join("ns/mnt")).unwrap();
            fs::write(dir.join("mountinfo"), table).unwrap();
            fs::write(dir.join("comm"), "postgres\n").unwrap();
        }
        let found = find_mounting_process(proc.path(), &[(8, 16)], None).unwrap().unwrap();
        assert_eq!(found.to_string(), "process 8 (\"postgres\")");
        assert_eq!(find_mounting_process(proc.path(), &[(8, 17)], None), Ok(None));
        assert_eq!(find_mounting_process(proc.path(), &[], None), Ok(None));
        assert!(find_mounting_process(Path::new("/no/such/proc"), &[(8, 1)], None).is_err());

        // If an exiting process has no table, another one of its namespace is read.
        let exited = proc.path().join("6");
        fs::create_dir_all(exited.join("ns")).unwrap();
        symlink("mnt:[2]", exited.join("ns/mnt")).unwrap();
        assert!(find_mounting_process(proc.path(), &[(8, 16)], None).unwrap().is_some());
    }

    #[test]
    fn mount_on_a_directory_is_found_by_the_directory_and_not_by_its_path() {
        let place = ((8, 1), PathBuf::from("/kubelet/stage/global"));
        for (table, is_found) in [
            (
                "50 1 8:1 /kubelet /k rw - ext4 /dev/sda1 rw\n51 50 8:16 / /k/stage/global rw - ext4 /dev/sdb rw\n",
                true,
            ),
            (
                "50 1 8:1 /pods/u /kubelet rw - ext4 /dev/sda1 rw\n51 50 8:16 / /kubelet/stage/global rw - ext4 /dev/sdb rw\n",
                false,
            ),
            (
                "50 1 8:2 / / rw - ext4 /dev/sda2 rw\n51 50 8:16 / /kubelet/stage/global rw - ext4 /dev/sdb rw\n",
                false,
            ),
        ] {
            let proc = tempfile::tempdir().unwrap();
            namespace(proc.path(), "100", table);
            let found = find_mounting_process(proc.path(), &[], Some(&place)).unwrap();
            assert_eq!(found.is_some(), is_found, "{table}");
        }
    }

    /// The first thread of this process has exited: then its `/proc/PID` has neither namespaces nor mounts.
    #[test]
    fn process_whose_first_thread_has_exited_is_read_by_another_thread() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("9")).unwrap();
        namespace(&proc.path().join("9/task"), "9", "");
        fs::remove_file(proc.path().join("9/task/9/ns/mnt")).unwrap();
        namespace(
            &proc.path().join("9/task"),
            "10",
            "37 36 8:16 / /data rw - ext4 /dev/sdb rw\n",
        );
        let found = find_mounting_process(proc.path(), &[(8, 16)], None).unwrap();
        assert_eq!(found.map(|process| process.pid), Some(9));
    }
}
