//! Kubelet processes that work on the same pods as we: while there is one, nothing may be touched.

use std::{
    ffi::OsStr,
    fmt, fs,
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
/// The root of this machine's file system: the agent works in the host's mount namespace, or refuses to run.
const MACHINES: &str = "/";
const ROOT_FLAG: &[u8] = b"root-dir";
const ENDPOINT_FLAG: &[u8] = b"container-runtime-endpoint";
/// Programs that hold a kubelet or start one, each with the arguments that make it do so; without any it always does.
const HOLDERS: [(&str, &[&[u8]]); 10] = [
    ("kubelite", &[]),
    ("k3s-server", &[]),
    ("k3s-agent", &[]),
    ("k3s", &[b"server", b"agent"]),
    ("rke2", &[b"server", b"agent"]),
    ("k0s", &[b"worker", b"controller"]),
    ("microshift", &[b"run"]),
    ("hyperkube", &[b"kubelet"]),
    ("edgecore", &[]),
    ("edged", &[]),
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
    /// It has another directory on this machine, and the same runtime as far as it says: it may be this node's.
    SameMachine,
    /// Its directory could not be looked at: better one too many.
    Unreadable(Errno),
    /// It holds a kubelet on this machine whose directory is not on its command line: better one too many.
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

/// What tells whether a kubelet works on our pods.
#[derive(Debug, Clone, Copy)]
pub struct Ours<'a> {
    /// Our kubelet's directory.
    pub root: &'a KubeletRoot,
    /// Our runtime's socket.
    pub runtime: &'a Path,
}

/// All kubelets that count, from the files of `proc`, by pid. It reads a file of every process: any of them may have
/// become a kubelet by exec.
pub fn find(proc: &Path, ours: Ours<'_>) -> io::Result<Vec<KubeletProcess>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let dir = entry.path();
        if let Some(why) = kind(&dir).and_then(|kind| why(kind, &dir, ours)) {
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
    // Also `kubelet-v1.36.3`, `kubelet-amd64`, `kubelet.real`, `.kubelet-wrapped`: what is no kubelet after all has seldom
    // a directory of one.
    if name.trim_start_matches('.').starts_with(NAME) {
        return Some(Kind::Kubelet);
    }
    let holder = HOLDERS.iter().find(|(holder, _)| name == *holder);
    holder.map(|(_, by)| Kind::Holder(by))
}

/// Why the kubelet with this directory in procfs counts; `None` if it works elsewhere or has ended.
fn why(kind: Kind, dir: &Path, ours: Ours<'_>) -> Option<Why> {
    match works_here(kind, dir, ours) {
        Ok(None) => None,
        Ok(Some(Why::Unsaid)) | Err(_) if has_ended(dir) => None,
        Ok(why) => why,
        Err(errno) => Some(Why::Unreadable(errno)),
    }
}

fn works_here(kind: Kind, dir: &Path, ours: Ours<'_>) -> Result<Option<Why>, Errno> {
    let arguments = fs::read(dir.join("cmdline")).map_err(|error| super::mounts::errno(&error))?;
    let their_root = match (kind, path_flag(&arguments, ROOT_FLAG)) {
        (Kind::Holder(by), _) if !holds(by, &arguments) => return Ok(None),
        (Kind::Holder(_), None) => return unsaid(dir, ours.root),
        (Kind::Holder(_) | Kind::Kubelet, Some(said)) => said,
        (Kind::Kubelet, None) => DEFAULT_ROOT.into(),
    };
    if is_ours(&base(dir, &their_root)?, &their_root, ours.root)? {
        return Ok(Some(Why::SameDirectory));
    }
    // Whose --root-dir is not our --kubelet-root may be this node's kubelet all the same, and we be told wrongly.
    let here = file(&dir.join("root")).is_some_and(|theirs| Some(theirs) == file(MACHINES.as_ref()));
    let same_runtime = path_flag(&arguments, ENDPOINT_FLAG).is_none_or(|endpoint| {
        let text = endpoint.as_os_str().as_bytes();
        let path = Path::new(OsStr::from_bytes(text.strip_prefix(b"unix://").unwrap_or(text)));
        path == ours.runtime || file(path).is_some_and(|theirs| Some(theirs) == file(ours.runtime))
    });
    let counts = kind == Kind::Kubelet && here && same_runtime;
    Ok(counts.then_some(Why::SameMachine))
}

/// A holder that does not say where. In this machine's root file system its kubelet may have any directory; in another one,
/// as of a container or a snap, ours is there under the kubelet's name for it or under ours, or it is another node's.
fn unsaid(dir: &Path, ours: &KubeletRoot) -> Result<Option<Why>, Errno> {
    let (machines, root) = (Path::new(MACHINES), base(dir, MACHINES.as_ref())?);
    if file(machines).is_none_or(|here| identity(&root, machines) == Ok(here)) {
        return Ok(Some(Why::Unsaid));
    }
    for name in [Path::new(DEFAULT_ROOT), ours.path(), ours.given()] {
        // What the operator wrote may be relative to where the agent was started.
        if is_ours(&root, &machines.join(name), ours)? {
            return Ok(Some(Why::SameDirectory));
        }
    }
    Ok(None)
}

/// Whether a kubelet's root directory, looked up from there, is ours.
fn is_ours(base: &OwnedFd, their_root: &Path, ours: &KubeletRoot) -> Result<bool, Errno> {
    let (Some(our_root), Some(our_pods)) = (file(ours.path()), file(ours.pods())) else {
        return Err(Errno::NOENT);
    };
    match identity(base, &their_root.join("pods")) {
        Ok(pods) => Ok(pods == our_pods),
        // Just starting, and not ours unless it starts in our directory.
        Err(Errno::NOENT | Errno::NOTDIR) => match identity(base, their_root) {
            Ok(root) => Ok(root == our_root),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        },
        Err(errno) => Err(errno),
    }
}

fn file(path: &Path) -> Option<File> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
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

/// What a flag says that names a path; the last one counts. A kubelet reads `_` in its name as `-`.
fn path_flag(arguments: &[u8], wanted: &[u8]) -> Option<PathBuf> {
    let mut found = None;
    let mut arguments = arguments.split(|&byte| byte == 0);
    while let Some(argument) = arguments.next() {
        let flag = argument.strip_prefix(HOLDERS_FLAG).unwrap_or(argument);
        let mut parts = flag.splitn(2, |&byte| byte == b'=');
        let name = parts.next().unwrap_or_default();
        let name = name.strip_prefix(b"--").unwrap_or(name);
        let dashed = name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte });
        if dashed.eq(wanted.iter().copied()) {
            let value = parts.next().or_else(|| arguments.next()).unwrap_or_default();
            found = Some(OsStr::from_bytes(value).into());
        }
    }
    found
}

