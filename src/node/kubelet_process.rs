//! Kubelet processes that work on the same pods as we: while there is one, nothing may be touched.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fd::OwnedFd,
    fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2},
    io::Errno,
};

use super::{kubelet_root::KubeletRoot, lock::readable};

const NAME: &str = "kubelet";
const DEFAULT_ROOT: &str = "/var/lib/kubelet";
const ROOT_FLAG: &[u8] = b"root-dir";
/// Programs that hold a kubelet or start one, each with the arguments that make it do so; without any it always does.
const HOLDERS: [(&str, &[&[u8]]); 8] = [
    ("kubelite", &[]),
    ("k3s-server", &[]),
    ("k3s-agent", &[]),
    ("k3s", &[b"server", b"agent"]),
    ("rke2", &[b"server", b"agent"]),
    ("k0s", &[b"worker", b"controller"]),
    ("microshift", &[b"run"]),
    ("hyperkube", &[b"kubelet"]),
];
/// How holders are told what to tell their kubelet.
const HOLDERS_FLAG: &[u8] = b"--kubelet-arg=";

/// A kubelet that works, or may work, on our pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Why it counts.
    pub why: Why,
}

/// Why a kubelet counts as one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Its directory is ours.
    SameDirectory,
    /// Its directory could not be looked at: better one too many.
    Unreadable(Errno),
    /// It holds a kubelet whose directory is not on its command line: better one too many.
    Unsaid,
}

/// What a process is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kubelet,
    /// By these arguments, if they are not none.
    Holder(&'static [&'static [u8]]),
}

type File = (u64, u64);

/// Looks again and again, at a part of the price: what was no kubelet in two looks is left out of the next few.
#[derive(Debug, Default)]
pub struct Looks {
    /// Processes that are no kubelets, and in how many looks they were none.
    others: HashMap<i32, u32>,
    count: u32,
}

/// A process may become a kubelet by exec, and a pid may be given to another one: so often everything is looked at.
const WHOLE_LOOK_EVERY: u32 = 5;
/// Between fork and exec a kubelet still has its parent's name.
const LOOKS_TO_SETTLE: u32 = 2;

// === impl Looks ===

impl Looks {
    /// All kubelets that count, among the processes that may have become one.
    pub fn next(&mut self, proc: &Path, root: &KubeletRoot) -> io::Result<Vec<KubeletProcess>> {
        let before = std::mem::take(&mut self.others);
        let whole = self.count.is_multiple_of(WHOLE_LOOK_EVERY);
        self.count = self.count.wrapping_add(1);
        find_among(proc, root, |pid, is_kubelet| {
            let looks = before.get(&pid).copied().unwrap_or(0);
            let settled = looks >= LOOKS_TO_SETTLE;
            let is_kubelet = (whole || !settled) && is_kubelet();
            if !is_kubelet {
                self.others.insert(pid, if settled { looks } else { looks + 1 });
            }
            is_kubelet
        })
    }
}

/// All kubelets that count, from the files of `proc`. It reads a file of every process: not for every effect.
pub fn find(proc: &Path, root: &KubeletRoot) -> io::Result<Vec<KubeletProcess>> {
    find_among(proc, root, |_, is_kubelet| is_kubelet())
}

