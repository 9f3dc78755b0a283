//! Mounts in other mount namespaces: they keep a file system active after an unmount in the agent's.

use std::{
    collections::{BTreeSet, HashSet},
    fmt, fs,
    path::{Path, PathBuf},
};

use super::{
    fault::{Fault, errno},
    mounts::{Mount, MountedOn},
};
use crate::model::waits_for::WaitsFor;

/// A process in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountingProcess {
    /// Its id.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

/// A line of mountinfo, with its propagation.
struct Line {
    mount: Mount,
    /// Its peer group: mounts and unmounts propagate within it.
    shared: Option<u64>,
    /// The peer group from which it receives propagation.
    master: Option<u64>,
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
        let lines: Vec<Line> = lines(table).collect();
        let is_there = |line: &Line| {
            place.is_some_and(|place| {
                // Few names are the same, and parents take long to find.
                line.mount.path.file_name() == place.1.file_name() && line.mounted_on(&lines).as_ref() == Some(place)
            })
        };
        let holds = |line: &Line| match line.mount.disk() {
            Some(disk) => devices.contains(&disk) || is_there(line),
            None => false,
        };
        let found = lines.iter().any(holds);
        if found {
            holder = Some(MountingProcess::read(proc, pid));
        }
        found
    })?;
    Ok(holder)
}

/// A process whose mount namespace keeps a file system of these devices mounted when `mount_point` is unmounted in the agent's,
/// whose mountinfo is `own`. A copy is unmounted along with it if it is mounted on the same directory, and its parent receives
/// propagation, directly or through others.
pub fn find_keeping_process(
    proc: &Path,
    own: &[u8],
    devices: &[(u32, u32)],
    mount_point: &Path,
) -> Result<Option<MountingProcess>, Fault> {
    let own: Vec<Line> = lines(own).collect();
    let on = own.iter().rev().find(|line| line.mount.path == mount_point);
    let mounted_on = on.and_then(|on| on.mounted_on(&own));
    let below = on.and_then(|on| on.parent_in(&own));
    let mut following: BTreeSet<u64> = below.and_then(|below| below.shared).into_iter().collect();
    let is_ours = |line: &Line| own.iter().any(|own| own.mount.id == line.mount.id);

    let (mut chains, mut copies) = (BTreeSet::new(), Vec::new());
    for_each_namespace(proc, &mut |pid, table| {
        let lines: Vec<Line> = lines(table).collect();
        chains.extend(lines.iter().filter_map(|line| Some((line.master?, line.shared?))));
        for copy in lines
            .iter()
            .filter(|line| devices.contains(&line.mount.device) && !is_ours(line))
        {
            let below = copy.parent_in(&lines);
            let groups = below.map(|below| [below.shared, below.master]).unwrap_or_default();
            let on = copy.mounted_on(&lines);
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
    let kept = copies
        .into_iter()
        .find(|&(_, is_there, groups)| !(is_there && follows(groups)));
    Ok(kept.map(|(pid, ..)| MountingProcess::read(proc, pid)))
}

/// Calls `visit` with the mounts of each mount namespace, from one of its processes, until it returns `true`.
fn for_each_namespace(proc: &Path, visit: &mut dyn FnMut(u32, &[u8]) -> bool) -> Result<(), Fault> {
    let mut seen: HashSet<(PathBuf, PathBuf)> = HashSet::new();
    let entries = fs::read_dir(proc).map_err(|error| Fault::new("list", proc, errno(&error)))?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Some((thread, namespace)) = thread_with_namespace(&entry.path()) else {
            continue;
        };
        // A process sees only the mounts below its root.
        let root = fs::read_link(thread.join("root")).unwrap_or_default();
        let view = (namespace, root);
        if seen.contains(&view) {
            continue;
        }
        // If a process is exiting, another one of its namespace is read.
        let Ok(table) = fs::read(thread.join("mountinfo")) else {
            continue;
        };
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
    with_namespace(process.to_owned()).or_else(|| {
        let mut threads = fs::read_dir(process.join("task")).ok()?.flatten();
        threads.find_map(|thread| with_namespace(thread.path()))
    })
}

fn lines(table: &[u8]) -> impl Iterator<Item = Line> {
    table.split(|&byte| byte == b'\n').filter_map(Line::parse)
}

// === impl Line ===

impl Line {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut parsed = Self {
            mount: Mount::parse_line(line).ok()?,
            shared: None,
            master: None,
        };
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
        let fields = line.split(|&byte| byte == b' ').skip(6);
        for field in fields.take_while(|field| *field != b"-") {
            if let Some(group) = field.strip_prefix(b"shared:") {
                parsed.shared = number(group);
            } else if let Some(group) = field.strip_prefix(b"master:") {
                parsed.master = number(group);
            }
        }
        Some(parsed)
    }

    fn parent_in<'a>(&self, lines: &'a [Self]) -> Option<&'a Self> {
        lines.iter().find(|line| line.mount.id == self.mount.parent)
    }

    /// The directory or file that it is mounted on.
    fn mounted_on(&self, lines: &[Self]) -> Option<MountedOn> {
        self.mount.mounted_on(&self.parent_in(lines)?.mount)
    }
}

// === impl MountingProcess ===

impl MountingProcess {
    /// Its exit, or an unmount in its namespace.
    pub fn waits_for(&self) -> [WaitsFor; 2] {
        let pid = self.pid.cast_signed();
        [WaitsFor::Exit(pid), WaitsFor::MountsOf(pid)]
    }

    fn read(proc: &Path, pid: u32) -> Self {
        let command = fs::read(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        Self {
            pid,
            command: String::from_utf8_lossy(command.trim_ascii_end()).into_owned(),
        }
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
            let found = find_keeping_process(proc.path(), OURS.as_bytes(), &[(8, 16)], mount_point).unwrap();
            assert_eq!(found.map(|holder| holder.pid), keeps, "{what}");
        }
        assert!(find_keeping_process(Path::new("/no/such/proc"), b"", &[(8, 16)], mount_point).is_err());
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