impl fmt::Display for KubeletProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)?;
        if self.why == Why::SameMachine {
            f.write_str(
                "; its --root-dir is not our --kubelet-root: give us its directory, or, if it is another node's, \
                 name its runtime on its command line with --container-runtime-endpoint",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn ours(root: &KubeletRoot) -> Ours<'_> {
        Ours {
            root,
            runtime: Path::new("/run/ours.sock"),
        }
    }

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

        /// The same in the machine's own root file system.
        fn process_here(&self, pid: i32, comm: &str, arguments: &[&str]) -> PathBuf {
            let dir = self.process(pid, comm, arguments);
            fs::remove_file(dir.join("root")).unwrap();
            symlink("/", dir.join("root")).unwrap();
            dir
        }

        fn found(&self) -> Vec<(i32, Why)> {
            let root = KubeletRoot::resolve(&self.path("ours")).unwrap();
            find(&self.path("proc"), ours(&root))
                .unwrap()
                .into_iter()
                .map(|it| (it.pid, it.why))
                .collect()
        }
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
            assert_eq!(
                path_flag(arguments.as_bytes(), ROOT_FLAG).as_deref(),
                expected.map(Path::new)
            );
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
        machine.process(8, "kubelet-amd64", &["kubelet", "--root-dir=ours"]);
        machine.process(9, "kubelet", &["kubelet"]);
        machine.process(10, "kubelet-1.36.3", &["kubelet", "--root_dir=ours"]);
        machine.process(11, ".kubelet-wrappe", &["kubelet", "--root-dir=ours"]);
        machine.process(12, "not-a-kubelet", &["kubelet", "--root-dir=ours"]);
        assert_eq!(machine.found(), [5, 6, 8, 10, 11].map(|pid| (pid, Why::SameDirectory)));
    }

    #[test]
    fn a_kubelet_with_another_directory_on_this_machine_counts_unless_it_names_another_runtime() {
        let machine = Machine::new();
        let here = |pid, arguments: &[&str]| machine.process_here(pid, "kubelet", arguments);
        here(5, &["kubelet", "--root-dir=/data/kubelet"]);
        here(
            6,
            &[
                "kubelet",
                "--root-dir=/x",
                "--container-runtime-endpoint=unix:///run/ours.sock",
            ],
        );
        here(
            7,
            &[
                "kubelet",
                "--root-dir=/x",
                "--container-runtime-endpoint",
                "/run/other.sock",
            ],
        );
        machine.process(8, "kubelet", &["kubelet", "--root-dir=/x"]);
        assert_eq!(machine.found(), [5, 6].map(|pid| (pid, Why::SameMachine)));
    }

    #[test]
    fn what_holds_a_kubelet_counts_unless_it_plainly_does_so_elsewhere_or_does_something_else() {
        let machine = Machine::new();
        fs::create_dir_all(machine.path("elsewhere/pods")).unwrap();
        machine.process_here(5, "k3s-server", &["/usr/local/bin/k3s server"]);
        machine.process_here(6, "k3s", &["k3s", "--debug", "agent"]);
        machine.process_here(7, "k3s", &["k3s", "kubectl", "logs"]);
        machine.process_here(8, "kubelite", &["kubelite", "--kubelet-args-file=args"]);
        machine.process(
            9,
            "rke2",
            &["/usr/bin/rke2", "server", "--kubelet-arg=root-dir=elsewhere"],
        );
        machine.process(10, "k0s", &["k0s", "worker", "--kubelet-arg=root-dir=ours"]);
        let gone = machine.process_here(11, "kubelite", &[]);
        fs::write(gone.join("stat"), "11 (kubelite) Z 1").unwrap();
        let unsaid = |pid| (pid, Why::Unsaid);
        assert_eq!(
            machine.found(),
            [unsaid(5), unsaid(6), unsaid(8), (10, Why::SameDirectory)]
        );
    }

    #[test]
    fn what_holds_a_kubelet_in_a_container_counts_only_if_our_directory_is_there() {
        let machine = Machine::new();
        // No directory, one of its own, and what is no directory at all.
        machine.process(5, "kubelite", &["kubelite"]);
        assert_eq!(machine.found(), []);
        fs::write(machine.path("rootfs/var/lib/kubelet"), "").unwrap();
        assert_eq!(machine.found(), []);
        fs::remove_file(machine.path("rootfs/var/lib/kubelet")).unwrap();
        fs::create_dir_all(machine.path("rootfs/var/lib/kubelet/pods")).unwrap();
        machine.process(6, "k3s", &["k3s", "server"]);
        machine.process(7, "edgecore", &["edgecore"]);
        assert_eq!(machine.found(), []);
        // The machine's, mounted there.
        let root = KubeletRoot::resolve(&machine.path("rootfs/var/lib/kubelet")).unwrap();
        let found = find(&machine.path("proc"), ours(&root)).unwrap();
        let found: Vec<_> = found.into_iter().map(|it| (it.pid, it.why)).collect();
        assert_eq!(found, [5, 6, 7].map(|pid| (pid, Why::SameDirectory)));
    }

    #[test]
    fn what_holds_a_kubelet_in_a_snap_or_a_container_counts_if_it_has_our_directory_by_our_name_for_it() {
        let machine = Machine::new();
        fs::create_dir_all(machine.path("rootfs/var/lib/kubelet/pods")).unwrap();
        let name = machine.path("ours");
        let same = machine.path("rootfs").join(name.strip_prefix("/").unwrap());
        fs::create_dir_all(same.parent().unwrap()).unwrap();
        machine.process(5, "kubelite", &["kubelite"]);
        assert_eq!(machine.found(), []);
        // A bind in real life: seen from there, a directory that is ours.
        fs::create_dir(machine.path("rootfs/bind")).unwrap();
        fs::rename(machine.path("ours"), machine.path("rootfs/bind/ours")).unwrap();
        symlink(machine.path("rootfs/bind/ours"), machine.path("ours")).unwrap();
        symlink("/bind/ours", same).unwrap();
        assert_eq!(machine.found(), [(5, Why::SameDirectory)]);
    }

    #[test]
    fn what_holds_a_kubelet_and_cannot_be_looked_at_counts() {
        let machine = Machine::new();
        let dir = machine.process(5, "k3s-server", &["/usr/local/bin/k3s server"]);
        fs::remove_file(dir.join("root")).unwrap();
        machine.process(6, "kubelite", &["kubelite"]);
        symlink("kubelet", machine.path("rootfs/var/lib/kubelet")).unwrap();
        assert_eq!(
            machine.found(),
            [(5, Why::Unreadable(Errno::NOENT)), (6, Why::Unreadable(Errno::LOOP))]
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
        assert_eq!(
            find(&machine.path("proc"), ours(&root)).unwrap()[0].why,
            Why::SameDirectory
        );
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