fn find_among(
    proc: &Path,
    root: &KubeletRoot,
    mut wanted: impl FnMut(i32, &dyn Fn() -> bool) -> bool,
) -> io::Result<Vec<KubeletProcess>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let dir = entry.path();
        if !wanted(pid, &|| kind(&dir).is_some()) {
            continue;
        }
        if let Some(why) = kind(&dir).and_then(|kind| why(kind, &dir, root)) {
            let command = readable(fs::read(dir.join("cmdline")).unwrap_or_default());
            found.push(KubeletProcess { pid, command, why });
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// By its name. A process that is gone by now is none; to read the name procfs denies to nobody.
fn kind(dir: &Path) -> Option<Kind> {
    // A name has 15 bytes and a newline at most. Not `fs::read`, which asks for the size and the end, too.
    let mut name = [0; 32];
    let read = fs::File::open(dir.join("comm")).and_then(|mut file| file.read(&mut name));
    let name = std::str::from_utf8(name[..read.ok()?].trim_ascii_end()).ok()?;
    if name.strip_prefix(NAME).is_some_and(is_version) {
        return Some(Kind::Kubelet);
    }
    let holder = HOLDERS.iter().find(|(holder, _)| name == *holder);
    holder.map(|(_, by)| Kind::Holder(by))
}

/// What may follow the name in that of a file: nothing, or a version such as `-v1.36.3`.
fn is_version(rest: &str) -> bool {
    let number = rest.trim_start_matches(['-', '_', '.']).trim_start_matches('v');
    rest.is_empty() || number.starts_with(|c: char| c.is_ascii_digit())
}

/// Why the kubelet with this directory in procfs counts; `None` if it works elsewhere or has ended.
fn why(kind: Kind, dir: &Path, root: &KubeletRoot) -> Option<Why> {
    match works_here(kind, dir, root) {
        Ok(None) => None,
        Ok(Some(Why::Unsaid)) | Err(_) if has_ended(dir) => None,
        Ok(why) => why,
        Err(errno) => Some(Why::Unreadable(errno)),
    }
}

fn works_here(kind: Kind, dir: &Path, root: &KubeletRoot) -> Result<Option<Why>, Errno> {
    let ours = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let (Ok(our_root), Ok(our_pods)) = (ours(root.path()), ours(root.pods())) else {
        return Err(Errno::NOENT);
    };
    let arguments = fs::read(dir.join("cmdline")).map_err(|error| super::mounts::errno(&error))?;
    let their_root = match (kind, root_dir(&arguments)) {
        (Kind::Holder(by), _) if !holds(by, &arguments) => return Ok(None),
        (Kind::Holder(_), None) => return Ok(Some(Why::Unsaid)),
        (Kind::Holder(_) | Kind::Kubelet, Some(said)) => said,
        (Kind::Kubelet, None) => DEFAULT_ROOT.into(),
    };
    let base = base(dir, &their_root)?;
    let is_ours = match identity(&base, &their_root.join("pods")) {
        Ok(pods) => pods == our_pods,
        // Just starting, and not ours unless it starts in our directory.
        Err(Errno::NOENT) => match identity(&base, &their_root) {
            Ok(root) => root == our_root,
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(errno),
        },
        Err(errno) => return Err(errno),
    };
    Ok(is_ours.then_some(Why::SameDirectory))
}

/// Whether a holder was told to hold a kubelet, and not to do something else. Some write their command line anew, as one
/// text; one without any has threads left and no memory.
fn holds(by: &[&[u8]], arguments: &[u8]) -> bool {
    let mut words = arguments.split(|byte| b"\0 ".contains(byte));
    by.is_empty() || arguments.is_empty() || words.any(|word| by.contains(&word))
}

/// Where the kubelet looks its root directory up: in its own root file system, or its working directory.
fn base(dir: &Path, their_root: &Path) -> Result<OwnedFd, Errno> {
    let name = if their_root.is_absolute() { "root" } else { "cwd" };
    openat(
        CWD,
        dir.join(name),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn identity(base: &OwnedFd, path: &Path) -> Result<File, Errno> {
    // Links are resolved as the kubelet sees them, not as we do.
    let resolve = if path.is_absolute() {
        ResolveFlags::IN_ROOT
    } else {
        ResolveFlags::NO_MAGICLINKS
    };
    let fd = openat2(
        base,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?;
    let found = fstat(fd)?;
    Ok((found.st_dev, found.st_ino))
}

/// A process without any thread left but a zombie, or none at all.
fn has_ended(dir: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(dir.join("task")) else {
        return !dir.exists();
    };
    let is_zombie = || {
        let stat = fs::read(dir.join("stat")).unwrap_or_default();
        let after_name = stat.iter().rposition(|&byte| byte == b')').map(|at| &stat[at + 1..]);
        after_name
            .and_then(|rest| rest.trim_ascii_start().first())
            .is_some_and(|state| b"ZX".contains(state))
    };
    tasks.count() <= 1 && is_zombie()
}

/// The root directory by the command line; the last flag counts. A kubelet reads `_` in its name as `-`.
fn root_dir(arguments: &[u8]) -> Option<PathBuf> {
    let mut found = None;
    let mut arguments = arguments.split(|&byte| byte == 0);
    while let Some(argument) = arguments.next() {
        let flag = argument.strip_prefix(HOLDERS_FLAG).unwrap_or(argument);
        let mut parts = flag.splitn(2, |&byte| byte == b'=');
        let name = parts.next().unwrap_or_default();
        let name = name.strip_prefix(b"--").unwrap_or(name);
        if name
            .iter()
            .map(|&byte| if byte == b'_' { b'-' } else { byte })
            .eq(ROOT_FLAG.iter().copied())
        {
            let value = parts.next().or_else(|| arguments.next()).unwrap_or_default();
            found = Some(OsStr::from_bytes(value).into());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Machine {
        temp: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let machine = Self {
                temp: tempfile::tempdir().unwrap(),
            };
            for dir in ["proc/self", "ours/pods", "rootfs/var/lib"] {
                fs::create_dir_all(machine.path(dir)).unwrap();
            }
            machine
        }

        fn path(&self, below: &str) -> PathBuf {
            self.temp.path().canonicalize().unwrap().join(below)
        }

        fn process(&self, pid: i32, comm: &str, arguments: &[&str]) -> PathBuf {
            let dir = self.path(&format!("proc/{pid}"));
            fs::create_dir_all(dir.join("task/1")).unwrap();
            fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
            fs::write(dir.join("cmdline"), arguments.join("\0") + "\0").unwrap();
            fs::write(dir.join("stat"), format!("{pid} ({comm}) S 1")).unwrap();
            symlink(self.path("rootfs"), dir.join("root")).unwrap();
            symlink(self.path(""), dir.join("cwd")).unwrap();
            dir
        }

        fn found(&self) -> Vec<(i32, Why)> {
            let root = KubeletRoot::resolve(&self.path("ours")).unwrap();
            find(&self.path("proc"), &root)
                .unwrap()
                .into_iter()
                .map(|it| (it.pid, it.why))
                .collect()
        }
    }

    #[test]
    fn a_process_that_becomes_a_kubelet_later_is_found_by_a_whole_look() {
        let machine = Machine::new();
        let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
        let dir = machine.process(7, "sh", &["sh"]);
        let mut looks = Looks::default();
        let mut found = || looks.next(&machine.path("proc"), &root).unwrap().len();
        assert_eq!([found(), found(), found()], [0, 0, 0]);
        fs::write(dir.join("comm"), "kubelet\n").unwrap();
        fs::write(
            dir.join("cmdline"),
            format!("kubelet\0--root-dir={}\0", machine.path("ours").display()),
        )
        .unwrap();
        fs::remove_file(dir.join("root")).unwrap();
        symlink("/", dir.join("root")).unwrap();
        let late = (0..WHOLE_LOOK_EVERY).map(|_| found()).position(|found| found == 1);
        assert!(late.is_some());
        // Once found it stays found.
        assert_eq!([found(), found()], [1, 1]);
    }

    #[test]
    fn a_new_process_is_looked_at_twice_at_least() {
        let machine = Machine::new();
        let root = KubeletRoot::resolve(&machine.path("ours")).unwrap();
        let mut looks = Looks::default();
        looks.next(&machine.path("proc"), &root).unwrap();
        let dir = machine.process(8, "systemd", &["systemd"]);
        assert_eq!(looks.next(&machine.path("proc"), &root).unwrap(), []);
        fs::write(dir.join("comm"), "kubelet\n").unwrap();
        fs::write(
            dir.join("cmdline"),
            format!("kubelet\0--root-dir={}\0", machine.path("ours").display()),
        )
        .unwrap();
        fs::remove_file(dir.join("root")).unwrap();
        symlink("/", dir.join("root")).unwrap();
        assert_eq!(looks.next(&machine.path("proc"), &root).unwrap().len(), 1);
    }

    #[test]
    fn the_root_directory_is_read_from_the_command_line() {
        for (arguments, expected) in [
            (&["kubelet"][..], None),
            (&["kubelet", "--root-dir", "/a"], Some("/a")),
            (&["kubelet", "--root_dir=/a"], Some("/a")),
            (&["kubelet", "--root-dir=/a b", "--v=2"], Some("/a b")),
            (&["kubelet", "--root-dir=/a", "--root-dir", "/b=c"], Some("/b=c")),
            (&["kubelet", "--root-directory=/a"], None),
            (&["k3s", "agent", "--kubelet-arg=root-dir=/a"], Some("/a")),
            (&["k3s", "agent", "--kubelet-arg", "root-dir=/a"], Some("/a")),
        ] {
            let arguments = arguments.join("\0") + "\0";
            assert_eq!(root_dir(arguments.as_bytes()).as_deref(), expected.map(Path::new));
        }
    }

    #[test]
    fn a_kubelet_counts_if_its_directory_is_ours_by_whatever_path() {
        let machine = Machine::new();
        // In its own root file system the directory is a bind in real life; a hard fact of dev and inode either way.
        symlink(machine.path("ours"), machine.path("rootfs/direct")).unwrap();
        machine.process(5, "kubelet", &["kubelet", "--root-dir=ours"]);
        machine.process(6, "kubelet", &["kubelet", "--root-dir", "./ours/../ours"]);
        machine.process(7, "kubelet", &["kubelet", "--root-dir=/nowhere"]);
        machine.process(8, "kubelet-helper", &["kubelet", "--root-dir=ours"]);
        machine.process(9, "kubelet", &["kubelet"]);
        machine.process(10, "kubelet-1.36.3", &["kubelet", "--root_dir=ours"]);
        assert_eq!(machine.found(), [5, 6, 10].map(|pid| (pid, Why::SameDirectory)));
    }

    #[test]
    fn what_holds_a_kubelet_counts_unless_it_plainly_does_so_elsewhere_or_does_something_else() {
        let machine = Machine::new();
        fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
        machine.process(5, "k3s-server", &["/usr/local/bin/k3s server"]);
        machine.process(6, "k3s", &["k3s", "--debug", "agent"]);
        machine.process(7, "k3s", &["k3s", "kubectl", "logs"]);
        machine.process(8, "kubelite", &["kubelite", "--kubelet-args-file=args"]);
        machine.process(
            9,
            "rke2",
            &["/usr/bin/rke2", "server", "--kubelet-arg=root-dir=elsewhere"],
        );
        machine.process(10, "k0s", &["k0s", "worker", "--kubelet-arg=root-dir=ours"]);
        let gone = machine.process(11, "kubelite", &[]);
        fs::write(gone.join("stat"), "11 (kubelite) Z 1").unwrap();
        let unsaid = |pid| (pid, Why::Unsaid);
        assert_eq!(
            machine.found(),
            [unsaid(5), unsaid(6), unsaid(8), (10, Why::SameDirectory)]
        );
    }

    #[test]
    fn links_are_resolved_in_the_kubelets_root_and_not_in_ours() {
        let machine = Machine::new();
        fs::create_dir_all(machine.path("rootfs/data/pods")).unwrap();
        symlink("/data", machine.path("rootfs/var/lib/kubelet")).unwrap();
        machine.process(5, "kubelet", &["kubelet"]);
        assert_eq!(machine.found(), []);
        let root = KubeletRoot::resolve(&machine.path("rootfs/data")).unwrap();
        assert_eq!(find(&machine.path("proc"), &root).unwrap()[0].why, Why::SameDirectory);
    }

    #[test]
    fn a_kubelet_that_has_not_made_its_pods_directory_yet_counts_by_its_root() {
        let machine = Machine::new();
        fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
        fs::remove_dir(machine.path("ours/pods")).unwrap();
        symlink("../elsewhere/pods", machine.path("ours/pods")).unwrap();
        machine.process(5, "kubelet", &["kubelet", "--root-dir=ours"]);
        assert_eq!(machine.found(), [(5, Why::SameDirectory)], "through the link");
    }

    #[test]
    fn a_kubelet_whose_directory_cannot_be_looked_at_counts() {
        let machine = Machine::new();
        let dir = machine.process(5, "kubelet", &["kubelet"]);
        fs::remove_file(dir.join("root")).unwrap();
        assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
        fs::remove_file(dir.join("cmdline")).unwrap();
        assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
    }

    #[test]
    fn a_kubelet_that_is_only_a_zombie_does_not_count_unless_threads_are_left() {
        let machine = Machine::new();
        let dir = machine.process(5, "kubelet", &[]);
        fs::remove_file(dir.join("root")).unwrap();
        fs::write(dir.join("stat"), "5 (kubelet) Z 1").unwrap();
        assert_eq!(machine.found(), []);
        fs::create_dir(dir.join("task/2")).unwrap();
        assert_eq!(machine.found(), [(5, Why::Unreadable(Errno::NOENT))]);
    }
}
